"""The line: pending rows -> plan -> render pool -> engine -> answer -> sink. Only the rows in flight are in memory."""

from __future__ import annotations

import contextlib
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, Protocol

from gemma4cli import plan, tasks
from gemma4cli.ahead import Ahead
from gemma4cli.companions import Companions
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine
from gemma4cli.errors import EngineError, Interrupted, JobError, ParseError
from gemma4cli.headers import Headers
from gemma4cli.joining import Pieces, segments_of
from gemma4cli.named_outputs import Outputs
from gemma4cli.pending import Pending
from gemma4cli.pool import RenderPool
from gemma4cli.records import Generation, Item, Kind, MediaFacts, Rendered, Row, Split, Status, Unrendered
from gemma4cli.resources import BYTES_OF_AN_ENGINE
from gemma4cli.sink import Sink
from gemma4cli.speech import Segment
from gemma4cli.stats import Stats
from gemma4cli.stop import Stop

TEND_S = 1.0  # between looks at the pool while nothing comes


class Arrived:
    """Rows that were waited for are ready to be taken."""


Event = Rendered | Unrendered | Split | Generation | EngineError | Stop | Arrived


class Source(Protocol):
    """Where rows come from."""

    @property
    def ended(self) -> bool: ...

    def take(self) -> Item | None:
        """The next row; None where none is ready, and for ever once `ended`."""
        ...


class Pool(Protocol):
    """Makes engine inputs, and delivers each as an event."""

    @property
    def workers(self) -> int: ...

    def submit(self, item: Item) -> None: ...

    def tend(self) -> None: ...


@dataclass(slots=True)
class _Flight:
    """A row between its admission and its end."""

    item: Item
    rendered: Rendered | None = None
    whole: Pieces | Outputs | None = None  # the row that this is the `place`th piece of
    place: int = 0
    tries: int = 1  # at an answer that goes round in circles, or is not what it has to be
    attempts: int = 0


