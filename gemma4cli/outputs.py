"""Where an output goes, what lies there already, and the state folder that belongs to it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import socket
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import parts, storage
from gemma4cli.errors import FetchError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.media.fetch import path_of
from gemma4cli.records import Status

STATE = ".gemma4cli"
LOCK = "lock"
_LOCK_ATTEMPTS = 5
_EVER = frozenset({"row_index", "id", "source", "modality", "task", "status", "text", "error_stage", "error_type",
                   "error_message", "finish_reason", "output_tokens", "attempts"})  # fmt: skip
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_OTHER_FORMATS = frozenset({".json", ".csv", ".tsv", ".txt", ".arrow", ".feather", ".xlsx", ".srt", ".vtt", ".gz"})


class Format(StrEnum):
    """The forms an output can have."""

    FOLDER = "folder"
    PARQUET = "parquet"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class Output:
    """A place for output.

    path: the data set's folder, or the file.
    state: the folder that holds what is not data: parts on the way, the engine's log, summary.json.
    parts: the folder for the parts on the way: visible for a folder, as a data set that grows; else in the state.
    apart: finished data must not take the names of parts: where it is sent, nothing takes the place of others at once.
    writer: who is known to be writing to it, in words; empty where the lock tells.
    """

    format: Format
    path: Path
    state: Path
    parts: Path
    apart: bool = False
    writer: str = ""


def locate(output: str) -> Output:
    """What the user's text means: `X.parquet` and `X.jsonl` are files, anything else is a folder.

    Raises:
        UsageError: the extension is one of a format that cannot be written.
    """
    if output[:7].lower() == "file://":
        try:
            output = path_of(output)
        except FetchError as error:
            raise UsageError(str(error), "name a folder or a file by its path") from error
    scheme = _SCHEME.match(output)
    if scheme is not None and not storage.is_remote(output) and not Path(scheme[0]).exists():
        hint = (
            "name a folder or a file by its path, or by the URI of a store that fsspec opens, such as s3://bucket/out"
        )
        raise UsageError(f"cannot write to {printable(scheme[0])}: {printable(output)}", hint)
    path = Path(output)
    suffix = "" if output.endswith("/") else path.suffix.lower()
    if suffix in _OTHER_FORMATS and not path.is_dir():
        hint = "name a folder (Parquet parts), a .parquet file, a .jsonl file, or - for JSONL on standard output"
        raise UsageError(f"cannot write {suffix} files: {printable(output)}", hint)
    if suffix in {".parquet", ".pq", ".jsonl", ".ndjson"}:
        state = path.parent / STATE / path.name
        kind = Format.PARQUET if suffix in {".parquet", ".pq"} else Format.JSONL
        return Output(kind, path, state, state / "parts")
    return Output(Format.FOLDER, path, path / STATE, path / "data")


def claim(output: Output, overwrite: bool) -> IO[str]:
    """Makes the output's folders and takes its lock, which `release` gives back.

    Nothing that this program did not write is removed, whatever `overwrite` says.

    Raises:
        UsageError: something of others lies there, another run is writing there, or it cannot be written to.
    """
    with writable(output):
        lock = _locked(_prepared(output))
        try:
            if output.format is Format.FOLDER:
                parts.settle(output.state / "sorted", output.parts)
            if overwrite:
                _remove(output)
            output.parts.mkdir(exist_ok=True)
        except BaseException:
            release(lock)
            raise
    return lock


def share(output: Output) -> IO[str]:
    """Takes a share of the output's lock: others may have one too, but nobody `claim` the whole.

    Raises:
        UsageError: something of others lies there, somebody has the whole, or it cannot be written to.
    """
    with writable(output):
        return _locked(_prepared(output), whole=False)


@contextlib.contextmanager
def writable(output: Output) -> Iterator[None]:
    """Makes a UsageError of whatever keeps the block from writing to an output."""
    try:
        yield
    except OSError as error:
        message = f"cannot write to {printable(str(output.path))}: {error.strerror or error}"
        raise UsageError(message, "choose an output in a folder that you may write to") from error


def release(lock: IO[str]) -> None:
    """Gives the output back. A process that dies gives it back too, but leaves its name in the lock."""
    if not lock.closed:
        with contextlib.suppress(OSError):
            lock.truncate(0)
        lock.close()


def owner(output: Output) -> str:
    """Who is writing to the output now, in words; empty if nobody is."""
    if output.writer:
        return output.writer
    try:
        with (output.state / LOCK).open(encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _worded(lock.read())
    except OSError:
        pass
    return ""


def document(output: Output, name: str) -> dict[str, Any]:
    """A document of the state folder; empty where it is missing or damaged."""
    try:
        found = json.loads((output.state / name).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _prepared(output: Output) -> Output:
    """The output, with the folder of its state, where nothing of others lies in its place."""
    if not output.path.parent.is_dir():
        parent = printable(str(output.path.parent))
        raise UsageError(f"no such folder: {parent}", f"make it first: mkdir -p {parent}")
    refuse_foreign(output)
    output.state.mkdir(parents=True, exist_ok=True)
    return output


def _locked(output: Output, whole: bool = True) -> IO[str]:
    lock = (output.state / LOCK).open("a+", encoding="utf-8")
    # A child that is forked while the job runs must not hold the output when the job has died.
    os.register_at_fork(after_in_child=functools.partial(_close, weakref.ref(lock)))
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(lock, (fcntl.LOCK_EX if whole else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt + 1 < _LOCK_ATTEMPTS:  # it may be a look at who the owner is
                time.sleep(0.02)
                continue
            lock.seek(0)
            text = lock.read()
            lock.close()
            who = _worded(text) if text else "one or more of its shards"
            message = f"another gemma4 is writing to {printable(str(output.path))}: {who}"
            raise UsageError(message, "wait for it, or choose another output") from None
        except OSError:  # a file system without locks
            break
    if not whole:
        return lock
    lock.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname()}, lock)
    lock.flush()
    return lock


def _worded(text: str) -> str:
    try:
        found = json.loads(text)
        return f"process {int(found['pid'])} on {printable(str(found['host']))}"
    except (ValueError, TypeError, KeyError):
        return "process unknown"


def _close(lock: weakref.ref[IO[str]]) -> None:
    held = lock()
    if held is not None:
        with contextlib.suppress(OSError):
            held.close()


def refuse_foreign(output: Output) -> None:
    """Raises UsageError where something of others lies in the output's place; OSError where that cannot be told."""
    shown = printable(str(output.path))
    if output.format is not Format.FOLDER:
        if output.path.is_dir():
            raise UsageError(f"{shown} is a folder", "choose another name for the output file")
        if os.path.lexists(output.path) and not is_ours(output):
            message = f"{shown} was not written by gemma4, so it is left alone"
            raise UsageError(message, "delete it yourself, or choose another output")
        return
    if not output.path.is_dir():
        if os.path.lexists(output.path):
            raise UsageError(f"{shown} is a file, not a folder", "name a folder, a .parquet file or a .jsonl file")
        return
    # The state of single files lies in folders of their own: only a folder's own lock says that its data is ours.
    if not (output.state / LOCK).exists() and any(path.name != STATE for path in output.path.iterdir()):
        message = f"{shown} is a folder with other things in it"
        raise UsageError(message, f"name a new or empty folder, such as {shown.rstrip('/')}/out")
    strange = [path.name for path in output.parts.iterdir() if not parts.is_part(path)] if output.parts.is_dir() else []
    if strange:
        message = f"{printable(str(output.parts))} holds a file that gemma4 did not write: {printable(min(strange))}"
        raise UsageError(message, "move it away, or choose another output")


