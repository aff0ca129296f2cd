"""Headers of media, read by processes that may die of one, or hang on it: the readers are those of strangers' files.

They are few, and started when there is a header to read. What they die of is the row's failure in a plan, and merely
not known to a run, whose render pool will find out for itself.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from pebble import ProcessExpired, ProcessPool

from gemma4cli import resources
from gemma4cli.media import MediaOptions
from gemma4cli.probe import probe
from gemma4cli.records import Failure, Item, Kind, Media, Probe, Stage

LIMIT_S = 30.0  # for a batch of headers, or for one
_MOST = 4  # processes
_BATCH = 32  # media that go to a process at a time
_HEAD = 1 << 18  # bytes of an embedded picture that say what it is


@dataclass(frozen=True, slots=True)
class _Order:
    """Media to look at, and how."""

    media: tuple[Media, ...]
    kinds: frozenset[Kind]
    options: MediaOptions

    def read(self) -> list[Probe]:
        """Runs in a process of its own."""
        return [probe(medium, self.kinds, self.options) for medium in self.media]


class Headers:
    """Reads headers while the block lasts, for one thread."""

    def __init__(self, kinds: frozenset[Kind], options: MediaOptions, limit_s: float = LIMIT_S) -> None:
        self._kinds, self._options, self._limit_s = kinds, options, limit_s
        self._pool: ProcessPool | None = None
        self._closed = False

    def read(self, items: Iterable[Item]) -> list[tuple[Probe, ...]]:
        """What the headers of each row's media say. Never raises."""
        rows = [item.media for item in items]
        media = [medium for row in rows for medium in row]
        heads = self._read([_head(medium) for medium in media])
        cut = [i for i, medium in enumerate(media) if len(medium.data or b"") > _HEAD and not _is_picture(heads[i])]
        for i, found in zip(cut, self._read([media[i] for i in cut], batch=1), strict=True):
            heads[i] = found
        every = iter(heads)
        return [tuple(next(every) for _ in row) for row in rows]

    def close(self) -> None:
        """Ends the processes, whatever they are at: what is being read stays unknown. From any thread."""
        self._closed = True
        self._dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _dispose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()

    def _read(self, media: Sequence[Media], batch: int = _BATCH) -> list[Probe]:
        batches = [tuple(media[start : start + batch]) for start in range(0, len(media), batch)]
        futures = [self._schedule(each) for each in batches]
        found: list[Probe] = []
        for each, future in zip(batches, futures, strict=True):
            found += self._result(each, future)
        return found

    def _schedule(self, media: tuple[Media, ...]) -> Future[list[Probe]] | None:
        if self._closed:
            return None
        try:
            if self._pool is None or not self._pool.active:
                self._dispose()
                workers = min(_MOST, resources.cores())
                # Spawned: the server that forks the readers of rows has far more to import than these need.
                self._pool = ProcessPool(workers, context=multiprocessing.get_context("spawn"))
            order = _Order(media, self._kinds, self._options)
            future: Future[list[Probe]] = self._pool.schedule(_Order.read, args=(order,), timeout=self._limit_s)
        except (RuntimeError, OSError, EOFError):  # it broke just now
            return None
        return future

    def _result(self, media: tuple[Media, ...], future: Future[list[Probe]] | None) -> list[Probe]:
        try:
            if future is not None:
                return future.result(3 * self._limit_s)  # it begins within two limits, when others have had theirs
            failure = None
        except ProcessExpired as error:
            message = f"reading its header ended the process that read it ({error})"
            failure = Failure(Stage.DECODE, "worker_died", message)
        except TimeoutError:
            failure = Failure(Stage.DECODE, "timeout", f"its header was not read within {self._limit_s:g} s")
        except Exception:  # the pool broke
            failure = None
        if len(media) == 1:
            return [Probe(media[0].kind, failure=failure)]
        # One of them is at fault: each by itself.
        return [found for each in media for found in self._result((each,), self._schedule((each,)))]


def _head(medium: Media) -> Media:
    """The medium without what a picture's header does not need."""
    return medium if medium.data is None else replace(medium, data=medium.data[:_HEAD])


def _is_picture(found: Probe) -> bool:
    return found.kind is Kind.IMAGE and found.failure is None
