"""Outputs elsewhere: a likeness of one in a temporary folder, and every change to it sent there.

A store has no rename and no lock, but puts objects in place whole. So each file is sent as one object, in an order that
is right wherever it breaks off: keys before the data that they belong to, new data under names that nothing has, and
what is gone here goes there last. Whoever goes on later reads what is there, as after a crash here: of rows that are
there twice one counts, and they are put in order again.

A lease stands for the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import posixpath
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gemma4cli import lease, storage
from gemma4cli.errors import JobError, UsageError
from gemma4cli.lease import Lease
from gemma4cli.outputs import LOCK, Format, Output, locate
from gemma4cli.shards import FOLDER as SHARDS

_TRIES = 3
_AT_ONCE = 64 << 20  # bytes of a file that is sent from memory
_PAUSE_S = 1.0
_BESIDE = ("README.md", "openai.jsonl")  # in the folder of a data set
_LOGS = ("engine.log",)  # grow all the time: sent at the end


class Mirror:
    """The likeness of an output, for as long as this process needs it.

    local, place: its path here, and what whoever works on outputs makes of it.
    """

    def __init__(self, uri: str, shard: str = "") -> None:
        """Fetches what is there: all of it, or without the rows of other shards than the one that is worked on.

        Raises:
            UsageError: it cannot be read, or holds what is not ours.
        """
        self.uri = uri
        self._folder = Path(tempfile.mkdtemp(prefix="gemma4-"))
        self._ended = atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        with self._reasons():
            self._fs, path = storage.filesystem(uri)
        self._path = path.rstrip("/")
        self.local = str(self._folder / posixpath.basename(self._path))
        self.place = replace(locate(self.local), apart=True)
        self._scope = f"{self._state_name()}/{SHARDS}/{shard}" if shard else ""
        self._there: dict[str, tuple[int, int, int]] = {}  # by their names, as they were sent or fetched
        self._lease: Lease | None = None
        self._sending = threading.Lock()
        with self._reasons():
            self._fetch()

    @property
    def _home(self) -> str:
        """What names are relative to: the folder, or the one that a file is in."""
        return self._path if self.place.format is Format.FOLDER else posixpath.dirname(self._path).rstrip("/")

    @property
    def _here(self) -> Path:
        return self.place.path if self.place.format is Format.FOLDER else self.place.path.parent

    def claim(self) -> list[str]:
        """Takes the lease of the output, or of the shard; notes for people where that cannot be sure.

        Raises:
            UsageError: another process has it.
        """
        with self._reasons():
            self._fs.invalidate_cache()
            whole, own, shown = self._lease_of(""), self._lease_of(self._scope), storage.shown(self.uri)
            self._lease = Lease(self._fs, own, [whole] if self._scope else self._leases_of_shards(), shown)
        if self._lease.sure:
            return []
        return [f"{shown}: the store cannot keep two processes apart; see that only one writes there"]

    def send(self, *, last: bool = False) -> None:
        """Makes the output what its likeness is.

        Raises:
            JobError: it cannot be written, or somebody else has the lease.
        """
        with self._sending:
            for attempt in range(_TRIES):
                try:
                    if self._lease is not None:
                        self._lease.check()
                    self._send(last=last)
                    return
                except JobError:
                    raise
                except Exception as error:  # each file system has exceptions of its own
                    if attempt + 1 == _TRIES:
                        message = f"cannot write to {storage.shown(self.uri)}: {storage.reason(error)}"
                        raise JobError(message, "put that right, and run the same command again") from error
                    time.sleep(_PAUSE_S * 2**attempt)

    def close(self) -> None:
        """Gives the lease back and forgets the likeness."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        atexit.unregister(self._ended)
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Errors from the block name the output, where they name its likeness."""
        try:
            yield
        except (UsageError, JobError) as error:
            self.name(error)
            raise

    def name(self, error: UsageError | JobError) -> None:
        """Gives the output its own name in what an error says."""
        error.args = tuple(self.named(str(arg)) for arg in error.args)
        error.hint = self.named(error.hint)

    def named(self, text: str) -> str:
        """A text for people, with the output's own names."""
        return text.replace(self.local, storage.shown(self.uri))

    def writer(self) -> str:
        """Who has the lease now, in words; empty if nobody has."""
        found = (lease.read(self._fs, name) for name in [self._lease_of(""), *self._leases_of_shards()])
        return next((lease.owner(each) for each in found if each and lease.is_live(each)), "")

    def _fetch(self) -> None:
        self._fs.invalidate_cache()
        state = self._state_name()
        names = self._names()
        ours = any(name.startswith(state + "/") for name in names)
        if not ours and names and self.place.format is Format.FOLDER:
            raise UsageError(
                f"{storage.shown(self.uri)} is a folder with other things in it", "name a new or empty folder"
            )
        wanted = [name for name in names if self._is_ours(name)]
        targets = [self._here / name for name in wanted]
        for target in targets:
            target.parent.mkdir(parents=True, exist_ok=True)
        if wanted:
            self._fs.get([f"{self._home}/{name}" for name in wanted], [str(target) for target in targets])
        if ours:
            self.place.state.mkdir(parents=True, exist_ok=True)
            (self.place.state / LOCK).touch()  # says that the folder is ours
        self._there = {name: _stamp(target) for name, target in zip(wanted, targets, strict=True)}

    def _names(self) -> list[str]:
        """The files there, relative to `_home`: all of a folder's; of a file, it and its state."""
        roots = [self._path]
        if self.place.format is not Format.FOLDER:
            roots.append(f"{self._home}/{self._state_name()}")
        found: list[str] = []
        for root in roots:
            with contextlib.suppress(FileNotFoundError):
                found += [name.removeprefix(self._home + "/") for name in self._fs.find(root)]
        return sorted(set(found))

    def _is_ours(self, name: str) -> bool:
        """Whether a file is part of the likeness: what others put there, and the data of other shards, is not."""
        if name.endswith(f"/{lease.NAME}") or name.rsplit("/", 1)[-1] in _LOGS:
            return False
        folders = f"{self._state_name()}/", f"{self.place.parts.name}/"
        if self.place.format is Format.FOLDER and not name.startswith(folders) and name not in _BESIDE:
            return False
        of_shard = self._scope and name.startswith(f"{self._state_name()}/{SHARDS}/")
        return not (of_shard and "/data/" in name) or name.startswith(f"{self._scope}/")

    def _state_name(self) -> str:
        return str(self.place.state.relative_to(self._here))

    def _send(self, *, last: bool) -> None:
        now = {}
        for path in self._here.rglob("*"):
            name = str(path.relative_to(self._here))
            passing = path.name == LOCK or path.name.endswith(".tmp") or name.startswith(f"{self._state_name()}/sorted")
            if passing or not path.is_file() or (path.name in _LOGS and not last):
                continue
            now[name] = _stamp(path)
        fresh = [name for name, stamp in now.items() if self._there.get(name) != stamp]
        for name in sorted(fresh, key=_rank):
            if now[name][0] <= _AT_ONCE:
                self._fs.pipe_file(f"{self._home}/{name}", (self._here / name).read_bytes())
            else:
                self._fs.put_file(str(self._here / name), f"{self._home}/{name}")
            self._there[name] = now[name]
        gone = [name for name in self._there if name not in now and name.rsplit("/", 1)[-1] not in _LOGS]
        for name in sorted(gone, key=_rank, reverse=True):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(f"{self._home}/{name}")
            del self._there[name]

    def _lease_of(self, scope: str) -> str:
        return f"{self._home}/{scope or self._state_name()}/{lease.NAME}"

    def _leases_of_shards(self) -> list[str]:
        folder = f"{self._home}/{self._state_name()}/{SHARDS}"
        try:
            return [name for name in self._fs.find(folder) if name.endswith(f"/{lease.NAME}")]
        except FileNotFoundError:
            return []

    @contextlib.contextmanager
    def _reasons(self) -> Iterator[None]:
        """Makes usage errors of what the store says."""
        try:
            yield
        except UsageError:
            raise
        except ImportError as error:
            raise UsageError(f"{storage.shown(self.uri)}: {storage.reason(error)}", storage.INSTALL) from error
        except Exception as error:  # each file system has exceptions of its own
            message = f"cannot use {storage.shown(self.uri)} for output: {storage.reason(error)}"
            raise UsageError(message, "is the address right, and may you write there?") from error


def likeness(uri: str) -> Output:
    """An output elsewhere, to look at: its likeness here, for as long as the process lasts.

    Raises:
        UsageError: it cannot be read.
    """
    mirror = Mirror(uri)
    return replace(mirror.place, writer=mirror.writer())


def _rank(name: str) -> tuple[int, str]:
    """The order in which files are sent: keys, then data, then what is said of them."""
    base = name.rsplit("/", 1)[-1]
    return (0 if base.startswith("keys-") else 1 if base.endswith((".parquet", ".jsonl")) else 2, name)


def _stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino
