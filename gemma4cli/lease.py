"""What stands for a lock where there is none: an object of a store, with the name of its owner and a time.

Where a store can refuse to create what is there (S3, Google Cloud Storage, memory) only one of two takes it; elsewhere
the last one does, and both look again before they send anything. It is renewed while its owner lives. Where it was not
for a while, or its owner was a process of this machine that is no more, it is nobody's.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any

from gemma4cli.errors import JobError, UsageError

NAME = "lease.json"
STALE_S = 600.0  # without renewal, after which it is nobody's
RENEW_S = 60.0


class Lease:
    """A lease that this process has, until it is released.

    sure: whether the store saw to it that nobody else has it.
    """

    def __init__(self, fs: Any, path: str, others: Iterable[str], shown: str) -> None:
        """Takes it.

        Args:
            others: leases that nobody may have meanwhile.
            shown: the output, for messages.

        Raises:
            UsageError: somebody has it, or one of the others.
        """
        self._fs, self._path, self._shown = fs, path, shown
        self._mine = {
            "pid": os.getpid(), "host": socket.gethostname(), "token": secrets.token_hex(8), "time": time.time()
        }  # fmt: skip
        for each in dict.fromkeys((*others, path)):
            self._refuse_taken(each)
        self.sure = self._put()
        self._over = threading.Event()
        threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def check(self) -> None:
        """Raises JobError where somebody else has taken it over."""
        found = read(self._fs, self._path)
        if found and found.get("token") != self._mine["token"]:
            raise JobError(
                f"another gemma4 has taken {self._shown} over", "wait for it, then run the same command again"
            )

    def release(self) -> None:
        """Gives it back. Where that does not work it goes stale by itself."""
        self._over.set()
        with contextlib.suppress(Exception):  # each file system has exceptions of its own
            if read(self._fs, self._path).get("token") == self._mine["token"]:
                self._fs.rm_file(self._path)

    def _refuse_taken(self, path: str) -> None:
        lease = read(self._fs, path)
        if not lease:
            return
        if not is_live(lease) or _is_dead(lease):
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)
            return
        hint = f"wait for it: {STALE_S / 60:.0f} minutes if it has died; or choose another output"
        raise UsageError(f"another gemma4 is writing to {self._shown}: {owner(lease)}", hint)

    def _put(self) -> bool:
        data = json.dumps(self._mine).encode()
        try:
            self._fs.pipe_file(self._path, data, mode="create")
            return True
        except FileExistsError:
            message = f"another gemma4 began to write to {self._shown} just now"
            raise UsageError(message, "wait for it, and try again") from None
        except (ValueError, TypeError, NotImplementedError):  # it cannot
            self._fs.pipe_file(self._path, data)
            return False

    def _renew(self) -> None:
        while not self._over.wait(RENEW_S):
            with contextlib.suppress(Exception):  # the next time will do
                if read(self._fs, self._path).get("token") == self._mine["token"]:
                    self._mine["time"] = time.time()
                    self._fs.pipe_file(self._path, json.dumps(self._mine).encode())


def read(fs: Any, path: str) -> dict[str, Any]:
    """What a lease says; empty where there is none, or nothing that could be one. Raises what the store does."""
    try:
        found = json.loads(fs.cat_file(path))
        return {**found, "time": float(found["time"])}
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return {}


def is_live(lease: dict[str, Any]) -> bool:
    """Whether it was renewed lately."""
    return bool(time.time() - lease["time"] <= STALE_S)


def owner(lease: dict[str, Any]) -> str:
    """Who has it, in words."""
    return f"process {lease.get('pid')} on {lease.get('host')}"


def _is_dead(lease: dict[str, Any]) -> bool:
    """Whether the owner was a process of this machine that is no more."""
    if lease.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(lease["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return False
