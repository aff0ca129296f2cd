"""The exceptions of the program.

Gemma4Error
├── UsageError          the command cannot run as given; found before any model loads (exit 2)
├── JobError            the job cannot go on (exit 1)
│   ├── ModelError      the checkpoint is missing, unreadable or unfit
│   └── EngineError     the engine did not start, or died
├── Interrupted         somebody asked the job to stop, and it has (exit 130)
└── RowError            one row has no answer; becomes a `failed` row, never ends the job
    ├── FetchError      the bytes cannot be had
    ├── DecodeError     the bytes are not the media they should be
    ├── RenderError     the row does not fit the model
    └── ParseError      the manifest row or the answer cannot be read

Messages are for people: what happened, to which row or flag, and what to do about it.
"""

from __future__ import annotations

from gemma4cli.records import Failure, Stage


class Gemma4Error(Exception):
    """Base of every exception that this package raises on purpose."""


class UsageError(Gemma4Error):
    """The command cannot run as given. `hint` says what would work."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class JobError(Gemma4Error):
    """The job cannot go on. `hint` says what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ModelError(JobError):
    """The checkpoint is missing, unreadable, or cannot do what was asked of it."""


class EngineError(JobError):
    """The engine did not start, or died in the middle of the job."""


class Interrupted(Gemma4Error):  # noqa: N818  # nothing went wrong
    """Somebody asked the job to stop, and it has. What was finished is kept."""


class RowError(Gemma4Error):
    """One row has no answer. `type` is a short stable word that users group failures by.

    attempts: how often it was tried, where trying again could have helped.
    """

    stage: Stage
    attempts: int = 1

    def __init__(self, type: str, message: str) -> None:
        super().__init__(message)
        self.type = type

    def failure(self) -> Failure:
        return Failure(self.stage, self.type, str(self))

    def __reduce__(self) -> tuple[type[RowError], tuple[str, str]]:
        # The default would call the class with the message alone; rows fail in other processes too.
        return type(self), (self.type, str(self))


class FetchError(RowError):
    stage = Stage.FETCH


class DecodeError(RowError):
    stage = Stage.DECODE


class RenderError(RowError):
    stage = Stage.RENDER


class ParseError(RowError):
    stage = Stage.PARSE
