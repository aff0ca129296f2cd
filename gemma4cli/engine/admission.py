"""Rows enter vLLM's batch in groups, in vLLM's engine processes.

vLLM fills each place as soon as a row has left it. Once rows end at different times, that is a few rows a step, and a
step with new rows pays for a start of the towers and of a prompt's reading: tens of milliseconds, for 4 rows or for 40.
So while there are rows to go on with, new ones wait until there is room for a group, and then come in until the batch
is full or nobody waits, those with the same kind of media as the oldest first. Where rows come slower than they are
answered there is always room.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

SWITCH = "GEMMA4_ENGINE_GROUP"  # for vLLM's processes: rows of a group; 1 is vLLM's own way
PART = 8  # a group is this part of the batch: a step then holds few empty places, and starts are an eighth


def install() -> None:
    """Makes vLLM's scheduler admit rows in groups. Safe to call twice."""
    from vllm.v1.core.sched.scheduler import Scheduler

    if not hasattr(Scheduler.schedule, "admits_groups"):
        Scheduler.schedule = grouping(Scheduler.schedule)


def grouping(schedule: Callable[..., Any]) -> Callable[..., Any]:
    """A scheduler's `schedule` that lets rows in by groups."""

    def in_groups(self: Any, *args: Any, **options: Any) -> Any:
        most, working = self.max_num_active_reqs, len(self.running)
        self.lets_in = getattr(self, "lets_in", False) or not working or most - working >= group(most)
        if not self.lets_in:
            self.max_num_active_reqs = working
        elif isinstance(self.waiting, deque) and len(self.waiting) > most - working:
            _put_together(self.waiting)
        try:
            return schedule(self, *args, **options)
        finally:
            self.max_num_active_reqs = most
            # A group of long rows takes several steps to come in.
            self.lets_in = self.lets_in and len(self.running) < most and bool(self.waiting)

    in_groups.admits_groups = True  # type: ignore[attr-defined]
    return in_groups


def _put_together(waiting: deque[Any]) -> None:
    """Moves to the front what has the same kinds of media as the row that came first, so that no kind waits forever."""
    kinds = [frozenset(medium.modality for medium in row.mm_features) for row in waiting]
    first = min(range(len(waiting)), key=lambda i: waiting[i].arrival_time)
    rows = list(waiting)
    waiting.clear()
    waiting.extend(row for row, kind in zip(rows, kinds, strict=True) if kind == kinds[first])
    waiting.extend(row for row, kind in zip(rows, kinds, strict=True) if kind != kinds[first])


def group(most: int) -> int:
    """Rows of a group where `most` are worked on at a time."""
    asked = os.environ.get(SWITCH, "")
    return max(1, min(most, int(asked) if asked.isdigit() else most // PART))
