"""The search for rows that kill an engine, over any number of rows and of murderers."""

from __future__ import annotations

import math
import queue
import threading
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.engine.base import Deliver, EngineInput, Request
from gemma4cli.engine.supervisor import Supervisor
from gemma4cli.errors import EngineError
from gemma4cli.records import Generation, MediaFacts, Rendered, Sampling, Tokens

SAMPLING = Sampling(8, 0.0, 1.0, 0, 0)


class NoRenderer:
    preload = ()
    exact_frames = False

    def render(self, request: Request) -> EngineInput:
        raise AssertionError


@dataclass
class Mortal:
    """Answers rows in batches of up to `batch`, and dies of a batch with a poisonous row in it."""

    poison: frozenset[int]
    batch: int
    starts_failing: int = 0
    starts: int = 0
    answered: int = 0
    thread: threading.Thread | None = None
    closing: threading.Lock = field(default_factory=threading.Lock)
    renderer = NoRenderer()
    capacity = 64

    @property
    def progress(self) -> int:
        return self.answered

    def describe(self) -> dict:
        return {}

    def start(self, deliver: Deliver) -> None:
        self.starts += 1
        if 1 < self.starts <= 1 + self.starts_failing:
            raise EngineError("no memory yet")
        with self.closing:
            self.inbox: queue.SimpleQueue[int | None] = queue.SimpleQueue()
            self.thread = threading.Thread(target=self._work, args=(self.inbox, deliver))
            self.thread.start()

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self.inbox.put(rendered.row_index)

    def close(self) -> None:
        with self.closing:
            if self.thread is not None:
                self.inbox.put(None)
                self.thread.join()
                self.thread = None

    def _work(self, inbox: queue.SimpleQueue[int | None], deliver: Deliver) -> None:
        while (row := inbox.get()) is not None:
            rows = [row]
            while len(rows) < self.batch and not inbox.empty():
                row = inbox.get()
                if row is None:
                    return
                rows.append(row)
            if self.poison & set(rows):
                deliver(EngineError("out of memory"))
                return
            for row in rows:
                self.answered += 1
                deliver(Generation(row, "fine", "stop", 1, 0.0, 0.0))


def rendered(row: int) -> Rendered:
    return Rendered(row, None, 0, Tokens(), MediaFacts(), "", 0.0, 0.0)


def outcomes(engine: Mortal, rows: int, max_deaths: int = 12) -> tuple[dict[int, Generation], Supervisor]:
    got: queue.SimpleQueue[Generation | EngineError] = queue.SimpleQueue()
    supervisor = Supervisor(engine, max_deaths, stall_s=30, taking=lambda takes: None)
    supervisor.start(got.put)
    for row in range(rows):
        supervisor.submit(rendered(row), SAMPLING)
    found: dict[int, Generation] = {}
    while len(found) < rows:
        event = got.get(timeout=20)
        if isinstance(event, EngineError):
            raise event
        assert event.row_index not in found
        found[event.row_index] = event
    supervisor.close()
    return found, supervisor


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.sets(st.integers(0, 39), max_size=3), st.integers(1, 8))
def test_every_row_comes_back_once_and_only_the_poisonous_ones_fail(rows: int, poison: set[int], batch: int) -> None:
    engine = Mortal(frozenset(poison), batch)
    found, supervisor = outcomes(engine, rows, max_deaths=1000)
    poisonous = poison & set(range(rows))
    assert {row for row, generation in found.items() if generation.failure} == poisonous
    assert supervisor.deaths <= len(poisonous) * (math.log2(rows) + 3)


def test_a_restart_that_fails_is_tried_again() -> None:
    engine = Mortal(frozenset({2}), 4, starts_failing=2)
    found, _ = outcomes(engine, 8)
    assert [row for row, generation in sorted(found.items()) if generation.failure] == [2]


def test_a_first_start_that_fails_is_the_jobs_error() -> None:
    class Stillborn(Mortal):
        def start(self, deliver: Deliver) -> None:
            raise EngineError("no such device")

    got: queue.SimpleQueue[Generation | EngineError] = queue.SimpleQueue()
    supervisor = Supervisor(Stillborn(frozenset(), 1), 3, 30, lambda takes: None)
    supervisor.start(got.put)
    assert str(got.get(timeout=5)) == "no such device"
    supervisor.close()


def test_a_row_that_comes_again_after_it_killed_is_tried_alone() -> None:
    engine = Mortal(frozenset({3}), batch=8)
    got: queue.SimpleQueue[Generation | EngineError] = queue.SimpleQueue()
    supervisor = Supervisor(engine, 12, stall_s=30, taking=lambda takes: None)
    supervisor.start(got.put)
    for row in range(8):
        supervisor.submit(rendered(row), SAMPLING)
    first = {event.row_index: event for event in (got.get(timeout=20) for _ in range(8))}
    assert isinstance(first[3], Generation)
    assert first[3].failure is not None
    deaths = supervisor.deaths
    for row in (3, *range(8, 16)):
        supervisor.submit(rendered(row), SAMPLING)
    second = {event.row_index: event for event in (got.get(timeout=20) for _ in range(9))}
    supervisor.close()
    assert [row for row, event in second.items() if event.failure] == [3]
    assert supervisor.deaths == deaths + 1


def test_what_nobody_foresaw_ends_the_wait_for_its_rows() -> None:
    def taking(takes: bool) -> None:
        raise BrokenPipeError("nobody reads")

    got: queue.SimpleQueue[Generation | EngineError] = queue.SimpleQueue()
    supervisor = Supervisor(Mortal(frozenset(), 1), 3, 30, taking)
    supervisor.start(got.put)
    supervisor.submit(rendered(0), SAMPLING)
    assert "BrokenPipeError: nobody reads" in str(got.get(timeout=20))
    supervisor.close()
