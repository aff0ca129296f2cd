"""An engine that comes back when it dies, without the row that kills it.

Wraps another engine. When that one dies or stalls it is started again, and the rows that were in it are tried in
halves: the half that kills it again holds the row at fault, and so on down to that row, which fails. Everything
else is given back. A row that failed so and comes again, made smaller, is tried alone. An engine that dies time after
time without finishing a row ends the job.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gemma4cli.engine.base import Around, Deliver, Engine
from gemma4cli.errors import EngineError
from gemma4cli.records import Failure, Generation, Rendered, Sampling, Stage

POLL_S = 0.5


@dataclass(slots=True)
class _Entry:
    rendered: Rendered
    sampling: Sampling
    tries: int = 0


@dataclass(frozen=True, slots=True)
class _Submit:
    rendered: Rendered
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class _Died:
    life: int
    error: EngineError


class _Close:
    pass


class Supervisor(Around):
    """See the module's docstring. One thread holds all its state; everybody else sends it messages.

    max_deaths: deaths in a row without a finished row, after which the job ends. Halving alone takes up to
        log2(capacity) + 2 of them.
    stall_s: seconds without a token, with rows waiting, that count as a death.
    taking: told when rows that come are worked on, and when not: while the engine is down, or searched for the row at
        fault.
    """

    def __init__(
        self,
        engine: Engine,
        max_deaths: int,
        stall_s: float,
        taking: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(engine)
        self._max_deaths = max_deaths
        self._stall_s = stall_s
        self._clock = clock
        self._taking, self._takes = taking, False
        self._inbox: queue.SimpleQueue[_Submit | Generation | _Died | _Close] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._entries: dict[int, _Entry] = {}  # every row that is not finished
        self._waiting: list[int] = []  # rows that are not in the engine, in order
        self._inside: dict[int, None] = {}  # rows in the engine, in order of submission
        self._suspects: list[int] = []  # rows under suspicion that are not being tried now
        self._trial = False
        self._killers: set[int] = set()  # rows that the engine died on
        self._quarantine: list[int] = []  # those of them that came again, to be tried alone
        self._life = 0
        self._closing = False
        self.deaths = self._fruitless = 0

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"deaths": self.deaths}

    def start(self, deliver: Deliver) -> None:
        """Returns at once: rows wait until the model is loaded, and a failure to load is delivered."""
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._inbox.put(_Submit(rendered, sampling))

    def kill(self) -> None:
        self._engine.kill()

    def close(self) -> None:
        if self._thread is None:
            self._engine.close()  # a process may wait to be told what to start
            return
        self._closing = True
        self._inbox.put(_Close())
        self._engine.close()
        self._thread.join()
        self._thread = None

    def _run(self) -> None:
        try:
            if self._bring_up():
                self._attend()
        except BaseException as unforeseen:  # else the rows here would be waited for for ever
            self._deliver(EngineError(f"the engine cannot be looked after: {type(unforeseen).__name__}: {unforeseen}"))
        finally:
            self._engine.close()

    def _attend(self) -> None:
        """Messages until the end; between them, a look at whether the engine still moves."""
        seen, moved = -1, self._clock()
        while True:
            self._tell(not self._trial and not self._quarantine)
            try:
                message = self._inbox.get(timeout=POLL_S)
            except queue.Empty:
                message = None
            match message:
                case _Close():
                    return
                case _Submit():
                    self._entries[message.rendered.row_index] = _Entry(message.rendered, message.sampling)
                    again = message.rendered.row_index in self._killers
                    (self._quarantine if again else self._waiting).append(message.rendered.row_index)
                case Generation():
                    self._finished(message)
                case _Died() if message.life == self._life:
                    if not self._revive(message.error):
                        return
                    moved = self._clock()
            if not self._inside or self._engine.progress != seen:
                seen, moved = self._engine.progress, self._clock()
            elif self._clock() - moved > self._stall_s:
                rows = len(self._inside)
                error = EngineError(f"the engine made no token for {self._stall_s:g} s with {rows} rows in it")
                if not self._revive(error):
                    return
                moved = self._clock()
            self._feed()

    def _finished(self, generation: Generation) -> None:
        entry = self._entries.pop(generation.row_index, None)
        if entry is None:
            return
        self._fruitless = 0
        self._inside.pop(generation.row_index, None)
        self._deliver(replace(generation, attempts=entry.tries))

    def _feed(self) -> None:
        """Puts into the engine what may be there: the half on trial, or else every row."""
        if self._trial:
            if self._inside:
                return
            self._trial = bool(self._suspects)  # those on trial are cleared, so it is one of the others
            if self._trial:
                self._put(self._half())
                return
        if self._quarantine:
            if not self._inside:
                self._trial, self._suspects = True, [self._quarantine.pop(0)]
                self._put(self._half())
            return
        self._put(self._waiting)
        self._waiting = []

    def _tell(self, takes: bool) -> None:
        if takes != self._takes:
            self._takes = takes
            self._taking(takes)

    def _half(self) -> list[int]:
        """Takes the first half of the suspects, at least one."""
        most = max(1, len(self._suspects) // 2)
        half, self._suspects = self._suspects[:most], self._suspects[most:]
        return half

    def _put(self, rows: list[int]) -> None:
        for row in rows:
            entry = self._entries.get(row)
            if entry is None:  # its answer came after all, out of an engine that was given up
                continue
            entry.tries += 1
            self._inside[row] = None
            self._engine.submit(entry.rendered, entry.sampling)

    def _revive(self, error: EngineError) -> bool:
        """Narrows the suspicion and starts the engine again. False when there is no point in going on."""
        alive, self._inside = list(self._inside), {}
        if self._trial and len(alive) == 1:
            self._condemn(alive[0], error)
            alive = []
        self._waiting = self._suspects + self._waiting  # they were not in it when it died
        self._suspects, self._trial = alive, bool(alive)
        self._tell(False)
        self._engine.close()
        if self._closing or not self._died(error) or not self._bring_up():
            return False
        if self._trial:
            self._put(self._half())
        return True

    def _condemn(self, row: int, error: EngineError) -> None:
        entry = self._entries.pop(row)
        self._killers.add(row)
        failure = Failure(Stage.ENGINE, "engine_died", f"the engine dies on this row: {error}")
        self._deliver(Generation(row, None, None, 0, 0.0, 0.0, failure, entry.tries))

    def _bring_up(self) -> bool:
        while True:
            self._life += 1
            try:
                self._engine.start(self._receiver(self._life))
            except EngineError as error:
                if self.deaths == 0:
                    self._deliver(error)
                    return False
                if self._closing or not self._died(error):
                    return False
            else:
                return True

    def _died(self, error: EngineError) -> bool:
        """Counts a death; False, and the job's end, when there were too many."""
        self.deaths += 1
        self._fruitless += 1
        if self._fruitless <= self._max_deaths:
            return True
        hint = "Run again to go on where it stopped; --max-engine-deaths allows more."
        message = f"the engine died {self._fruitless} times without finishing a row: {error}"
        self._deliver(EngineError(message, hint))
        return False

    def _receiver(self, life: int) -> Deliver:
        def receive(event: Generation | EngineError) -> None:
            self._inbox.put(_Died(life, event) if isinstance(event, EngineError) else event)

        return receive
