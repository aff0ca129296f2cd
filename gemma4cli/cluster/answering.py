"""The third stage: rows that are ready, through an engine. What an engine's machine does with them is `pipeline.rows`.

Rows come in blocks and leave in the same, several at a time, so that the engine is full while one block ends and the
next one begins. What becomes ready to be rendered only here (pieces of a row, a row that is tried again with less) is
rendered here.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future

import pyarrow as pa

from gemma4cli import pipeline
from gemma4cli.cluster.rendering import Outcome
from gemma4cli.cluster.work import Work
from gemma4cli.commits import asked_again
from gemma4cli.engine import open_engine
from gemma4cli.engine.supervisor import Supervisor
from gemma4cli.identity import Key
from gemma4cli.pool import RenderPool
from gemma4cli.records import Item, Row
from gemma4cli.render import RenderJob
from gemma4cli.stats import Stats

# `ready` is when the engine was, in seconds since the epoch.
ANSWERED = pa.schema({"row_index": pa.int64(), "row": pa.large_binary(), "ready": pa.float64()})


class Answer:
    """An actor with an engine, which loads at the first row."""

    def __init__(self, work: Work) -> None:
        work.arrive()
        config, limits = work.config, work.config.limits
        self._config = config
        self._events: queue.SimpleQueue[pipeline.Event] = queue.SimpleQueue()
        self._stats, self._ready_at = Stats(None), time.time()
        bare = open_engine(config, work.model)
        self._engine = Supervisor(bare, limits.max_engine_deaths, limits.stall_timeout_s, self._takes)
        job = RenderJob(config, work.model, bare.renderer)
        self._ready = ReadyPool(job, limits.row_timeout_s, self._events)
        self._feed = Feed(self._events)
        self._open: dict[int, Future[Row]] = {}
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="line", daemon=True).start()

    def __call__(self, batch: pa.Table) -> pa.Table:
        """The output rows, with their keys and what would ask for them again.

        Raises:
            EngineError: the engine is gone for good.
        """
        entries: list[tuple[Item, Key]] = [pickle.loads(value.as_buffer()) for value in batch["item"]]
        waiting = []
        for (item, _), outcome in zip(entries, batch["outcome"], strict=True):
            buffer = outcome.as_buffer()
            if buffer.size:
                self._ready.expect(pickle.loads(buffer))
            future = self._open[item.row_index] = Future[Row]()
            waiting.append(future)
        if self._error is not None:
            raise self._error
        self._feed.put([item for item, _ in entries])
        rows = [future.result() for future in waiting]
        packed = [
            pickle.dumps((row, key, asked_again(row, item)), 5) for row, (item, key) in zip(rows, entries, strict=True)
        ]
        ready = pa.array([self._ready_at] * len(packed), pa.float64())
        return pa.Table.from_arrays([batch["row_index"], pa.array(packed, pa.large_binary()), ready], schema=ANSWERED)

    def _takes(self, takes: bool) -> None:
        if takes and not self._stats.generating:
            self._ready_at = time.time()
            self._stats.engine_ready()

    def _run(self) -> None:
        line = pipeline.rows(self._config, self._feed, self._ready, self._engine, self._events, None, self._stats)
        try:
            for row in line:
                self._open.pop(row.row_index).set_result(row)
        except BaseException as error:
            self._error = error
            for future in list(self._open.values()):
                with contextlib.suppress(Exception):
                    future.set_exception(error)


class Feed:
    """The line's source: rows as blocks bring them. It has no end but that of its process."""

    ended = False

    def __init__(self, events: queue.SimpleQueue[pipeline.Event]) -> None:
        self._events = events
        self._rows: deque[Item] = deque()

    def put(self, items: list[Item]) -> None:
        self._rows.extend(items)
        self._events.put(pipeline.Arrived())

    def take(self) -> Item | None:
        return self._rows.popleft() if self._rows else None


class ReadyPool:
    """What the line takes for a render pool: most rows were rendered elsewhere, the others are rendered here."""

    def __init__(self, job: RenderJob, limit_s: float, events: queue.SimpleQueue[pipeline.Event]) -> None:
        self._job, self._limit_s, self._events = job, limit_s, events
        self._ready: dict[int, Outcome] = {}
        self._pool: RenderPool | None = None

    @property
    def workers(self) -> int:
        return 8 if self._pool is None else self._pool.workers

    def expect(self, outcome: Outcome) -> None:
        """Takes what came of rendering a row that the line will ask for."""
        self._ready[outcome.row_index] = outcome

    def submit(self, item: Item) -> None:
        outcome = self._ready.pop(item.row_index, None)
        if outcome is not None:
            self._events.put(outcome)
            return
        if self._pool is None:
            self._pool = RenderPool(self._job, self._limit_s, self._events.put)
        self._pool.submit(item)

    def tend(self) -> None:
        if self._pool is not None:
            self._pool.tend()