def run(
    config: RunConfig,
    pending: Pending,
    pool: RenderPool,
    engine: Engine,
    sink: Sink,
    stats: Stats,
    events: queue.SimpleQueue[Event],
    companions: Companions | None = None,
    bytes_in_flight: int = BYTES_OF_AN_ENGINE,
    at_rest: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Takes every pending row to the output and returns the run summary.

    `pool` and `engine` deliver into `events`; so does whoever wants the run to stop. The engine starts when a row needs
    it. `companions` are the files that go with rows, `bytes_in_flight` what rendered rows may come to at a time.
    `at_rest` is called when all rows are there and the pool has no more to do, before they are put in order.

    Raises:
        JobError: the engine or the output failed, or too many rows did; rows written until then are kept.
        Interrupted: a stop was asked for; rows finished until then are kept.
    """
    sink.root = config.media.root
    stats.busy.readers = pool.workers
    headers = Headers(config.kinds, config.media.options())
    windows = plan.arranged(pending, plan.Planner(config), config.order, pending.total, headers.read)
    with (
        contextlib.closing(Ahead(windows, lambda: events.put(Arrived()))) as source,
        headers,
        _files_written(companions, sink),
    ):
        for row in chain(
            rows(config, source, pool, engine, events, companions, stats, bytes_in_flight), sink.duplicates()
        ):
            with stats.busy.writing():
                if companions is not None:
                    companions.take(sink.item(row.row_index), row)
                sink.write(row)
                if companions is not None:
                    companions.write_but(sink.held)
            stats.count(row)
            stats.check_failures()
    summary = stats.summary(config.as_dict(), engine.describe())
    summary["kept"] = {"ok": pending.kept_ok, "failed": pending.kept_failed}
    if companions is not None:
        summary["files"] = companions.summary()
    at_rest()
    sink.finish(summary)
    return summary


@contextlib.contextmanager
def _files_written(companions: Companions | None, sink: Sink) -> Iterator[None]:
    """Leaves no row that the output has without its files, also where the job ends early."""
    try:
        yield
    except BaseException:
        if companions is not None:
            with contextlib.suppress(JobError):  # the first error is the one to report
                sink.flush()
                companions.write_but(0)
        raise
    if companions is not None:
        sink.flush()
        companions.write_but(0)


def rows(
    config: RunConfig,
    source: Source,
    pool: Pool,
    engine: Engine,
    events: queue.SimpleQueue[Event],
    companions: Companions | None,
    stats: Stats,
    bytes_in_flight: int = BYTES_OF_AN_ENGINE,
) -> Iterator[Row]:
    """Output rows as they finish, while as many are in flight as the engine can use; the first one starts it."""
    flights, pieces = dict[int, _Flight](), deque[_Flight]()
    nbytes = rendering = 0  # of the flights
    keys = count(-1, -1)  # of pieces of rows; the rows themselves have their row_index
    stop: Stop | None = None
    more, started = True, False
    asks = len(config.asks(None))  # of each row
    while True:
        while (
            (more or pieces)
            and stop is None
            and len(flights) + rendering * (asks - 1) < engine.capacity
            and rendering < 2 * pool.workers  # their sizes are not known yet
            and nbytes < bytes_in_flight
        ):
            # Pieces go first: a row that has begun holds memory until its last piece is there.
            item = None if pieces else source.take()
            if item is not None and item.failure is not None:
                yield _failed(config, item, Unrendered(item.row_index, item.failure, MediaFacts()))
                continue
            if item is not None and companions is not None and companions.done(item):
                yield _skipped(config, item)
                continue
            if not pieces and item is None:
                more = not source.ended
                break
            if not started:
                engine.start(events.put)
                started = True
            flight = pieces.popleft() if item is None else _Flight(item)
            flights[flight.item.row_index] = flight
            rendering += 1
            pool.submit(flight.item)
        if not flights and not more:
            break
        if stats.generating:
            full = len(flights) - rendering >= engine.sequences or nbytes >= bytes_in_flight
            fed = more or bool(pieces) or rendering > 0
            stats.busy.look(full=full, fed=fed, answered=stats.done > 0)
        try:
            event = events.get(timeout=TEND_S if stop is None else min(TEND_S, stop.seconds_left()))
        except queue.Empty:
            if stop is not None and not stop.seconds_left():
                break
            pool.tend()
            continue
        stats.fetching.look(event, rendering)
        match event:
            case EngineError():
                raise event
            case Arrived():
                pass
            case Stop():
                stop, more = event, False
                pieces.clear()
                for row_index in [index for index, flight in flights.items() if flight.rendered is None]:
                    del flights[row_index]  # not begun: the next run does it
            case Rendered() if event.asked and event.row_index in flights:
                rendering -= 1
                nbytes += event.nbytes
                outputs, beside = Outputs(config, flights.pop(event.row_index).item), None
                for place, (item, share) in enumerate(outputs.first(event)):
                    (flight,) = _flights(outputs, [(place, item)], keys)
                    flight.rendered = replace(share, row_index=flight.item.row_index, beside=beside)
                    beside = flight.item.row_index if beside is None else beside
                    flights[flight.item.row_index] = flight
                    engine.submit(flight.rendered, config.recipe(item.task).sampling)
            case Rendered() if event.row_index in flights:
                rendering -= 1
                flights[event.row_index].rendered = event
                nbytes += event.nbytes
                engine.submit(event, config.recipe(flights[event.row_index].item.task).sampling)
            case Split() if event.row_index in flights:
                rendering -= 1
                flight = flights.pop(event.row_index)
                if not (event.windows or event.sound):
                    yield _silent(config, flight.item, event)
                    continue
                whole = Pieces(config, flight.item, event)
                pieces.extend(_flights(whole, whole.first(), keys))
            case Unrendered() if event.row_index in flights:
                rendering -= 1
                flight = flights.pop(event.row_index)
                yield from _landed(flight, _failed(config, flight.item, event), pieces, keys)
            case Generation():
                flight = flights[event.row_index]
                assert flight.rendered is not None
                flight.attempts += event.attempts
                if tasks.died(event) and not flight.item.smaller:
                    # It may be a matter of memory. The engine tries the row alone when it comes again.
                    flight.item = replace(flight.item, smaller=True)
                    nbytes -= flight.rendered.nbytes
                    rendering += 1
                    pool.submit(flight.item)
                    continue
                again = tasks.another_try(config, flight.item, event, flight.rendered.facts, flight.tries)
                if again is not None:
                    flight.tries += 1
                    engine.submit(flight.rendered, again)
                    continue
                del flights[event.row_index]
                nbytes -= flight.rendered.nbytes
                yield from _landed(flight, _generated(config, flight, flight.rendered, event), pieces, keys)
    if stop is not None:
        raise Interrupted


def _flights(whole: Pieces | Outputs, ready: Iterable[tuple[int, Item]], keys: Iterator[int]) -> Iterator[_Flight]:
    return (_Flight(replace(item, row_index=next(keys)), None, whole, place) for place, item in ready)


def _landed(flight: _Flight, row: Row, pieces: deque[_Flight], keys: Iterator[int]) -> Iterator[Row]:
    """The row itself, or the one that it was the last missing piece of, or nothing yet.

    Pieces that waited for this one join `pieces`.
    """
    whole = flight.whole
    if whole is None:
        yield row
        return
    pieces.extend(_flights(whole, whole.land(flight.place, row), keys))
    if whole.complete:
        yield whole.joined()


def _skipped(config: RunConfig, item: Item) -> Row:
    modality = "+".join(dict.fromkeys(m.kind for m in item.media if m.kind))
    return Row(
        item.row_index, item.id, item.source, modality, config.task, Status.SKIPPED, attempts=0, extra=item.extra
    )


def _silent(config: RunConfig, item: Item, split: Split) -> Row:
    return Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=Kind.AUDIO.value,
        task=config.task,
        status=Status.OK,
        text="",
        segments=(),
        transcript=None if config.translate_to is None else "",
        finish_reason="no_speech",
        output_tokens=0,
        duration_s=split.duration_s,
        decode_ms=split.decode_ms,
        attempts=split.attempts,
        extra=item.extra,
    )


def _failed(config: RunConfig, item: Item, unrendered: Unrendered) -> Row:
    facts = unrendered.facts
    return Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality or "+".join(dict.fromkeys(m.kind for m in item.media if m.kind)),
        task=config.task,
        width=facts.width,
        height=facts.height,
        duration_s=facts.duration_s,
        frames=facts.frames,
        decode_ms=unrendered.decode_ms,
        render_ms=unrendered.render_ms,
        attempts=unrendered.attempts,
        extra=item.extra,
        **tasks.failed(unrendered.failure),
    )


def _generated(config: RunConfig, flight: _Flight, rendered: Rendered, generation: Generation) -> Row:
    item, tokens, facts = flight.item, rendered.tokens, rendered.facts
    row = Row(
        row_index=item.row_index,
        id=item.id,
        source=item.source,
        modality=facts.modality,
        task=config.task,
        status=Status.OK,
        prompt_tokens=tokens.prompt,
        image_tokens=tokens.image,
        audio_tokens=tokens.audio,
        video_tokens=tokens.video,
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
    row = replace(row, **tasks.answered(config.recipe(item.task), generation, facts))
    if row.status is Status.FAILED:
        return row
    if config.translate_to is not None:
        try:
            said, translated = tasks.translation(row.text or "", config.translate_to)
        except ParseError as error:
            return replace(row, text=None, **tasks.failed(error.failure()))
        row = replace(row, text=translated, transcript=said)
    if config.task == "transcribe" and flight.whole is None:
        begins = config.media.start or 0.0
        segment = Segment(begins, begins + (facts.duration_s or 0.0), row.text or "", generation.output_tokens)
        beside = None if row.transcript is None else [replace(segment, text=row.transcript)]
        row = replace(row, segments=segments_of([segment] if row.text else [], beside))
    return row
