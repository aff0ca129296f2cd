"""To Ray and back: a cluster, one of this machine's own where none is named, and its errors in our words."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from typing import Any

from gemma4cli.errors import Gemma4Error, JobError, UsageError
from gemma4cli.escaping import first_line, printable

_CONNECT_S = 10.0
_OURS = re.compile(r"^gemma4cli\.errors\.\w+: (.+)$", re.MULTILINE)  # the last line of a traceback
_KEPT = "What was written is kept; the same command goes on from there. Ray's logs are in /tmp/ray/session_latest/logs."


@contextlib.contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Ray, at an address or on this machine alone, while the block lasts.

    Raises:
        UsageError: it is not installed.
        JobError: it cannot be reached.
    """
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray of our own tells nobody of it
        import ray
        from ray.data import DataContext
    except ImportError as error:
        raise UsageError(f"--on ray needs Ray: {error}", "Install it: pip install 'gemma4cli[ray]'.") from error
    if address is not None:
        _look_for(address)
    ours = not ray.is_initialized()
    if ours:
        more = {} if address else {"include_dashboard": False}
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **more)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = first_line(error)
            raise JobError(
                f"no Ray at {address or 'this machine'}: {first}", "See ray status, and --address."
            ) from error
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield
    finally:
        if ours:
            ray.shutdown()


def _look_for(address: str) -> None:
    """Raises JobError where nobody answers at HOST:PORT: Ray itself would look for minutes, without a word."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            message = f"no Ray at {printable(address)}: {getattr(error, 'strerror', None) or error}"
            raise JobError(message, "See ray status there, and --address.") from error


def got(refs: list[Any]) -> list[Any]:
    import ray

    with reported():
        return list(ray.get(refs))


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Ray's errors, which wrap those of tasks and actors, as the errors that they are."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:  # which may be one of ours as well, with a traceback for its message
        causes: list[BaseException] = [error]
        while (inner := getattr(causes[-1], "cause", None) or causes[-1].__cause__) is not None:
            causes.append(inner)
        for cause in causes:
            if isinstance(cause, Gemma4Error) and not isinstance(cause, RayError):
                raise cause from None
        ours = _OURS.findall(str(error))  # of an actor it is in the text alone
        if ours:
            raise JobError(printable(ours[-1]), _KEPT) from error
        said = str(causes[-1]).strip().split("\n")[0]
        raise JobError(f"Ray: {type(causes[-1]).__name__}: {printable(said)}", _KEPT) from error
