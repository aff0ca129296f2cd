"""What runs in the processes of the render pool, and in the server that they are forked from."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import pickle
import socket
from dataclasses import replace

from gemma4cli.media import traffic
from gemma4cli.records import Item, Rendered, Split, Unrendered
from gemma4cli.render import RenderJob
from gemma4cli.transport import Outbox

JOB = "GEMMA4CLI_RENDER_JOB"  # a variable of the server's environment: the file that holds the pickled job
NICE = 5  # the engine's one thread, which all rows wait for, goes first where there are more readers than free cores
TRIM = 16 << 20  # bytes of an engine input from which on it is worth to give memory back at once

# The job, built from its pickled form: by the server, so that the processes share its tokenizer's memory, or else by
# each of them at its first row, for a renderer takes a second to build.
_pickled = b""
_job: RenderJob | None = None
_outbox: Outbox | None = None


def build() -> None:
    """Builds the job that the environment names, where there is one. Called in the server, which must not fail."""
    global _pickled, _job
    path = os.environ.pop(JOB, None)
    if path is None:
        return
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - of another process, which ends any time
            _pickled = file.read()
        _job = _unpickled(_pickled)
    except Exception:  # then each process tries by itself, and the row says what is wrong
        _pickled, _job = b"", None


def begin(pickled: bytes, line: socket.socket) -> None:
    """Prepares a new process for a job."""
    global _pickled, _job, _outbox
    os.nice(NICE)
    if pickled != _pickled:
        _pickled, _job = pickled, None
    _outbox = Outbox(line)


def render(item: Item) -> Rendered | Unrendered | Split:
    """A row. What is large in its payload goes ahead, into memory that is shared."""
    global _job
    if _job is None:
        _job = _unpickled(_pickled)
    assert _outbox is not None
    outcome = _job.render(item)
    outcome = replace(outcome, fetched=traffic.take())
    if isinstance(outcome, Rendered):
        outcome = replace(outcome, payload=_outbox.send(outcome.payload))
    _tidy(isinstance(outcome, Rendered) and outcome.nbytes > TRIM)
    return outcome


def _unpickled(pickled: bytes) -> RenderJob:
    job = pickle.loads(pickled)
    assert isinstance(job, RenderJob)
    gc.collect()
    gc.freeze()  # a million objects that stay: looking through them takes half a second, and unshares their memory
    atexit.register(gc.unfreeze)  # else libraries in C++ complain at the end that theirs are left
    return job


def _tidy(large: bool) -> None:
    """Lets go of decoders, which refer to each other and hold 100 MB a video."""
    gc.collect()
    if large:
        ctypes.CDLL(None).malloc_trim(0)
