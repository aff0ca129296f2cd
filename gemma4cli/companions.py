"""The files that go with rows: captions for trainers, transcripts for players, beside the inputs or mirrored elsewhere.

They are written when the output has kept a row, lest a crash leave a file for which its row is skipped and that no
output holds; and for rows of earlier runs that lack theirs. A file that cannot be written costs no row its answer: it
is told of once for each reason, and counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4cli import subtitles
from gemma4cli.errors import RowError
from gemma4cli.escaping import printable
from gemma4cli.records import Item, Row, Status
from gemma4cli.sidecars import CaptionOptions, Claims, Existing, is_done, sidecar_path, write_caption, write_whole
from gemma4cli.speech.stitch import Segment, Transcript

_IN_JSON = ("id", "source", "modality", "width", "height", "duration_s", "frames", "finish_reason")


class Form(Protocol):
    """Which files a row gets, and what is in them."""

    def paths(self, item: Item) -> tuple[Path, ...]:
        """Raises SidecarError where there is no place for them."""
        ...

    def done(self, paths: Sequence[Path]) -> bool:
        """Whether a row need not run, as its files are there."""
        ...

    def stays(self, paths: Sequence[Path]) -> bool:
        """Whether the files of a row that an earlier run made are as they should be."""
        ...

    def write(self, paths: Sequence[Path], row: Row) -> None:
        """Raises SidecarError, or JobError when the disk is full."""
        ...


@dataclass(frozen=True, slots=True)
class CaptionForm:
    """One caption file for each row."""

    options: CaptionOptions

    def paths(self, item: Item) -> tuple[Path, ...]:
        options = self.options
        return (_path(item, options.kind.value, options.folder, options.whole_name),)

    def done(self, paths: Sequence[Path]) -> bool:
        return all(is_done(path, self.options) for path in paths)

    def stays(self, paths: Sequence[Path]) -> bool:
        return self.options.existing is Existing.SKIP and all(path.exists() for path in paths)

    def write(self, paths: Sequence[Path], row: Row) -> None:
        fields: dict[str, Any] = {name: getattr(row, name) for name in _IN_JSON}
        for path in paths:
            write_caption(path, row.text or "", self.options, fields)


@dataclass(frozen=True, slots=True)
class TranscriptForm:
    """A file in each of the formats for each row, written over what is there."""

    formats: tuple[subtitles.Format, ...]
    folder: Path | None = None
    cues: subtitles.CueOptions | None = None
    whole_name: bool = False

    def paths(self, item: Item) -> tuple[Path, ...]:
        return tuple(_path(item, format_.value, self.folder, self.whole_name) for format_ in self.formats)

    def done(self, paths: Sequence[Path]) -> bool:
        return False

    def stays(self, paths: Sequence[Path]) -> bool:
        return all(path.exists() for path in paths)

    def write(self, paths: Sequence[Path], row: Row) -> None:
        segments = (Segment(s["start"], s["end"], s["text"], s["tokens"] or 0) for s in row.segments or ())
        transcript = Transcript(row.text or "", tuple(segments))
        for path, format_ in zip(paths, self.formats, strict=True):
            write_whole(path, subtitles.render(transcript, format_, self.cues).encode())


class Companions:
    """Writes the files of a job's rows, and knows which rows need not run for theirs are there.

    say: takes a line for people, the first time that a file cannot be written for a reason.
    written, problems: how many files were written, and how many rows lack theirs, by the type of the reason.
    """

    def __init__(self, form: Form, say: Callable[[str], None]) -> None:
        self._form, self._say = form, say
        self._claims = Claims()
        self._taken: deque[tuple[Item | None, Row]] = deque()
        self.written = 0
        self.problems: Counter[str] = Counter()

    def done(self, item: Item) -> bool:
        """Whether the row is to be skipped."""
        if item.failure is not None:
            return False
        try:
            return self._form.done(self._claimed(item))
        except (RowError, OSError):  # told when the row is written
            return False

    def lacking(self, item: Item) -> bool:
        """Whether a row of an earlier run is to have its files written now."""
        try:
            return not self._form.stays(self._claimed(item))
        except OSError:  # a folder that may not be read: writing tells
            return True
        except RowError as error:
            self._note(item, error)
            return False

    def write(self, item: Item | None, row: Row) -> None:
        """Writes the files of a row that has an answer. Raises JobError when the disk is full."""
        if item is None or row.status is not Status.OK:
            return
        try:
            paths = self._claimed(item)
            self._form.write(paths, row)
            self.written += len(paths)
        except RowError as error:
            self._note(item, error)

    def take(self, item: Item | None, row: Row) -> None:
        """Takes a row of this run, whose files are to be written later."""
        self._taken.append((item, row))

    def write_but(self, latest: int) -> None:
        """Writes the files of the rows taken but for so many of the latest. Raises JobError when the disk is full."""
        while len(self._taken) > latest:
            self.write(*self._taken.popleft())

    def catch_up(self, kept: Iterable[tuple[Item, Row]]) -> None:
        """Writes the files of rows of earlier runs. Raises JobError when the disk is full."""
        for item, row in kept:
            self.write(item, row)

    def summary(self) -> dict[str, Any]:
        """What the run summary says of the files."""
        return {"written": self.written, "problems": dict(self.problems)}

    def _claimed(self, item: Item) -> tuple[Path, ...]:
        paths = self._form.paths(item)
        for path in paths:
            self._claims.claim(path, item.row_index)
        return paths

    def _note(self, item: Item, error: RowError) -> None:
        self.problems[error.type] += 1
        if self.problems[error.type] == 1:
            self._say(f"no file beside row {printable(item.id)}: {error} (told once; {error.type})")


def _path(item: Item, extension: str, folder: Path | None, whole_name: bool) -> Path:
    from gemma4cli.records import Media

    medium = next(iter(item.media), Media(""))
    return sidecar_path(medium, item.id, extension, folder, whole_name=whole_name)
