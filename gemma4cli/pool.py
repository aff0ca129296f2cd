"""The render pool: processes that turn items into engine inputs, and that may die of one.

A decoder that hangs loses its process at the time limit, one that crashes loses it at once. The row is tried once
more and then fails; the job goes on. The processes are forked from a server that has neither threads nor an
accelerator, but all that they need: modules, and the renderer with its tokenizer.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import forkserver

from pebble import ProcessExpired, ProcessPool

from gemma4cli import render_worker, resources, storage
from gemma4cli.errors import FetchError
from gemma4cli.media.remote import held
from gemma4cli.records import Failure, Item, MediaFacts, Rendered, Split, Stage, Unrendered
from gemma4cli.render import RenderJob
from gemma4cli.transport import Inbox

TRIES = 2  # of a row whose reader died
TRIES_OF_A_POOL = 5  # of a row that was under way when all readers died, most likely of something else
# There is a process for each core. Read by libraries when they are loaded, and by the C library's allocator.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
Handover = Callable[[Rendered | Unrendered | Split], None]


@dataclass(eq=False, slots=True)
class _Ticket:
    """One try at an item."""

    item: Item
    attempt: int = 1


class RenderPool:
    """Worker processes. Each item comes back once, through `deliver`, in any order and from a thread of the pool's.

    limit_s: seconds that a row may take to be fetched, decoded and rendered.
    rows: how many rows there will be, where known: no more workers than that.
    workers: how many there are else; None is one for each core.
    """

    def __init__(
        self, job: RenderJob, limit_s: float, deliver: Handover, rows: int | None = None, workers: int | None = None
    ) -> None:
        self._job = pickle.dumps(job)
        self._limit_s = limit_s
        self._deliver = deliver
        most = workers or resources.cores()
        self.workers = max(1, min(most, rows if rows is not None else most))
        self._media = job.config.media.options()
        self._context = multiprocessing.get_context("forkserver")
        self._start_server([*job.renderer.preload, *storage.modules(job.config.media.allow_protocols)])
        self._lock = threading.RLock()
        self._open: dict[int, _Ticket] = {}  # by the key of the row
        self._inbox = Inbox()
        self._pool = self._new_pool()
        self._closed = False

    def _start_server(self, preload: Iterable[str]) -> None:
        """Now, so that the server imports and builds while the engine starts. One that runs already stays as it is."""
        self._context.set_forkserver_preload(["gemma4cli.pool", *preload, "gemma4cli.render_server"])
        self._job_file = os.fdopen(os.memfd_create("gemma4-job"), "wb", buffering=0)
        self._job_file.write(self._job)
        path = f"/proc/{os.getpid()}/fd/{self._job_file.fileno()}"
        with _environment({**ONE_THREAD, render_worker.JOB: path}):
            forkserver.ensure_running()

    def submit(self, item: Item) -> None:
        self.tend()
        try:
            item = held(item, self._media)
        except FetchError as error:
            self._deliver(Unrendered(item.row_index, error.failure(), MediaFacts()))
        else:
            self._try(_Ticket(item))

    def tend(self) -> None:
        """Makes a new pool if the old one broke, as it does when a process is killed that has nothing to do."""
        with self._lock:
            if self._closed or self._works():
                return
            broken, self._pool = self._pool, self._new_pool()
            threading.Thread(target=_dispose, args=(broken,), daemon=True).start()
            for ticket in list(self._open.values()):
                self._retry(ticket, "the processes that read the files died, time after time", TRIES_OF_A_POOL)

    def close(self) -> None:
        """Ends the workers, whatever they are at."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        _dispose(self._pool)
        self._inbox.close()
        self._job_file.close()

    def _works(self) -> bool:
        try:
            return bool(self._pool.active)  # starts the processes the first time, which a signal may end
        except (RuntimeError, OSError, EOFError):
            return False

    def _new_pool(self) -> ProcessPool:
        return ProcessPool(
            self.workers, initializer=render_worker.begin, initargs=(self._job, self._inbox.line), context=self._context
        )

    def _try(self, ticket: _Ticket) -> None:
        with self._lock:
            self._open[ticket.item.row_index] = ticket
            try:
                future = self._pool.schedule(render_worker.render, args=(ticket.item,), timeout=self._limit_s)
            except (RuntimeError, OSError, EOFError):  # it broke just now; the next look at it tries again
                return
        future.add_done_callback(lambda done: self._done(ticket, done))

    def _retry(self, ticket: _Ticket, otherwise: str, tries: int = TRIES) -> None:
        if ticket.attempt < tries:
            self._try(_Ticket(ticket.item, ticket.attempt + 1))
            return
        del self._open[ticket.item.row_index]
        self._deliver(_lost(ticket, "worker_died", otherwise))

    def _done(self, ticket: _Ticket, future: Future[Rendered | Unrendered | Split]) -> None:
        error = CancelledError() if future.cancelled() else future.exception()
        with self._lock:
            if self._closed or self._open.get(ticket.item.row_index) is not ticket:
                return
            if isinstance(error, ProcessExpired):
                self._retry(ticket, f"reading it ended the process that read it ({error})")
                return
            if isinstance(error, CancelledError | BrokenProcessPool):
                return  # the pool broke, and `tend` starts the row again
            del self._open[ticket.item.row_index]
        outcome: Rendered | Unrendered | Split | None = None
        if error is None:
            try:
                outcome = self._claimed(future.result())
            except Exception as unforeseen:  # no descriptor left, here
                error = unforeseen
        if outcome is not None:
            self._deliver(replace(outcome, attempts=outcome.attempts + ticket.attempt - 1))
        elif isinstance(error, TimeoutError):
            message = f"not fetched, decoded and rendered within {self._limit_s:g} s; --row-timeout gives it longer"
            self._deliver(_lost(ticket, "timeout", message))
        else:
            self._deliver(_lost(ticket, "internal", f"{type(error).__name__}: {error}"))

    def _claimed(self, outcome: Rendered | Unrendered | Split) -> Rendered | Unrendered | Split:
        if not isinstance(outcome, Rendered):
            return outcome
        return replace(outcome, payload=self._inbox.claim(outcome.payload))


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    """For a process that is started inside; ours, and the engine's later, are as they were."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _dispose(pool: ProcessPool) -> None:
    pool.stop()  # type: ignore[no-untyped-call]
    pool.join()


def _lost(ticket: _Ticket, type: str, message: str) -> Unrendered:
    failure = Failure(Stage.DECODE, type, message)
    return Unrendered(ticket.item.row_index, failure, MediaFacts(), attempts=ticket.attempt)
