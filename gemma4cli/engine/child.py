"""A process that runs one engine: what it does, and how its owner starts and ends it.

It belongs to its owner. It leads a process group of its own with all that the engine starts, so that Ctrl-C reaches
the owner alone and one signal ends the whole group; and it ends when its owner does, however that one ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from gemma4cli.engine.base import Engine
from gemma4cli.errors import EngineError
from gemma4cli.gpus import Place
from gemma4cli.records import Generation
from gemma4cli.transport import Channel, Memory, Package

NAME = "gemma4 "  # of the processes begins with it, as ps and top show
REPORT_S = 0.5  # between reports of progress
LAST_S = 10.0  # that killed processes get to be gone; a driver takes its time to give memory back
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36


class Started:
    """What the process says when its engine takes rows."""


class Child:
    """The process, from its owner's side. It imports what it will need at once, and waits for its engine."""

    def __init__(self, place: Place, preload: Sequence[str] = ()) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what outlives the process comes to us, to be waited for
        context = multiprocessing.get_context("spawn")
        self.channel = Channel(near)
        self.name = f"{NAME}{place.name}"
        self._process = context.Process(target=_serve, args=(far, place, tuple(preload)), name=self.name)
        # A Ctrl-C before it has a group of its own is not meant for it. It inherits this, and takes it back.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            far.close()
        self.ending = self._gone = False

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def kill(self) -> None:
        """Ends the process and all below it, without waiting. From any thread, also from a signal's handler."""
        self.ending = True
        if self._gone:
            return
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):  # it has no group yet, or has gone
                os.kill(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends the process and all below it, and waits until their memory is free again."""
        self.kill()
        self._process.join(LAST_S)
        self._gone = True
        deadline = time.monotonic() + LAST_S
        with contextlib.suppress(ChildProcessError):  # nobody is left
            while time.monotonic() < deadline:
                if os.waitpid(-self.pid, os.WNOHANG) == (0, 0):
                    time.sleep(0.02)
        self.channel.close()

    def last_words(self) -> str:
        """How the process ended, for an error; it has ended, or is about to."""
        self._process.join(LAST_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _serve(line: socket.socket, place: Place, preload: Sequence[str]) -> None:
    """What the process does: starts the engine that it is sent, gives it rows, sends back what becomes of them."""
    _have_a_group()
    threading.Thread(target=_end_with_the_owner, args=(line,), daemon=True).start()
    os.environ.update(place.environment)
    if place.cores is not None:
        os.sched_setaffinity(0, place.cores)
    for module in preload:
        with contextlib.suppress(Exception):  # then the engine's start says what is wrong
            importlib.import_module(module)
    try:
        _work(Channel(line))
    except (OSError, EOFError):
        pass  # the owner has gone
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)  # what the engine started would be waited for else


def _work(channel: Channel) -> None:
    engine = _started(channel)
    if engine is None:
        return
    threading.Thread(target=_report, args=(engine, channel), daemon=True).start()
    while True:
        (rendered, sampling), descriptor = channel.receive()
        memory = None if descriptor is None else Memory(descriptor)
        engine.submit(replace(rendered, payload=Package(rendered.payload, memory)), sampling)


def _started(channel: Channel) -> Engine | None:
    """The engine that the owner sends, loaded; None where that came to nothing, which the owner is told."""
    pickled, _ = channel.receive()
    try:
        engine: Engine = pickle.loads(pickled)
        engine.start(lambda event: _send(channel, event))
    except EngineError as error:
        channel.send(error)
        return None
    except Exception as error:
        traceback.print_exc()  # to the log
        channel.send(EngineError(f"the engine did not start: {type(error).__name__}: {error}"))
        return None
    channel.send(Started())
    return engine


def _send(channel: Channel, event: Generation | EngineError) -> None:
    with contextlib.suppress(OSError):  # nobody is there to take it
        channel.send(event)


def _report(engine: Engine, channel: Channel) -> None:
    """Tells the owner of progress, for it to see that the engine is at work."""
    told = 0
    with contextlib.suppress(OSError):
        while True:
            time.sleep(REPORT_S)
            if engine.progress != told:
                told = engine.progress
                channel.send(told)


def _have_a_group() -> None:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ctypes.CDLL(None).prctl(PR_SET_NAME, multiprocessing.current_process().name.encode()[:15])


def _end_with_the_owner(line: socket.socket) -> None:
    """Ends the whole group when the other end of the line is closed, as it is when the owner is gone."""
    watch = select.poll()
    watch.register(line, 0)  # hanging up is always told
    watch.poll()
    os.killpg(0, signal.SIGKILL)
