"""Ending a run from outside: the first signal drains it, the second ends it at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks a run to admit no more rows and to end by `deadline`, on the monotonic clock."""

    deadline: float

    def seconds_left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


@contextlib.contextmanager
def on_signals(grace_s: float, drain: Callable[[Stop], None], kill: Callable[[], None]) -> Iterator[None]:
    """While the block lasts, the first of SIGNALS calls `drain`; the next one `kill`, and ends the process.

    Only the main thread of a process can take signals; elsewhere this does nothing.
    """
    seen = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal seen
        if seen:
            kill()
            os._exit(INTERRUPTED)
        seen = True
        drain(Stop(time.monotonic() + grace_s))

    try:
        before = [signal.signal(number, handle) for number in SIGNALS]
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
