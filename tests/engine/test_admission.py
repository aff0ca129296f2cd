"""Rows come into the batch in groups, none is left out, and the batch is never kept empty for it."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.engine import admission


class Scheduler:
    """What of vLLM's scheduler matters: it moves rows from those that wait to those that run, a few a step."""

    def __init__(self, most: int, a_step: int) -> None:
        self.max_num_active_reqs, self.a_step = most, a_step
        self.running: list[int] = []
        self.waiting: deque[int] = deque()

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
)
def test_every_row_runs_and_places_are_empty_only_for_want_of_a_group(
    rows: int, most: int, a_step: int, ends: list[int]
) -> None:
    scheduler = Scheduler(most, a_step)
    scheduler.waiting.extend(range(rows))
    answered: list[int] = []
    for step in range(100 * rows):
        scheduler.schedule()
        assert scheduler.max_num_active_reqs == most
        assert len(scheduler.running) <= most
        count = min(len(scheduler.running), ends[step % len(ends)] or (step % 50 == 0))
        answered += [scheduler.running.pop(0) for _ in range(count)]
        if len(answered) == rows:
            break
    assert answered == list(range(rows))


def test_a_full_batch_waits_for_room_for_a_group_then_fills_up_over_several_steps() -> None:
    scheduler = Scheduler(most=64, a_step=3)
    scheduler.waiting.extend(range(1000))
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


def test_rows_that_come_slowly_are_taken_as_they_come() -> None:
    scheduler = Scheduler(most=64, a_step=100)
    for row in range(50):
        scheduler.waiting.append(row)
        assert scheduler.schedule() == 1


@pytest.mark.parametrize(("asked", "rows"), [("", 32), ("1", 1), ("40", 40), ("1000", 256), ("nonsense", 32)])
def test_size_of_a_group(asked: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(admission.SWITCH, asked)
    assert admission.group(256) == rows
