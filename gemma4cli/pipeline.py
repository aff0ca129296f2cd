"""The line: pending rows -> render pool -> engine -> answer -> sink. Only the rows in flight are in memory."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from gemma4cli import tasks
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine
from gemma4cli.errors import EngineError, Interrupted
from gemma4cli.pending import Pending
from gemma4cli.pool import RenderPool
from gemma4cli.records import Failure, Generation, Item, MediaFacts, Rendered, Row, Status, Unrendered
from gemma4cli.sink import Sink
from gemma4cli.stats import Stats
from gemma4cli.stop import Stop

BYTES_IN_FLIGHT = 2 * 2**30  # of rendered media; a video of 32 frames is 31 MB

Event = Rendered | Unrendered | Generation | EngineError | Stop


@dataclass(slots=True)
class _Flight:
    """A row between its admission and its end."""

    item: Item
    rendered: Rendered | None = None
    again: bool = False  # generated a second time, because the first answer went round in circles
    attempts: int = 0


def run(
    config: RunConfig,
    pending: Pending,
    pool: RenderPool,
    engine: Engine,
    sink: Sink,
    stats: Stats,
    events: queue.SimpleQueue[Event],
) -> dict[str, Any]:
    """Takes every pending row to the output and returns the run summary.

    `pool` and `engine` deliver into `events`; so does whoever wants the run to stop.

    Raises:
        JobError: the engine or the output failed, or too many rows did; rows written until then are kept.
        Interrupted: a stop was asked for; rows finished until then are kept.
    """
    if pending.total != 0:
        engine.start(events.put)
    for row in chain(_rows(config, pending, pool, engine, events), sink.duplicates()):
        sink.write(row)
        stats.count(row)
        stats.check_failures()
    summary = stats.summary(config.as_dict(), engine.describe())
    summary["kept"] = {"ok": pending.kept_ok, "failed": pending.kept_failed}
    sink.finish(summary)
    return summary


def _rows(
    config: RunConfig, inputs: Iterable[Item], pool: RenderPool, engine: Engine, events: queue.SimpleQueue[Event]
) -> Iterator[Row]:
    """Output rows as they finish, while as many are in flight as the engine can use."""
    source, flights = iter(inputs), dict[int, _Flight]()
    nbytes = rendering = 0
    stop: Stop | None = None
    more = True
    while True:
        while (
            more
            and len(flights) < engine.capacity
            and rendering < 2 * pool.workers  # their sizes are not known yet
            and nbytes < BYTES_IN_FLIGHT
        ):
            item = next(source, None)
            if item is None:
                more = False
            elif item.failure is not None:
                yield _failed(config, item, Unrendered(item.row_index, item.failure, MediaFacts()))
            else:
                flights[item.row_index] = _Flight(item)
                rendering += 1
                pool.submit(item)
        if not flights:
            break
        try:
            event = events.get(timeout=None if stop is None else stop.seconds_left())
        except queue.Empty:
            break
        match event:
            case EngineError():
                raise event
            case Stop():
                stop, more = event, False
                for row_index in [index for index, flight in flights.items() if flight.rendered is None]:
                    del flights[row_index]  # not begun: the next run does it
            case Rendered() if event.row_index in flights:
                rendering -= 1
                flights[event.row_index].rendered = event
                nbytes += event.nbytes
                engine.submit(event, config.sampling)
            case Unrendered() if event.row_index in flights:
                rendering -= 1
                yield _failed(config, flights.pop(event.row_index).item, event)
            case Generation():
                flight = flights[event.row_index]
                assert flight.rendered is not None
                flight.attempts += event.attempts
                if tasks.loops(event) and not flight.again:
                    flight.again = True
                    engine.submit(flight.rendered, tasks.less_repetitive(config.sampling))
                    continue
                del flights[event.row_index]
                nbytes -= flight.rendered.nbytes
                yield _generated(config, flight, flight.rendered, event)
    if stop is not None:
        raise Interrupted


def _failed(config: RunConfig, item: Item, unrendered: Unrendered) -> Row:
    facts = unrendered.facts
    row = Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality or "+".join(dict.fromkeys(m.kind for m in item.media if m.kind)),
        task=config.task,
        status=Status.FAILED,
        width=facts.width,
        height=facts.height,
        duration_s=facts.duration_s,
        frames=facts.frames,
        decode_ms=unrendered.decode_ms,
        render_ms=unrendered.render_ms,
        attempts=unrendered.attempts,
        extra=item.extra,
    )
    return _with_failure(row, unrendered.failure)


def _generated(config: RunConfig, flight: _Flight, rendered: Rendered, generation: Generation) -> Row:
    item, tokens, facts = flight.item, rendered.tokens, rendered.facts
    row = Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality,
        task=config.task,
        status=Status.OK,
        finish_reason="repetition" if tasks.loops(generation) else generation.finish_reason,
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
        attempts=rendered.attempts + flight.attempts - 1,
        extra=item.extra,
    )
    if generation.failure is not None:
        return _with_failure(row, generation.failure)
    return replace(row, text=tasks.answer(generation.text or ""))


def _with_failure(row: Row, failure: Failure) -> Row:
    return replace(
        row,
        status=Status.FAILED,
        error_stage=failure.stage.value,
        error_type=failure.type,
        error_message=failure.message,
    )
