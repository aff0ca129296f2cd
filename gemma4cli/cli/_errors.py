"""From exceptions to words and exit codes. One table, so that every command ends alike."""

from __future__ import annotations

import functools
import os
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
            from gemma4cli.sink import OutputClosedError

            if not isinstance(error, OutputClosedError):  # `-o - | head`: its reader has seen enough
                _say("error", str(error), error.hint)
            code = FAILED
        except (Interrupted, KeyboardInterrupt):
            _say("interrupted", "what was finished is kept", "Run the same command again to go on where it stopped.")
            code = INTERRUPTED
        except (typer.Exit, typer.Abort):
            raise
        except BrokenPipeError:  # whoever read the messages has gone
            code = FAILED
        except Exception as error:
            _say_internal(error, [*args, *kwargs.values()], kwargs.get("verbose"))
            code = FAILED
        raise typer.Exit(code)

    return wrapper


def _say_internal(error: Exception, values: list[Any], verbose: bool | None) -> None:
    """A fault of this program's own: one line and what to do about it, with -v after its traceback."""
    from gemma4cli.cli._output import console
    from gemma4cli.escaping import printable

    has_flag = verbose is not None or any(hasattr(value, "verbose") for value in values)
    asked = verbose or any(getattr(value, "verbose", False) for value in values) or os.environ.get("GEMMA4_VERBOSE")
    if asked:
        import traceback

        text = "".join(traceback.format_exception(error)).rstrip()
        console().print(text, markup=False, highlight=False, soft_wrap=True)
    advice = "" if asked else f" Run it again with {'-v' if has_flag else 'GEMMA4_VERBOSE=1'} for the traceback."
    what = " ".join(str(error).split())
    _say(
        "internal error",
        printable(f"{type(error).__name__}: {what}"),
        f"This is a fault of gemma4: please report it, with the command.{advice}",
    )


def _say(label: str, message: str, hint: str) -> None:
    from gemma4cli.cli._output import console, write_log

    write_log(f"{label}: {message}")
    if hint:
        write_log(hint)
    console().print(f"[bold red]{label}:[/] ", end="")
    console().print(message, markup=False, highlight=False, soft_wrap=True)
    if hint:
        console().print(hint, markup=False, highlight=False, soft_wrap=True)
