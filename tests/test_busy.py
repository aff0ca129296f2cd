"""Shares of a run's time, on a clock that the test moves."""

from __future__ import annotations

import pytest

from gemma4cli.busy import Busy, Room


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_engine_is_starved_while_it_has_room_and_rows_are_to_come() -> None:
    clock = Clock()
    busy = Busy(clock)
    assert busy.starved is None
    states = [(9.0, False, True), (6.0, True, True), (3.0, False, True), (1.0, True, True), (50.0, False, False)]
    for seconds, full, fed in states:  # the first of them is the time that it takes to fill
        busy.look(full=full, fed=fed)
        clock.now += seconds
    busy.look(full=False, fed=False)
    assert busy.starved == pytest.approx(3.0 / 10.0)
    assert busy.summary(0.0, 60.0)["fed_s"] == pytest.approx(10.0)


def test_an_engine_that_is_never_full_is_starved_from_its_first_answer_on() -> None:
    clock = Clock()
    busy = Busy(clock)
    for answered in (False, True, True):
        busy.look(full=False, fed=True, answered=answered)
        clock.now += 2.0
    busy.look(full=False, fed=True, answered=True)
    assert busy.starved == 1.0
    assert busy.summary(0.0, 6.0)["fed_s"] == pytest.approx(4.0)


def test_the_end_of_a_job_is_no_starvation() -> None:
    clock = Clock()
    busy = Busy(clock)
    busy.look(full=True, fed=True)
    clock.now += 5.0
    for _ in range(10):
        busy.look(full=False, fed=False)
        clock.now += 5.0
    assert busy.starved == 0.0


def test_readers_and_the_writer() -> None:
    clock = Clock()
    busy = Busy(clock)
    busy.readers = 4
    with busy.writing():
        clock.now += 0.5
    shares = busy.summary(reading_ms=20_000.0, seconds=10.0)
    assert shares["readers_busy"] == pytest.approx(0.5)
    assert shares["writing"] == pytest.approx(0.05)
    assert shares["engine_starved"] is None


def test_one_of_several_engines_is_starved_while_it_has_room_until_the_last_row_comes() -> None:
    clock = Clock()
    room = Room(clock)
    for rows in (1, 2):  # it fills
        room.look(rows, 2, came=True)
        clock.now += 5.0
    room.look(1, 2)
    clock.now += 2.0
    room.look(2, 2, came=True)
    assert room.starved == pytest.approx(2.0 / 7.0)
    clock.now += 3.0
    for rows in (1, 0):  # nothing comes any more
        room.look(rows, 2)
        clock.now += 50.0
    assert room.starved == pytest.approx(2.0 / 7.0)


def test_one_that_is_never_full_is_starved_from_its_first_answer_on() -> None:
    clock = Clock()
    room = Room(clock)
    room.look(1, 4, came=True)
    clock.now += 9.0
    assert room.starved is None
    for _ in range(2):
        room.look(0, 4)
        clock.now += 2.0
        room.look(1, 4, came=True)
        clock.now += 2.0
    assert room.starved == 1.0
