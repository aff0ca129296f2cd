"""Several engines as one: each row goes to the one with the most room, so that a slow engine gets less and none waits.

What shares its media with a row that an engine has joins it there.

Each engine has a supervisor of its own, and so its own deaths, its own search for the row at fault and its own watch
for silence; while it is down the others go on. The first one starts alone, for engines that start at once would all
compile the same kernels; the others follow when it is up, those that share a GPU one after another. One that cannot be
started or revived is lost, and its rows go to the others. Only the first has to start, and only the last one's loss
ends the job.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gemma4cli import tasks
from gemma4cli.busy import Room
from gemma4cli.engine.base import Deliver, Engine, Renderer
from gemma4cli.engine.supervisor import Supervisor
from gemma4cli.errors import EngineError
from gemma4cli.records import Generation, Rendered, Sampling


@dataclass(eq=False, slots=True)
class _Member:
    """An engine of the fleet. `inside` are the rows that it has, on trial or not."""

    name: str
    engine: Supervisor
    after: int  # the number of the one that has to be up before this one starts
    inside: dict[int, tuple[Rendered, Sampling]] = field(default_factory=dict)
    takes: bool = False  # it is up, and looks for no row at fault
    was_up: bool = False
    lost: bool = False
    rows: int = 0
    room: Room = field(default_factory=Room)


class Fleet:
    """See the module's docstring. An engine itself, of the sum of their sizes.

    engines: each with its name, for people.
    max_deaths, stall_s: of each engine, see `Supervisor`.
    ready: called when the first engine takes rows.
    notice: called with a line for people when an engine starts, or is lost.
    after: for each engine the number of an earlier one that has to be up before it starts; the first where it is empty.
    """

    def __init__(
        self,
        engines: Sequence[tuple[str, Engine]],
        max_deaths: int,
        stall_s: float,
        ready: Callable[[], None],
        notice: Callable[[str], None] = lambda line: None,
        after: Sequence[int] = (),
    ) -> None:
        self._ready, self._notice = ready, notice
        self._lock = threading.Lock()
        self._backlog: deque[tuple[Rendered, Sampling]] = deque()
        self._died_on: dict[int, _Member] = {}  # by row: where it comes again, to be tried alone
        self._closed = False
        self._members: list[_Member] = []
        for i, (name, engine) in enumerate(engines):
            supervisor = Supervisor(engine, max_deaths, stall_s, partial(self._takes, i))
            self._members.append(_Member(name, supervisor, after[i] if after else 0))

    def __len__(self) -> int:
        return len(self._members)

    @property
    def renderer(self) -> Renderer:
        return self._members[0].engine.renderer

    @property
    def sequences(self) -> int:
        return sum(member.engine.sequences for member in self._members if not member.lost)

    @property
    def capacity(self) -> int:
        return sum(member.engine.capacity for member in self._members if not member.lost)

    @property
    def progress(self) -> int:
        return sum(member.engine.progress for member in self._members)

    @property
    def up(self) -> int:
        """How many of the engines take rows now."""
        return sum(member.takes for member in self._members)

    def describe(self) -> dict[str, Any]:
        """What the engines have in common, and of each its rows, deaths and the share of its time that it starved."""
        with self._lock:
            each = [
                {
                    "name": member.name,
                    "rows": member.rows,
                    "starved": None if member.room.starved is None else round(member.room.starved, 4),
                    "deaths": member.engine.deaths,
                    "lost": member.lost,
                }
                for member in self._members
            ]
        deaths = sum(member.engine.deaths for member in self._members)
        return self._members[0].engine.describe() | {"deaths": deaths, "engines": each}

    def start(self, deliver: Deliver) -> None:
        """Returns at once: rows wait until an engine takes them, and a failure of the first to load is delivered."""
        self._deliver = deliver
        self._begin(self._members[0])

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        with self._lock:
            home = self._died_on.get(rendered.row_index)
            if home is not None and not home.lost:
                self._give(home, rendered, sampling)
                return
            self._backlog.append((rendered, sampling))
            self._feed()

    def kill(self) -> None:
        """Ends all processes without waiting: for a program that is about to end."""
        for member in self._members:
            member.engine.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        threads = [threading.Thread(target=member.engine.close) for member in self._members]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _begin(self, member: _Member) -> None:
        member.engine.start(partial(self._receive, member))

    def _begin_after(self, i: int) -> None:
        """Starts those that waited for this one, which is up, or lost without ever having been."""
        for number, member in enumerate(self._members):
            if number and member.after == i and not self._closed:
                self._begin(member)

    def _takes(self, i: int, takes: bool) -> None:
        member = self._members[i]
        first_time, member.was_up = not member.was_up, True
        if first_time and i == 0:
            self._ready()
        with self._lock:
            member.takes = takes
            self._feed()
            if first_time:
                self._begin_after(i)
        if first_time and i:
            self._notice(f"{member.name} is up as well")

    def _receive(self, member: _Member, event: Generation | EngineError) -> None:
        if isinstance(event, EngineError):
            self._lose(member, event)
            return
        with self._lock:
            if member.inside.pop(event.row_index, None) is None:
                return  # its engine was given up, and another one has it
            member.rows += 1
            if tasks.died(event):
                self._died_on[event.row_index] = member
            member.room.look(len(member.inside), member.engine.sequences)
            self._feed()
        self._deliver(event)

    def _lose(self, member: _Member, error: EngineError) -> None:
        with self._lock:
            if self._closed:
                return
            never = not member.was_up
            member.lost, member.takes = True, False
            left = any(not other.lost for other in self._members) and not (never and member is self._members[0])
            rows, member.inside = list(member.inside.values()), {}
            if left:
                self._backlog.extendleft(reversed(rows))
                self._feed()
                if never:
                    self._begin_after(self._members.index(member))
        if not left:
            self._deliver(error)
            return
        what = "does not start" if never else "is lost"
        self._notice(f"{member.name} {what}, the other engines go on: {error}")

    def _feed(self) -> None:
        """Hands out what waits, as long as somebody has room."""
        while self._backlog:
            beside = self._backlog[0][0].beside
            free = [member for member in self._members if member.takes and beside in member.inside]
            free = free or [member for member in self._members if member.takes and self._room(member) > 0]
            if not free:
                return
            self._give(max(free, key=self._room), *self._backlog.popleft())

    def _give(self, member: _Member, rendered: Rendered, sampling: Sampling) -> None:
        member.inside[rendered.row_index] = rendered, sampling
        member.room.look(len(member.inside), member.engine.sequences, came=True)
        member.engine.submit(rendered, sampling)

    def _room(self, member: _Member) -> int:
        return member.engine.capacity - len(member.inside)
