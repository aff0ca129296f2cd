"""The line: inputs -> render pool -> engine -> answer -> sink. Only the rows in flight are in memory."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gemma4cli import tasks
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine
from gemma4cli.errors import EngineError
from gemma4cli.inputs import Inputs
from gemma4cli.models import Model
from gemma4cli.records import Failure, Generation, Item, MediaFacts, Rendered, Row, Status, Unrendered
from gemma4cli.render import RenderPool
from gemma4cli.sink import Sink
from gemma4cli.stats import Stats

BYTES_IN_FLIGHT = 2 * 2**30  # of rendered media; a video of 32 frames is 31 MB

Event = Rendered | Unrendered | Generation | EngineError


@dataclass(slots=True)
class _Flight:
    """A row between its admission and its end."""

    item: Item
    rendered: Rendered | None = None


def run(config: RunConfig, model: Model, inputs: Inputs, engine: Engine, sink: Sink, stats: Stats) -> dict[str, Any]:
    """Takes every input row to the output and returns the run summary.

    Raises:
        JobError: the engine or the output failed; rows written until then are kept.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    pool = RenderPool(config, model, engine, events.put)
    try:
        if inputs.total != 0:
            engine.start(events.put)
        stats.engine_ready()
        for row in _rows(config, inputs, pool, engine, events):
            sink.write(row)
            stats.count(row)
        summary = stats.summary(config.as_dict(), engine.describe())
        sink.finish(summary)
        return summary
    finally:
        pool.close()
        engine.close()


def _rows(
    config: RunConfig,
    inputs: Iterable[Item],
    pool: RenderPool,
    engine: Engine,
    events: queue.SimpleQueue[Event],
) -> Iterator[Row]:
    """Output rows as they finish, while as many are in flight as the engine can use."""
    source, flights, nbytes = iter(inputs), dict[int, _Flight](), 0
    more = True
    while True:
        while more and len(flights) < engine.capacity and nbytes < BYTES_IN_FLIGHT:
            item = next(source, None)
            if item is None:
                more = False
            elif item.failure is not None:
                yield _failed(config, item, item.failure, MediaFacts())
            else:
                flights[item.row_index] = _Flight(item)
                pool.submit(item)
        if not flights:
            return
        event = events.get()
        match event:
            case EngineError():
                raise event
            case Rendered():
                flights[event.row_index].rendered = event
                nbytes += event.nbytes
                engine.submit(event, config.sampling)
            case Unrendered():
                item = flights.pop(event.row_index).item
                yield _failed(config, item, event.failure, event.facts, event.decode_ms, event.render_ms)
            case Generation():
                flight = flights.pop(event.row_index)
                assert flight.rendered is not None
                nbytes -= flight.rendered.nbytes
                yield _generated(config, flight.item, flight.rendered, event)


def _failed(
    config: RunConfig,
    item: Item,
    failure: Failure,
    facts: MediaFacts,
    decode_ms: float | None = None,
    render_ms: float | None = None,
) -> Row:
    return Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality or "+".join(dict.fromkeys(m.kind for m in item.media if m.kind)),
        task=config.task,
        status=Status.FAILED,
        error_stage=failure.stage.value,
        error_type=failure.type,
        error_message=failure.message,
        width=facts.width,
        height=facts.height,
        duration_s=facts.duration_s,
        frames=facts.frames,
        decode_ms=decode_ms,
        render_ms=render_ms,
        extra=item.extra,
    )


def _generated(config: RunConfig, item: Item, rendered: Rendered, generation: Generation) -> Row:
    tokens, facts = rendered.tokens, rendered.facts
    row = Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality,
        task=config.task,
        status=Status.OK,
        finish_reason=generation.finish_reason,
        prompt_tokens=tokens.prompt,
        image_tokens=tokens.image,
        audio_tokens=tokens.audio,
        video_tokens=tokens.video,
        output_tokens=generation.output_tokens,
        width=facts.width,
        height=facts.height,
        duration_s=facts.duration_s,
        frames=facts.frames,
        bucket=rendered.bucket,
        decode_ms=rendered.decode_ms,
        render_ms=rendered.render_ms,
        queue_ms=generation.queue_ms,
        generate_ms=generation.generate_ms,
        extra=item.extra,
    )
    if generation.failure is None:
        return replace(row, text=tasks.answer(generation.text or ""))
    failure = generation.failure
    return replace(
        row,
        status=Status.FAILED,
        error_stage=failure.stage.value,
        error_type=failure.type,
        error_message=failure.message,
    )
