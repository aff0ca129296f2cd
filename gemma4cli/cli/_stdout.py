"""Standard output of commands whose data are lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from gemma4cli.cli._descriptors import discard_standard_output


def write_lines(lines: Iterable[bytes]) -> None:
    """Lines to standard output; a reader that goes away has seen enough.

    Raises:
        UsageError: it is closed.
        JobError: it cannot be written to.
    """
    from gemma4cli.errors import JobError, UsageError

    if sys.stdout is None:
        raise UsageError("standard output is closed", "Leave out >&-.")
    try:
        for line in lines:
            sys.stdout.buffer.write(line + b"\n")
        sys.stdout.flush()
    except BrokenPipeError:
        discard_standard_output()
    except OSError as error:
        discard_standard_output()
        raise JobError(f"cannot write to standard output: {error.strerror or error}") from error
