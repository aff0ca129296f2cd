"""What the process may use of this machine: cores by affinity and cgroup, memory that is free."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """CPU cores to count on, at least 1: the affinity mask, cut to the cgroup's quota."""
    allowed = len(os.sched_getaffinity(0))
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        allowed = min(allowed, max(1, int(quota) // int(period)))
    return max(1, allowed)


def available_memory() -> int:
    """Bytes of memory that can be taken without swapping."""
    free = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    limit, used = _read(CGROUP / "memory.max"), _read(CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
