"""What this process has fetched from elsewhere: bytes and seconds, for the display and the summary of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gemma4cli.records import Fetched

_taken = Fetched()


@contextmanager
def fetching() -> Iterator[Callable[[int], None]]:
    """Counts the block as one fetch, and the bytes that it tells of, whether it comes to its end or not."""
    began = time.perf_counter()
    nbytes = 0

    def count(more: int) -> None:
        nonlocal nbytes
        nbytes += more

    try:
        yield count
    finally:
        add(Fetched(1, nbytes, time.perf_counter() - began))


def add(more: Fetched) -> None:
    global _taken
    _taken = _taken + more


def take() -> Fetched:
    """All since this was last asked."""
    global _taken
    found, _taken = _taken, Fetched()
    return found
