"""The command as scripts start it; memory and processor time of a family of processes, from /proc."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

# Of the checkout or wheel that the script itself uses, installed or not.
GEMMA4 = [sys.executable, "-c", "import sys; from gemma4cli.cli import main; sys.argv[0] = 'gemma4'; sys.exit(main())"]


def below(root: int) -> dict[int, str]:
    """The processes that descend from one, by id, with their names."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                head, _, rest = (entry / "stat").read_text().rpartition(")")
                parents[int(entry.name)] = (int(rest.split()[1]), head.partition("(")[2])
    found: dict[int, str] = {}
    todo = [root]
    while todo:
        above = todo.pop()
        for pid, (parent, name) in parents.items():
            if parent == above and pid not in found:
                found[pid] = name
                todo.append(pid)
    return found


def pss(processes: Iterable[int], kind: str = "Pss") -> int:
    """Bytes of memory, pages that several share counted in shares. A process that has ended counts nothing.

    kind: `Pss_Anon` leaves out the pages of files, of which programs beside these have their share as well.
    """
    total = 0
    for pid in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(f"{kind}:"):
                    total += int(line.split()[1]) * 1024
    return total


def processor(pid: int) -> float:
    """Seconds of processor time that a process has used; 0 where it has ended."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
