"""The render pool: processes that turn items into engine inputs, and that may die of one.

A decoder that hangs loses its process at the time limit, one that crashes loses it at once. The row is tried once
more and then fails; the job goes on. The processes are forked from a server that has imported what they need and
has neither threads nor an accelerator.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from pebble import ProcessExpired, ProcessPool

from gemma4cli import resources
from gemma4cli.records import Failure, Item, MediaFacts, Rendered, Split, Stage, Unrendered
from gemma4cli.render import RenderJob

Handover = Callable[[Rendered | Unrendered | Split], None]

# The job in a worker: its pickled form until the first row, for a renderer takes a second to build.
_job: bytes | RenderJob = b""


class RenderPool:
    """Worker processes. Each item comes back once, through `deliver`, in any order and from a thread of the pool's.

    limit_s: seconds that a row may take to be fetched, decoded and rendered.
    rows: how many rows there will be, where known: no more workers than that.
    """

    def __init__(self, job: RenderJob, limit_s: float, deliver: Handover, rows: int | None = None) -> None:
        self._limit_s = limit_s
        self._deliver = deliver
        self.workers = max(1, min(resources.cores(), rows if rows is not None else resources.cores()))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["gemma4cli.pool", *job.renderer.preload])
        self._pool = ProcessPool(self.workers, initializer=_set_job, initargs=(pickle.dumps(job),), context=context)

    def submit(self, item: Item, attempt: int = 1) -> None:
        future = self._pool.schedule(_render, args=(item,), timeout=self._limit_s)
        future.add_done_callback(lambda done: self._done(item, attempt, done))

    def close(self) -> None:
        """Ends the workers, whatever they are at."""
        self._pool.stop()  # type: ignore[no-untyped-call]
        self._pool.join()

    def _done(self, item: Item, attempt: int, future: Future[Rendered | Unrendered | Split]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            outcome: Rendered | Unrendered | Split = future.result()
            if isinstance(outcome, Rendered):
                outcome = replace(outcome, payload=pickle.loads(outcome.payload))
            self._deliver(replace(outcome, attempts=outcome.attempts + attempt - 1))
        elif isinstance(error, TimeoutError):
            message = f"not fetched, decoded and rendered within {self._limit_s:g} s; --row-timeout gives it longer"
            self._deliver(_lost(item, "timeout", message, attempt))
        elif isinstance(error, ProcessExpired) and attempt == 1:
            self.submit(item, attempt + 1)
        else:
            self._deliver(_lost(item, "worker_died", f"reading it ended the process that read it ({error})", attempt))


def _lost(item: Item, type: str, message: str, attempts: int) -> Unrendered:
    return Unrendered(item.row_index, Failure(Stage.DECODE, type, message), MediaFacts(), attempts=attempts)


def _set_job(pickled: bytes) -> None:
    global _job
    _job = pickled


def _render(item: Item) -> Rendered | Unrendered | Split:
    """Runs in a worker. The payload goes back by value: shared memory would outlive a worker that dies."""
    global _job
    if isinstance(_job, bytes):
        _job = pickle.loads(_job)
        assert isinstance(_job, RenderJob)
    outcome = _job.render(item)
    if isinstance(outcome, Rendered):
        return replace(outcome, payload=pickle.dumps(outcome.payload, pickle.HIGHEST_PROTOCOL))
    return outcome
