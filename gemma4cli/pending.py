"""What is still to do: the rows of the input against the rows that are committed.

Keys decide, not positions: a row that is done is known again wherever it now stands in the input.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gemma4cli import keys
from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.identity import UNKNOWN, Key, content_key, differences, id_key
from gemma4cli.records import Item

Ints = np.ndarray[Any, np.dtype[Any]]
_SHOWN = 3
WAYS = (
    "Ways on: --new-only keeps the rows that are there and does new and changed ones; --retry-failed also takes "
    "failed rows as they are now; --overwrite starts again; or choose another output."
)


@dataclass(frozen=True, slots=True)
class Resume:
    """How a run goes on where an output holds rows already.

    With none of these, new rows are done, wherever they stand in the input, and rows that are there must be what the
    input says: one that changed or vanished is refused, for the user may not expect it.

    new_only: rows that are there stay as they are; new rows are done, and changed ones again.
    retry_failed: failed rows are done again.
    partial: the input is not all there is (--limit), so rows that are not in it are not missed.
    """

    new_only: bool = False
    retry_failed: bool = False
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Pending:
    """The rows still to do, as Items with the row_index that they have in the output.

    total: how many they are, as far as that is known.
    kept_ok, kept_failed: rows of earlier runs that stay as they are.
    idle: nothing is to be done, not even to put parts together.
    """

    total: int | None
    kept_ok: int
    kept_failed: int
    idle: bool
    _items: Callable[[], Iterator[Item]] = field(repr=False)

    @property
    def skipped(self) -> int:
        return self.kept_ok + self.kept_failed

    def __iter__(self) -> Iterator[Item]:
        return self._items()


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of each input row, by its position: the row_index it is to be done under, or -1 if it is done.

    ids, contents: the keys of the input's rows.  home: the row_index of the committed row that stays, or -1.
    matched, vanished, changed: row_index of committed rows whose input is there, is gone, or is another than it was.
    """

    ids: Ints
    contents: Ints
    row_index: Ints
    home: Ints
    matched: Ints
    vanished: Ints
    changed: Ints


def read_keys(items: Iterable[Item]) -> tuple[Ints, Ints]:
    """The keys of all rows of an input, 16 bytes a row."""
    ids, contents = array("Q"), array("Q")
    for item in items:
        ids.append(id_key(item.id))
        contents.append(content_key(item))
    return np.frombuffer(ids, np.uint64) if ids else np.zeros(0, np.uint64), (
        np.frombuffer(contents, np.uint64) if contents else np.zeros(0, np.uint64)
    )


def plan(done: pa.Table, ids: Ints, contents: Ints, resume: Resume, first: int = 0) -> Plan:
    """Compares the keys of committed rows, sorted by row_index, with those of the input's rows.

    Of rows that share an id, those that share their content too belong together first, then whichever are left, in
    order. A new row keeps its position as its row_index where no other row has that; else it comes after all others.
    Rows that were skipped are looked at again: what they were skipped for may have gone.

    first: the row_index of the first of the input's rows, of which there may be more before it.
    """
    index, known_ids = keys.column(done, "row_index") - first, keys.column(done, "id")
    known_contents, failed = keys.column(done, "content"), keys.column(done, "failed")
    match = np.full(len(index), -1, np.int64)  # committed row -> position in the input
    same = np.zeros(len(index), bool)

    def take(rows: Ints, positions: Ints, equal: bool) -> None:
        match[rows] = positions
        same[rows] = equal

    inside = np.flatnonzero((index >= 0) & (index < len(ids)))
    at = index[inside]
    by_id = ids[at] == known_ids[inside]
    by_content = (contents[at] == known_contents[inside]) | (known_contents[inside] == UNKNOWN)
    take(inside[by_id & by_content], at[by_id & by_content], True)
    rows, positions = _unmatched(match, len(ids))
    if len(rows) and len(positions):
        left = [known_ids[rows], known_contents[rows]], [ids[positions], contents[positions]]
        i, j = _joined(*left)
        take(rows[i], positions[j], True)
        rows, positions = _unmatched(match, len(ids))
        i, j = _joined([known_ids[rows], index[rows]], [ids[positions], positions.astype(np.uint64)])
        take(rows[i], positions[j], False)
        rows, positions = _unmatched(match, len(ids))
        i, j = _joined([known_ids[rows]], [ids[positions]])
        take(rows[i], positions[j], False)
        same |= (match >= 0) & (known_contents == UNKNOWN)
    target = np.full(len(ids), -2, np.int64)
    found = match >= 0
    again = found & ~same if resume.new_only else np.zeros(len(index), bool)
    if resume.retry_failed:
        again |= found & failed
    again |= found & keys.column(done, "skipped")
    target[match[found]] = -1
    target[match[again]] = index[again]
    new = np.flatnonzero(target == -2)
    free = ~np.isin(new, index)
    target[new[free]] = new[free]
    following = max(len(ids), int(index[-1]) + 1 if len(index) else 0)
    target[new[~free]] = following + np.arange(np.count_nonzero(~free))
    changed = found & ~same & ~(failed & resume.retry_failed)
    home = np.full(len(ids), -1, np.int64)
    home[match[found & ~again]] = index[found & ~again]
    target[target >= 0] += first
    home[home >= 0] += first
    return Plan(ids, contents, target, home, *(index[rows] + first for rows in (found, ~found, changed)))


