"""Rows made ready by a thread, so that who takes them never waits for a disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from gemma4cli.records import Item

_LEAVE_S = 5.0  # that a thread is given to come back from a read


class Ahead:
    """Takes windows of rows from a source in a thread of its own, one window ahead of those being taken.

    wake: called from that thread when there is something to take again, or nothing more to come.
    """

    def __init__(self, windows: Iterator[list[Item]], wake: Callable[[], None]) -> None:
        self._windows, self._wake = windows, wake
        self._ready: queue.Queue[list[Item] | BaseException | None] = queue.Queue(maxsize=1)
        self._window: list[Item] = []  # last first
        self._over = threading.Event()
        self.ended = False
        self._thread = threading.Thread(target=self._read, name="ahead", daemon=True)
        self._thread.start()

    def take(self) -> Item | None:
        """The next row; None where none is ready, and for ever once `ended`. Raises what the source raised."""
        while not self._window and not self.ended:
            try:
                found = self._ready.get_nowait()
            except queue.Empty:
                return None
            if isinstance(found, list):
                self._window = found[::-1]
                continue
            self.ended = True
            if found is not None:
                raise found
        return self._window.pop() if self._window else None

    def close(self) -> None:
        """Ends the thread. Rows not taken are dropped."""
        self._over.set()
        while self._thread.is_alive():
            try:
                self._ready.get_nowait()
            except queue.Empty:
                break
        self._thread.join(_LEAVE_S)
        self.ended, self._window = True, []

    def _read(self) -> None:
        last: BaseException | None = None
        try:
            for window in self._windows:
                if not self._put(window):
                    return
        except BaseException as error:
            last = error
        self._put(last)

    def _put(self, found: list[Item] | BaseException | None) -> bool:
        while not self._over.is_set():
            try:
                self._ready.put(found, timeout=0.1)
            except queue.Full:
                continue
            self._wake()
            return True
        return False
