"""What the process may use of this machine: cores by affinity and cgroup, memory that is free."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from gemma4cli.errors import UsageError

CGROUP = Path("/sys/fs/cgroup")
BYTES_OF_AN_ENGINE = 2 * 2**30  # of rendered media in flight; a video of 32 frames is 31 MB
FILES_BESIDE = 256  # open files of a run beside those of its rows, and a few for each reader
FILES_OF_A_READER = 8


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


def bytes_in_flight(engines: int) -> int:
    """Bytes of rendered media to hold at a time for so many engines: their sum, as long as memory is plenty."""
    return max(BYTES_OF_AN_ENGINE, min(engines * BYTES_OF_AN_ENGINE, available_memory() // 4))


def allow_open_files(rows: int) -> None:
    """Sees to it that the process may hold a file open for each of so many rows, as it does for rendered ones.

    Raises:
        UsageError: the system does not allow as many.
    """
    needed = rows + FILES_BESIDE + FILES_OF_A_READER * cores()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"the run needs up to {needed:,} open files for {rows:,} rows at a time, and the system allows {hard:,}",
            "ulimit -Hn shows the limit. Raise it, or use fewer --gpus or a lower --engine-arg max_num_seqs=N.",
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
