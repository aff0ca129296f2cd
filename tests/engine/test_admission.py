"""Rows come into the batch in groups, none is left out, and the batch is never kept empty for it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.engine import admission


@dataclass(frozen=True)
class Row:
    arrival_time: float
    kind: str = "image"

    @property
    def mm_features(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(modality=self.kind)] if self.kind else []


class Scheduler:
    """What of vLLM's scheduler matters: it moves rows from those that wait to those that run, a few a step."""

    def __init__(self, most: int, a_step: int, rows: int = 0, kinds: Sequence[str] = ("image",)) -> None:
        self.max_num_active_reqs, self.a_step = most, a_step
        self.running: list[Row] = []
        self.waiting = deque(Row(i, kinds[i % len(kinds)]) for i in range(rows))

    def schedule(self) -> int:
        taken = 0
        while self.waiting and taken < self.a_step and len(self.running) < self.max_num_active_reqs:
            self.running.append(self.waiting.popleft())
            taken += 1
        return taken


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    Scheduler.schedule = admission.grouping(Scheduler.schedule)  # type: ignore[method-assign]


@given(
    rows=st.integers(1, 300),
    most=st.integers(1, 64),
    a_step=st.integers(1, 20),
    ends=st.lists(st.integers(0, 8), min_size=1, max_size=40),
    kinds=st.lists(st.sampled_from(["image", "audio", "video", ""]), min_size=1, max_size=12),
)
def test_every_row_runs_once_and_none_is_passed_by_for_long(
    rows: int, most: int, a_step: int, ends: list[int], kinds: list[str]
) -> None:
    scheduler = Scheduler(most, a_step)
    coming = deque(Row(i, kinds[i % len(kinds)]) for i in range(rows))
    answered: list[Row] = []
    for step in range(100 * rows):
        while coming and len(scheduler.waiting) < 2 * most:
            scheduler.waiting.append(coming.popleft())
        before = len(scheduler.running)
        scheduler.schedule()
        assert scheduler.max_num_active_reqs == most
        assert len(scheduler.running) <= most
        for row in scheduler.running[before:]:
            passed = sum(other.arrival_time < row.arrival_time for other in scheduler.waiting)
            assert passed < 2 * most
        count = min(len(scheduler.running), ends[step % len(ends)] or (step % 50 == 0))
        answered += [scheduler.running.pop(0) for _ in range(count)]
        if len(answered) == rows:
            break
    assert sorted(row.arrival_time for row in answered) == list(range(rows))
    for kind in set(kinds):  # each kind in its order
        times = [row.arrival_time for row in answered if row.kind == kind]
        assert times == sorted(times)


def test_a_full_batch_waits_for_room_for_a_group_then_fills_up_over_several_steps() -> None:
    scheduler = Scheduler(64, 3, rows=1000)
    for _ in range(22):
        scheduler.schedule()
    assert len(scheduler.running) == 64
    taken = []
    for _ in range(16):  # a row ends at each step: room for a group of 8 comes at the eighth
        scheduler.running.pop()
        taken.append(scheduler.schedule())
    assert taken[:7] == [0] * 7
    assert taken[7:11] == [3, 3, 3, 2]
    assert taken[11:16] == [0] * 5


def test_a_group_is_of_one_kind_where_enough_of_it_wait() -> None:
    scheduler = Scheduler(64, 100, rows=1000, kinds=["image", "audio", "video"])
    scheduler.schedule()
    kinds = []
    for _ in range(60):
        del scheduler.running[:8]
        scheduler.schedule()
        kinds.append({row.kind for row in scheduler.running[-8:]})
    assert all(len(each) == 1 for each in kinds)
    assert set.union(*kinds) == {"image", "audio", "video"}


def test_rows_that_come_slowly_are_taken_as_they_come() -> None:
    scheduler = Scheduler(64, 100)
    for i in range(50):
        scheduler.waiting.append(Row(i))
        assert scheduler.schedule() == 1


@pytest.mark.parametrize(("asked", "rows"), [("", 32), ("1", 1), ("40", 40), ("1000", 256), ("nonsense", 32)])
def test_size_of_a_group(asked: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(admission.SWITCH, asked)
    assert admission.group(256) == rows
