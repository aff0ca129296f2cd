"""From exceptions to words and exit codes. One table, so that every command ends alike."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer

DONE, FAILED, USAGE, FAILED_ROWS, INTERRUPTED = 0, 1, 2, 3, 130


def reports_errors(command: Callable[..., int]) -> Callable[..., None]:
    """Runs a command and exits with its code; an exception becomes its message, its advice and its exit code."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        from gemma4cli.errors import Interrupted, JobError, UsageError

        try:
            code = command(*args, **kwargs)
        except UsageError as error:
            _say("usage", str(error), error.hint)
            code = USAGE
        except JobError as error:
            _say("error", str(error), error.hint)
            code = FAILED
        except (Interrupted, KeyboardInterrupt):
            _say("interrupted", "what was finished is kept", "Run the same command again to go on where it stopped.")
            code = INTERRUPTED
        raise typer.Exit(code)

    return wrapper


def _say(label: str, message: str, hint: str) -> None:
    from gemma4cli.cli._output import console

    console().print(f"[bold red]{label}:[/] ", end="")
    console().print(message, markup=False, highlight=False, soft_wrap=True)
    if hint:
        console().print(hint, markup=False, highlight=False, soft_wrap=True)
