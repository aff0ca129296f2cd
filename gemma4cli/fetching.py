"""What a run reads from elsewhere: counted as its rows come back from their readers, shown while they wait."""

from __future__ import annotations

from typing import Any

from gemma4cli.media import traffic
from gemma4cli.records import Fetched, Rendered, Split, Unrendered

_UNITS = ("B", "kB", "MB", "GB", "TB")


class Fetching:
    """Told by the line; read by the display's thread.

    waiting: rows that are with a reader.
    """

    def __init__(self) -> None:
        self.done = Fetched()
        self.waiting = 0

    def look(self, event: object, waiting: int) -> None:
        """What came back, and how many rows are with a reader now."""
        self.waiting = waiting
        if isinstance(event, Rendered | Unrendered | Split):
            self.done += event.fetched + traffic.take()  # some is read in this process, for all of them

    def state(self) -> str:
        """For the live line; empty where nothing is elsewhere."""
        if not self.done.files:
            return ""
        return f", {size(self.done.nbytes)} fetched, {self.waiting} waiting"

    def summary(self) -> dict[str, Any]:
        return {
            "files": self.done.files,
            "bytes": self.done.nbytes,
            "mean_ms": round(self.done.seconds * 1000 / self.done.files, 3) if self.done.files else None,
        }


def size(nbytes: float) -> str:
    """Bytes in the unit that suits them."""
    for unit in _UNITS[:-1]:
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} {_UNITS[-1]}"