def is_ours(output: Output) -> bool:
    """A file is ours if it says so itself; an empty one or a damaged Parquet file, if our state lies beside it."""
    try:
        if output.format is Format.PARQUET:
            return parts.MARK in (pq.read_schema(output.path).metadata or {})
        with output.path.open("rb") as file:
            line = file.readline()
        return is_row(json.loads(line)) if line else output.state.is_dir()
    except pa.ArrowException:  # damaged: then its keys, which lie beside it, say whose it is
        return _starts_as_parquet(output.path) and any(output.state.glob("keys-*.parquet"))
    except (OSError, ValueError):
        return False


def _starts_as_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in (b"PAR1", b"")


def is_row(record: object) -> bool:
    """Whether a line's object has a row's columns. Those that every version has written are enough."""
    return (
        isinstance(record, dict)
        and record.keys() >= _EVER
        and type(record["row_index"]) is int
        and isinstance(record["id"], str)
        and record["status"] in list(Status)
    )


def _remove(output: Output) -> None:
    if output.format is not Format.FOLDER:
        output.path.unlink(missing_ok=True)
    elif output.parts.is_dir():
        for path in output.parts.iterdir():
            path.unlink()
    for path in output.state.iterdir():
        if path.name == LOCK or (path / LOCK).exists():  # the latter is the state of a file beside the data
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
