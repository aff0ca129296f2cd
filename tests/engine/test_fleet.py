"""Several engines as one: who gets which row, and what becomes of rows whose engine goes."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.engine.base import Deliver
from gemma4cli.engine.fake import Behaviour, FakeEngine
from gemma4cli.engine.fleet import Fleet
from gemma4cli.errors import EngineError
from gemma4cli.records import Generation, MediaFacts, Rendered, Sampling, Tokens

SAMPLING = Sampling(8, 0.0, 1.0, 0, 0)
DAY = 86_400.0


class Engine:
    """Holds what it is given until it is told what to do with it."""

    renderer: Any = None
    capacity, sequences, progress = 8, 4, 0

    def __init__(self, opens: bool = True, starts: tuple[bool, ...] = ()) -> None:
        self.rows: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.may_start, self.up = threading.Event(), threading.Event()
        if opens:
            self.may_start.set()
        self._starts = list(starts)  # whether each start succeeds; all others do
        self.count = 0

    def describe(self) -> dict[str, Any]:
        return {"engine": "held"}

    def start(self, deliver: Deliver) -> None:
        assert self.may_start.wait(20)
        self.count += 1
        if self._starts and not self._starts.pop(0):
            raise EngineError("no memory")
        self.deliver = deliver
        self.up.set()

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self.rows.put(rendered.row_index)

    def answer(self, rows: int = 1) -> list[int]:
        found = [self.rows.get(timeout=20) for _ in range(rows)]
        for row in found:
            self.deliver(Generation(row, "fine", "stop", 1, 0.0, 0.0))
        return found

    def die(self) -> None:
        self.rows = queue.SimpleQueue()
        self.deliver(EngineError("out of memory"))

    def kill(self) -> None:
        pass

    def close(self) -> None:
        self.may_start.set()


class Fixture:
    """A fleet over engines, with what it delivers."""

    def __init__(self, *engines: Any, max_deaths: int = 12, after: tuple[int, ...] = ()) -> None:
        self.events: queue.SimpleQueue[Generation | EngineError] = queue.SimpleQueue()
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.ready = threading.Event()
        named = [(f"GPU {i}", engine) for i, engine in enumerate(engines)]
        self.fleet = Fleet(named, max_deaths, DAY, self.ready.set, self.said.put, after)
        self.fleet.start(self.events.put)

    def submit(self, *rows: int) -> None:
        for row in rows:
            self.fleet.submit(Rendered(row, None, 0, Tokens(), MediaFacts(), "", 0.0, 0.0), SAMPLING)

    def event(self) -> Generation | EngineError:
        return self.events.get(timeout=20)

    def engines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.fleet.describe()["engines"]
        return found


@pytest.fixture
def fleet_of():
    made: list[Fixture] = []

    def make(*engines: Any, **more: Any) -> Fixture:
        made.append(Fixture(*engines, **more))
        return made[-1]

    yield make
    for fixture in made:
        fixture.fleet.close()


def test_the_first_starts_alone_and_has_rows_meanwhile(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(opens=False), Engine(opens=False)
    fixture = fleet_of(first, second)
    fixture.submit(*range(12))
    assert second.count == 0
    first.may_start.set()
    assert first.answer(8) == list(range(8))
    assert fixture.ready.is_set()
    assert first.answer(4) == list(range(8, 12))
    second.may_start.set()
    assert "GPU 1 is up" in fixture.said.get(timeout=20)
    assert (fixture.fleet.capacity, fixture.fleet.sequences) == (16, 8)


def test_what_shares_its_media_with_a_row_joins_it(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(), Engine()
    fixture = fleet_of(first, second)
    fixture.said.get(timeout=20)
    for row in range(0, 12, 3):
        fixture.submit(row)
        for other in (row + 1, row + 2):
            share = Rendered(other, None, 0, Tokens(), MediaFacts(), "", 0.0, 0.0, beside=row)
            fixture.fleet.submit(share, SAMPLING)
    homes = [{row // 3 for row in engine.answer(6)} for engine in (first, second)]
    assert [len(home) for home in homes] == [2, 2]
    assert not homes[0] & homes[1]


def test_a_row_goes_to_the_engine_with_the_most_room(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(), Engine()
    fixture = fleet_of(first, second)
    fixture.said.get(timeout=20)
    fixture.submit(*range(16))  # both are full
    done = second.answer(4)
    fixture.submit(16, 17, 18)
    for _ in range(4):
        fixture.event()
    # What the second one has made room for goes there, in order.
    later = second.answer(7)
    assert later[4:] == [16, 17, 18]
    assert not set(done + later) & set(first.answer(8))


def test_the_dead_ones_rows_wait_for_it_and_the_others_go_on(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(), Engine()
    fixture = fleet_of(first, second)
    fixture.said.get(timeout=20)
    fixture.submit(*range(16))
    second.may_start.clear()
    second.up.clear()
    had = [second.rows.get(timeout=20) for _ in range(8)]
    second.die()
    first.answer(8)
    assert sorted(event.row_index for event in (fixture.event() for _ in range(8))) == sorted(set(range(16)) - set(had))
    fixture.submit(*range(16, 24))  # while the second one is down
    assert first.answer(8) == list(range(16, 24))
    second.may_start.set()
    # In halves of what is left, for one of them may be at fault.
    assert [row for half in (4, 2, 1, 1) for row in second.answer(half)] == had
    events = [fixture.event() for _ in range(16)]
    assert Counter(event.attempts for event in events if event.row_index in had) == {2: 8}
    assert [engine["deaths"] for engine in fixture.engines()] == [0, 1]


def test_an_engine_that_is_not_to_be_revived_leaves_its_rows_to_the_others(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(), Engine(starts=(True, False, False, False))
    fixture = fleet_of(first, second, max_deaths=2)
    fixture.said.get(timeout=20)
    fixture.submit(*range(16))
    had = [second.rows.get(timeout=20) for _ in range(8)]
    second.die()
    assert "GPU 1 is lost, the other engines go on" in fixture.said.get(timeout=20)
    assert set(first.answer(8)).isdisjoint(had)
    assert sorted(first.answer(8)) == sorted(had)
    assert {event.row_index for event in (fixture.event() for _ in range(16))} == set(range(16))
    assert fixture.fleet.capacity == 8
    assert [engine["lost"] for engine in fixture.engines()] == [False, True]


def test_a_later_engine_that_does_not_start_is_done_without(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(), Engine(starts=(False,))
    fixture = fleet_of(first, second)
    assert "GPU 1 does not start, the other engines go on: no memory" in fixture.said.get(timeout=20)
    fixture.submit(0)
    assert first.answer() == [0]


@pytest.mark.parametrize("starts", [True, False])
def test_an_engine_that_waits_for_another_starts_when_that_is_up_or_given_up(
    fleet_of: Callable[..., Fixture], starts: bool
) -> None:
    first, other, last = Engine(), Engine(opens=False, starts=(starts,)), Engine()
    fixture = fleet_of(first, other, last, after=(0, 0, 1))
    assert first.up.wait(20)
    fixture.submit(0)
    assert first.answer() == [0]
    assert last.count == 0
    other.may_start.set()
    said = [fixture.said.get(timeout=20) for _ in range(2)]
    assert said[0].startswith("GPU 1 is up" if starts else "GPU 1 does not start")
    assert said[1].startswith("GPU 2 is up")


def test_the_first_one_has_to_start(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(starts=(False,)), Engine()
    fixture = fleet_of(first, second)
    fixture.submit(0)
    assert str(fixture.event()) == "no memory"
    assert second.count == 0


def test_the_loss_of_the_last_one_ends_the_job(fleet_of: Callable[..., Fixture]) -> None:
    first, second = Engine(starts=(True, False)), Engine(starts=(True, False))
    fixture = fleet_of(first, second, max_deaths=1)
    fixture.said.get(timeout=20)
    fixture.submit(0, 1)
    for engine in (first, second):
        engine.rows.get(timeout=20)
        engine.die()
    error = fixture.event()
    assert isinstance(error, EngineError)
    assert "died 2 times without finishing a row" in str(error)


@settings(deadline=None, max_examples=25)
@given(poison=st.sets(st.integers(0, 59), max_size=3), engines=st.integers(1, 4))
def test_every_row_comes_back_once_and_only_the_poisonous_ones_fail(poison: set[int], engines: int) -> None:
    from gemma4cli.engine.fake import _Answer

    behaviour = Behaviour(capacity=8, die_on="poison")
    fixture = Fixture(*[FakeEngine(behaviour) for _ in range(engines)], max_deaths=1000)
    for row in range(60):
        said = "poison" if row in poison else "fine"
        answer = _Answer(f"answer {row}", said, 0)
        fixture.fleet.submit(Rendered(row, answer, 0, Tokens(1), MediaFacts(), "", 0.0, 0.0), SAMPLING)
    found = {}
    for _ in range(60):
        event = fixture.event()
        assert isinstance(event, Generation)
        assert event.row_index not in found
        found[event.row_index] = event
    fixture.fleet.close()
    assert {row for row, event in found.items() if event.failure} == poison
    assert all(event.text == f"answer {row}" for row, event in found.items() if not event.failure)
    assert sum(engine["rows"] for engine in fixture.engines()) == 60


def test_a_slow_engine_gets_less() -> None:
    from gemma4cli.engine.fake import _Answer

    fast, slow = (FakeEngine(Behaviour(capacity=8, rows_per_s=rate)) for rate in (400.0, 50.0))
    fixture = Fixture(fast, slow)
    fixture.said.get(timeout=20)
    waiting = iter(range(120))
    inside = done = 0
    while done < 120:
        while inside < fixture.fleet.capacity and (row := next(waiting, None)) is not None:
            answer = _Answer(str(row), "", 0)
            fixture.fleet.submit(Rendered(row, answer, 0, Tokens(), MediaFacts(), "", 0.0, 0.0), SAMPLING)
            inside += 1
        fixture.event()
        inside, done = inside - 1, done + 1
    fixture.fleet.close()
    ahead, behind = (engine["rows"] for engine in fixture.engines())
    assert ahead + behind == 120
    assert ahead > 2 * behind
