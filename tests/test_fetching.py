"""What a run fetches: counted as rows come back, in words while it lasts, in figures at its end."""

from __future__ import annotations

import contextlib

import pytest

from gemma4cli.fetching import Fetching, size
from gemma4cli.media import traffic
from gemma4cli.records import Failure, Fetched, MediaFacts, Split, Stage, Unrendered


def test_what_is_fetched_is_counted() -> None:
    traffic.take()
    fetching = Fetching()
    assert fetching.state() == ""
    assert fetching.summary() == {"files": 0, "bytes": 0, "mean_ms": None}
    fetching.look(Unrendered(0, Failure(Stage.FETCH, "x", "x"), MediaFacts(), fetched=Fetched(1, 2_500_000, 0.5)), 3)
    with contextlib.suppress(OSError), traffic.fetching() as count:  # in this process, and broken off
        count(500_000)
        raise OSError("gone")
    fetching.look(Split(1, (), None, None, fetched=Fetched(2, 0, 0.25)), 7)
    fetching.look(object(), 6)
    assert fetching.state() == ", 3.0 MB fetched, 6 waiting"
    assert fetching.summary()["files"] == 4
    assert fetching.summary()["bytes"] == 3_000_000
    assert fetching.summary()["mean_ms"] >= 187


@pytest.mark.parametrize(
    ("nbytes", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (12_345_678, "12.3 MB"), (10**16, "10000.0 TB")]
)
def test_sizes(nbytes: int, shown: str) -> None:
    assert size(nbytes) == shown
