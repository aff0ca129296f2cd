"""How a job that nobody watches says how it went: a log file, a summary for machines, a command, a web address.

They are told of every end: done, failed, refused, interrupted. That one of them cannot be told is a note, and changes
neither the job nor its exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gemma4cli.cli import _errors, _output
from gemma4cli.cli._options import RunOptions, output_path

COMMAND_S, WEBHOOK_S = 600.0, 30.0
_OUTCOMES = {
    _errors.DONE: "done", _errors.FAILED: "failed", _errors.USAGE: "refused", _errors.FAILED_ROWS: "done_with_failures",
    _errors.INTERRUPTED: "interrupted",
}  # fmt: skip


@dataclass(slots=True)
class Finish:
    """What is known of a job's end.

    summary: of the run, where it came to its end and had something to do.  kept: rows of earlier runs that stay.
    """

    task: str
    output: str
    code: int = _errors.FAILED
    summary: dict[str, Any] | None = None
    kept: dict[str, int] = field(default_factory=dict)
    error: dict[str, str] | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def document(self) -> dict[str, Any]:
        """What is told of it."""
        return {
            "outcome": _OUTCOMES[self.code],
            "exit_code": self.code,
            "task": self.task,
            "output": self.output,
            "started": self.started.isoformat(timespec="seconds"),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "kept": self.kept,
            "error": self.error,
            "summary": self.summary,
        }


@contextlib.contextmanager
def finishing(task: str, options: RunOptions) -> Iterator[Finish]:
    """Tells whoever wants to know when the block ends, in whatever way.

    Raises:
        UsageError: a flag about it makes no sense; and what the block raises.
    """
    from gemma4cli.errors import Interrupted, JobError, UsageError

    if options.dry_run:
        yield Finish(task, "")
        return
    _refuse(options)
    _output.log_to(options.log_file)
    finish = Finish(task, options.output or f"gemma4-{task}")
    try:
        finish.output = output_path(task, options)
        yield finish
    except (UsageError, JobError) as error:
        finish.code = _errors.USAGE if isinstance(error, UsageError) else _errors.FAILED
        finish.error = {"message": str(error), "hint": error.hint}
        raise
    except (Interrupted, KeyboardInterrupt):
        finish.code = _errors.INTERRUPTED
        raise
    except Exception as error:
        finish.error = {"message": f"{type(error).__name__}: {error}", "hint": ""}
        raise
    finally:
        _tell(finish.document(), options)


def _refuse(options: RunOptions) -> None:
    from gemma4cli.errors import UsageError

    if options.summary_json == "-" and options.output == "-":
        raise UsageError("--summary-json - and -o - both want standard output", "Give one of them a file's name.")
    if options.webhook is not None and not _is_address(options.webhook):
        raise UsageError("--webhook is not an http(s) address", "Example: --webhook https://example.org/hooks/nightly")


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _tell(document: dict[str, Any], options: RunOptions) -> None:
    from gemma4cli import strict_json

    text = strict_json.encode(document, indent=2) + b"\n"
    for flag, value, tell in (
        ("--summary-json", options.summary_json, _write),
        ("--on-finish", options.on_finish, _run),
        ("--webhook", options.webhook, _post),
    ):
        if value is None:
            continue
        try:
            tell(value, text)
        except Exception as error:  # whatever it is, the job is over
            reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
            _output.print_line(f"note: {flag} was not told of the end: {reason[:300]}")


def _write(path: str, text: bytes) -> None:
    from gemma4cli import storage
    from gemma4cli.parts import whole_file

    if path == "-":
        from gemma4cli.cli._stdout import write_lines

        write_lines([text.rstrip(b"\n")])
    elif storage.is_remote(path):
        fs, there = storage.filesystem(path)
        fs.pipe_file(there, text)
    else:
        with whole_file(Path(path)) as temporary:
            temporary.write_bytes(text)


def _run(command: str, text: bytes) -> None:
    """The command gets the summary on standard input and the gist in its environment; what it prints is for people."""
    document = json.loads(text)
    told = {name: document[name] for name in ("outcome", "exit_code", "task", "output")}
    environment = {**os.environ, **{f"GEMMA4_FINISH_{name.upper()}": str(value) for name, value in told.items()}}
    done = subprocess.run(
        command,
        shell=True,
        input=text,
        stdout=sys.stderr.fileno() if sys.stderr is not None else subprocess.DEVNULL,
        env=environment,
        timeout=COMMAND_S,
    )
    if done.returncode:
        raise RuntimeError(f"the command ended with exit code {done.returncode}")


def _post(address: str, text: bytes) -> None:
    import httpx

    host = urlsplit(address).hostname  # the rest of an address is often the secret
    try:
        answer = httpx.post(address, content=text, headers={"content-type": "application/json"}, timeout=WEBHOOK_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RuntimeError(f"{host}: {error or type(error).__name__}") from None
    if not answer.is_success:
        raise RuntimeError(f"{host} answered {answer.status_code} {answer.reason_phrase}")
