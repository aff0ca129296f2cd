"""How busy each part of the line was, and how long the engine waited for rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Busy:
    """Shares of a run's time. Told by the line; read by the display's thread.

    The engine is starved while it has room for a row and no row is ready. That counts from when it is full for the
    first time, or has answered once, for as long as there are rows to make ready: it takes a while to fill, and at a
    job's end there is nothing to wait for.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None  # when the state below began
        self._starved = self._steady = False
        self._fed_s = self._starved_s = self._writing_s = 0.0
        self.readers = 1

    def look(self, *, full: bool, fed: bool, answered: bool = False) -> None:
        """The state from now on. full: the engine has no room; fed: rows are still to come."""
        self._steady = self._steady or full or answered
        now = self._clock()
        if self._since is not None:
            self._fed_s += now - self._since
            self._starved_s += (now - self._since) * self._starved
        self._since, self._starved = (now, not full) if fed and self._steady else (None, False)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Counts the block's time as the writer's."""
        began = self._clock()
        yield
        self._writing_s += self._clock() - began

    @property
    def starved(self) -> float | None:
        """Share of the time; None as long as there is none to speak of."""
        return self._starved_s / self._fed_s if self._fed_s > 0.1 else None

    def summary(self, reading_ms: float, seconds: float) -> dict[str, Any]:
        """The shares of `seconds`, and `reading_ms` of it taken over all readers."""
        seconds = max(seconds, 1e-9)
        return {
            "engine_starved": None if self.starved is None else round(self.starved, 4),
            "fed_s": round(self._fed_s, 3),
            "readers": self.readers,
            "readers_busy": round(min(1.0, reading_ms / 1000 / self.readers / seconds), 4),
            "writing": round(self._writing_s / seconds, 4),
        }


class Room:
    """How long one of several engines had room for a row, while there were rows to come.

    That there were shows when one comes: what passed since the last one counts then, and so the end of a job, when
    there is nothing to wait for, never does. It counts from when the engine was full for the first time, or answered.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since: float | None = None  # when the state below began
        self._idle = False
        self._idle_s = self._open_s = self._starved_s = self._fed_s = 0.0

    def look(self, rows: int, most: int, *, came: bool = False) -> None:
        """From now on it has so many rows, of the `most` that it works on at a time. came: one has come, else gone."""
        now = self._clock()
        if self._since is None and rows < most and came:
            return
        if self._since is not None:
            self._open_s += now - self._since
            self._idle_s += (now - self._since) * self._idle
        if came:
            self._fed_s, self._starved_s = self._fed_s + self._open_s, self._starved_s + self._idle_s
            self._open_s = self._idle_s = 0.0
        self._since, self._idle = now, rows < most

    @property
    def starved(self) -> float | None:
        """Share of the time; None as long as there is none to speak of."""
        return self._starved_s / self._fed_s if self._fed_s > 0.1 else None
