"""When too many rows failed, and how that is said."""

from __future__ import annotations

import tracemalloc

import pytest

from gemma4cli.errors import JobError
from gemma4cli.records import Row, Status
from gemma4cli.stats import Stats


@pytest.mark.parametrize(
    ("limit", "said"), [(0.05, "10 of 100 rows failed, more than 5%, most"), (9, "10 rows failed, most")]
)
def test_a_limit_is_said_as_it_was_given(limit: float, said: str) -> None:
    stats = Stats(200, limit)
    stats.ok, stats.failed = 90, 10
    stats.reasons["decode", "truncated"] = 10
    with pytest.raises(JobError, match=said):
        stats.check_failures()


def test_rows_that_were_counted_elsewhere_count_as_if_they_were_counted_here() -> None:
    rows = [
        Row(i, f"i{i}", "", "image", "caption", Status.FAILED if i % 5 == 0 else Status.OK, error_stage="decode",
            error_type="truncated", finish_reason="stop", prompt_tokens=i, output_tokens=3, decode_ms=0.5)
        for i in range(20)
    ]  # fmt: skip
    here, there, other = Stats(20), Stats(None), Stats(None)
    for i, row in enumerate(rows):
        here.count(row)
        (there if i < 8 else other).count(row)
    added = Stats(20)
    for stats in (there, other):
        added.add(stats.tally())
    assert (added.ok, added.failed, added.done) == (here.ok, here.failed, here.done)
    assert (added.tokens, added.reasons, added.finish, added.busy_ms) == (
        here.tokens, here.reasons, here.finish, here.busy_ms,
    )  # fmt: skip
    Stats(None).add(Stats(None).tally())


def test_rates_are_of_the_last_half_minute_and_take_no_memory_for_each_row() -> None:
    now = 0.0
    stats = Stats(None, clock=lambda: now)
    stats.engine_ready()
    row = Row(0, "i", "", "image", "caption", Status.OK, output_tokens=3)
    for second in range(60):
        now = float(second)
        for _ in range(10 if second < 30 else 1000):
            stats.count(row)
    tracemalloc.start()
    try:
        for i in range(20_000):
            now = 60 + i / 2000
            stats.count(row)
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    rows, tokens = stats.rates()
    assert rows == pytest.approx((20 * 1000 + 20_000) / 30, rel=0.02)
    assert tokens == pytest.approx(3 * rows)
    assert grown < 100_000