def items(plan: Plan, inputs: Iterable[Item], take: Callable[[Item, Key], None]) -> Iterator[Item]:
    """The rows to do, read again; `take` is told of each.

    Raises:
        JobError: the input is no longer what it was when the plan was made.
    """
    position = -1
    for position, item in enumerate(inputs):
        if position >= len(plan.ids) or id_key(item.id) != plan.ids[position]:
            raise _moved(item)
        row_index = int(plan.row_index[position])
        if row_index < 0:
            continue
        if row_index != item.row_index:
            item = replace(item, row_index=row_index)
        take(item, Key(int(plan.ids[position]), int(plan.contents[position])))
        yield item
    if position + 1 < len(plan.ids):
        raise lost(len(plan.ids) - position - 1)


def refuse(plan: Plan, resume: Resume, shown: str, id_of: Callable[[int], str]) -> None:
    """Refuses to go on where that would leave rows in the output that are not what the input says.

    Raises:
        UsageError: naming the rows.
    """
    if resume.new_only:
        return
    for rows, one, many in (
        (plan.changed, "1 row of the input is", "{:,} rows of the input are"),
        (plan.vanished, "1 row that it holds is", "{:,} rows that it holds are"),
    ):
        if not len(rows) or (rows is plan.vanished and resume.partial):
            continue
        count = one if len(rows) == 1 else many.format(len(rows))
        what = "not what they were" if rows is plan.changed else "no longer in the input"
        what = what.replace("they were", "it was") if len(rows) == 1 else what
        first = ", ".join(printable(id_of(int(row)))[:80] for row in rows[:_SHOWN])
        more = ", ..." if len(rows) > _SHOWN else ""
        raise UsageError(f"{shown}: {count} {what}: {first}{more}", WAYS)


def stay(plan: Plan, live: pa.Table) -> pa.Table:
    """The keys of the committed rows that are not done again."""
    return live.filter(pa.array(~np.isin(keys.column(live, "row_index"), plan.row_index)))


def refuse_settings(made: Mapping[str, Any] | None, fingerprint: Mapping[str, Any], resume: Resume, shown: str) -> None:
    """Refuses to go on with other settings than rows were made with, where nothing says that this is meant.

    Raises:
        UsageError: naming the settings.
    """
    if made is None or not fingerprint or resume.new_only or resume.retry_failed:
        return
    found = differences(made, fingerprint)
    if found:
        more = f" (and {len(found) - 4} more)" if len(found) > 4 else ""
        raise UsageError(f"{shown} was made with other settings: {'; '.join(found[:4])}{more}", WAYS)


def lost(rows: int) -> JobError:
    """The error of an input that ends before it should."""
    what = "1 row" if rows == 1 else f"{rows:,} rows"
    message = f"the input has lost {what} since the job began"
    return JobError(message, "run the same command again")


def _unmatched(match: Ints, total: int) -> tuple[Ints, Ints]:
    free = np.ones(total, bool)
    free[match[match >= 0]] = False
    return np.flatnonzero(match < 0), np.flatnonzero(free)


def _joined(left: list[Ints], right: list[Ints]) -> tuple[Ints, Ints]:
    """Pairs of equal values, the first of the left with the first of the right and so on: positions in each."""
    columns = [np.concatenate([a.astype(np.uint64), b.astype(np.uint64)]) for a, b in zip(left, right, strict=True)]
    split = len(left[0])
    order = np.lexsort((np.arange(len(columns[0])), *columns))
    starts = np.ones(len(order), bool)
    starts[1:] = np.any([column[order[1:]] != column[order[:-1]] for column in columns], axis=0)
    group = np.cumsum(starts) - 1
    is_left = order < split
    i, j = order[is_left], order[~is_left] - split
    # A pair is a value and the how-manieth it is on its own side.
    rank_i, rank_j = _ranked(group[is_left]), _ranked(group[~is_left])
    width = max(len(order), 1)
    _, at_i, at_j = np.intersect1d(
        group[is_left] * width + rank_i, group[~is_left] * width + rank_j, assume_unique=True, return_indices=True
    )
    return i[at_i], j[at_j]


def _ranked(group: Ints) -> Ints:
    """For sorted values: how many equal ones come before each."""
    if not len(group):
        return group
    starts = np.ones(len(group), bool)
    starts[1:] = group[1:] != group[:-1]
    first = np.flatnonzero(starts)
    ranks: Ints = np.arange(len(group)) - np.repeat(first, np.diff(np.append(first, len(group))))
    return ranks


def _moved(item: Item) -> JobError:
    message = f"the input has changed since the job began: {printable(item.id)} was not there"
    return JobError(message, "run the same command again")
