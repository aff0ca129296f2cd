"""An engine in a process of its own.

Whoever uses it handles small messages alone: what is rendered goes on to the process by its descriptor, unopened, and
the work of an engine's front end (7 ms of processor time for a picture with vLLM) is done there, for each engine
beside the others'.
"""

from __future__ import annotations

import gc
import pickle
import queue
import threading
from dataclasses import replace

from gemma4cli.engine.base import Around, Deliver, Engine
from gemma4cli.engine.child import Child, Started
from gemma4cli.errors import EngineError
from gemma4cli.gpus import Place
from gemma4cli.records import Generation, Rendered, Sampling
from gemma4cli.transport import Package, Parcel

Row = tuple[Rendered, Sampling]


class EngineProcess(Around):
    """`engine`, which stays as it is here and is sent to a process at `place` to be started there.

    first: a process that imports already what the engine needs, for the first start.
    """

    def __init__(self, engine: Engine, place: Place, first: Child | None = None) -> None:
        super().__init__(engine)
        self._place = place
        self._child, self._warm = first, first is not None
        self._rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Lock()
        self._made = self._finished = 0

    @property
    def progress(self) -> int:
        return self._made + self._finished

    def start(self, deliver: Deliver) -> None:
        with self._closing:
            if self._child is None or not self._warm:
                self._child = Child(self._place)
            child, self._warm = self._child, False
        try:
            child.channel.send(pickle.dumps(self._engine))
            said, _ = child.channel.receive()
        except (OSError, EOFError):
            said = EngineError(f"the process '{child.name}' {child.last_words()} while it started")
        if not isinstance(said, Started):
            self.close()
            assert isinstance(said, EngineError)
            raise said
        rows: queue.SimpleQueue[Row | None] = queue.SimpleQueue()
        with self._closing:
            self._rows = rows
            self._threads = [
                threading.Thread(target=self._send, args=(child, rows), name="to-engine", daemon=True),
                threading.Thread(target=self._receive, args=(child, deliver), name="from-engine", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        # A full collection would look through all of vLLM's and torch's objects, which stay, and hold up the line.
        gc.freeze()

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._rows.put((rendered, sampling))

    def kill(self) -> None:
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> None:
        gc.unfreeze()  # libraries whose objects are still there at the interpreter's end complain of them
        with self._closing:
            child, self._child, self._warm = self._child, None, False
            threads, self._threads = self._threads, []
            if child is None:
                return
            child.kill()
            self._rows.put(None)
            for thread in threads:
                thread.join()
            child.end()

    def _send(self, child: Child, rows: queue.SimpleQueue[Row | None]) -> None:
        """Apart from who submits, for a process that hangs takes nothing."""
        try:
            while (row := rows.get()) is not None:
                rendered, sampling = row
                package = rendered.payload
                if not isinstance(package, Package):
                    package = Package(Parcel(pickle.dumps(package)))
                memory = package.memory
                message = replace(rendered, payload=package.parcel), sampling
                child.channel.send(message, None if memory is None else memory.descriptor)
                del row, rendered, package, memory, message  # its memory is not held until the next one comes
        except OSError:
            return  # it has gone, and `_receive` says so

    def _receive(self, child: Child, deliver: Deliver) -> None:
        try:
            while True:
                event, _ = child.channel.receive()
                match event:
                    case int():
                        self._made = event
                    case Generation():
                        self._finished += 1
                        deliver(event)
                    case EngineError():
                        deliver(event)
                        return
        except (OSError, EOFError):
            if not child.ending:
                deliver(EngineError(f"the process '{child.name}' {child.last_words()}"))
