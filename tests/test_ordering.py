"""Runs of rows -> all rows in order: the latest of equal ones, and no more in memory than overlap."""

from __future__ import annotations

from functools import partial
from random import Random

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.ordering import Run, latest


def table(rows: list[int], run: int) -> pa.Table:
    return pa.table({"row_index": pa.array(rows, pa.int64()), "run": pa.array([run] * len(rows), pa.int64())})


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=6), st.integers(0, 2))
def test_of_equal_rows_that_of_the_last_run_counts(runs: list[list[int]], lower: int) -> None:
    wanted = {row_index: run for run, rows in enumerate(runs) for row_index in rows}
    found = latest([Run(min(rows) - lower, partial(table, rows, i)) for i, rows in enumerate(runs)])
    pairs = [pair for each in found for pair in zip(*(column.to_pylist() for column in each.columns), strict=True)]
    assert pairs == sorted(wanted.items())


def test_nothing_comes_of_no_runs() -> None:
    assert list(latest([])) == []


@given(st.randoms(use_true_random=False))
def test_no_more_is_in_memory_than_overlaps(random: Random) -> None:
    """Rows that were put in another order within windows of 20, and written 10 at a time."""
    order = [i for start in range(0, 1000, 20) for i in random.sample(range(start, start + 20), 20)]
    held = most = 0

    def read(rows: list[int]) -> pa.Table:
        nonlocal held, most
        held += len(rows)
        most = max(most, held)
        return table(rows, 0)

    runs = [order[start : start + 10] for start in range(0, 1000, 10)]
    for each in latest([Run(min(rows), partial(read, rows)) for rows in random.sample(runs, len(runs))]):
        held -= len(each)
    assert held == 0
    assert most <= 40
