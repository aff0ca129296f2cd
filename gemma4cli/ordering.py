"""Tables with a row_index -> all their rows in order, of which only those that overlap are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

Ints = np.ndarray[Any, np.dtype[Any]]


class Run(NamedTuple):
    """Rows that are read together, and a row_index that none of them is below. They come in any order."""

    first: int
    read: Callable[[], pa.Table]


def latest(runs: Sequence[Run]) -> Iterator[pa.Table]:
    """All rows in order of row_index, in tables of any size; of those that share one, that of the last of the runs.

    A row leaves as soon as no run still to be read can come before it, so what is in memory is the runs that overlap:
    as much as the rows were out of order when they were written. Raises what reading a run raises.
    """
    waiting: pa.Table | None = None
    index = rank = np.zeros(0, np.int64)  # of the rows that wait: their row_index, and the run that they are of
    for place in sorted(range(len(runs)), key=lambda place: runs[place].first):
        if waiting is not None:
            split = int(np.searchsorted(index, runs[place].first))
            yield from _last_of_each(waiting.slice(0, split), index[:split])
            waiting, index, rank = waiting.slice(split), index[split:], rank[split:]
        read = runs[place].read()
        waiting = pa.concat_tables([waiting, read]) if waiting is not None and len(waiting) else read
        index = np.concatenate([index, read["row_index"].to_numpy()])
        rank = np.concatenate([rank, np.full(len(read), place)])
        if np.any(index[1:] <= index[:-1]):
            order = np.lexsort((rank, index))
            waiting, index, rank = waiting.take(pa.array(order)), index[order], rank[order]
    if waiting is not None:
        yield from _last_of_each(waiting, index)


def _last_of_each(table: pa.Table, index: Ints) -> Iterator[pa.Table]:
    """The table without those of its rows, which are sorted, that are followed by one of the same row_index."""
    if not len(table):
        return
    last = np.ones(len(index), bool)
    last[:-1] = index[1:] != index[:-1]
    yield table if last.all() else table.filter(pa.array(last))
