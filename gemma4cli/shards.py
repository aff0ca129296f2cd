"""Shares of a job for processes that know nothing of one another: which rows each does, and where it keeps them.

Shard I of N has the I-th of N equal runs of rows, in the order of the input. So a shard reads little of what is not
its own, its rows are in order when it is done, and putting shards together is a matter of names. It keeps its rows
below the state folder of the output, in a data set with a ledger and a lock of its own; of the output's lock all
shards hold a share, which keeps out whoever wants the whole.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from dataclasses import asdict, dataclass
from typing import IO

from gemma4cli import outputs, parts
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.outputs import Format, Output

FOLDER = "shards"
_DOCUMENT = "shard.json"
_TEXT = re.compile(r"\s*(\d{1,9})\s*/\s*(\d{1,9})\s*")


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows `first` to `stop`, without the latter, of `total`: share `number`, from 0, of `of`."""

    number: int
    of: int
    first: int
    stop: int
    total: int

    @property
    def name(self) -> str:
        return f"{self.number}-of-{self.of}"

    @property
    def rows(self) -> int:
        return self.stop - self.first


def parse(text: str) -> tuple[int, int]:
    """`I/N`, as `--shard` has it.

    Raises:
        UsageError: it is not that, or I is not one of 0 to N-1.
    """
    match = _TEXT.fullmatch(text)
    number, of = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 0 <= number < of:
        raise UsageError(
            f"--shard {printable(text)} is not I/N with I from 0 to N-1",
            "Example for a Slurm array of 16: --shard $SLURM_ARRAY_TASK_ID/16, with --array=0-15.",
        )
    return number, of


def cut(number: int, of: int, total: int) -> Shard:
    """One of `of` shares of `total` rows; they differ by a row at most."""
    return Shard(number, of, total * number // of, total * (number + 1) // of, total)


def place_of(output: Output, name: str) -> Output:
    """Where a shard keeps its rows, whatever the form of the output."""
    path = output.state / FOLDER / name
    return Output(Format.FOLDER, path, path / outputs.STATE, path / "data", output.apart)


def begun(output: Output) -> list[Shard]:
    """The shards that have a place below an output, by their rows. One whose document is damaged counts as not begun.

    Raises:
        OSError: the folder cannot be read.
    """
    folder = output.state / FOLDER
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(TypeError):
            found.append(Shard(**outputs.document(place_of(output, path.name), _DOCUMENT)))
    return sorted(found, key=lambda shard: (shard.first, shard.stop, shard.number))


def claim(output: Output, shard: Shard, overwrite: bool) -> tuple[Output, list[IO[str]]]:
    """The shard's place, made where it is not there, and the locks that keep others out of it.

    Raises:
        UsageError: the output is being written as a whole or holds rows that are of no shard; others have another
            division or another input; or it cannot be written to.
    """
    shown = printable(str(output.path))
    share = outputs.share(output)
    try:
        _refuse_whole(output, shown)
        _refuse_others(output, shard, shown, overwrite)
        place = place_of(output, shard.name)
        with outputs.writable(output):
            place.path.parent.mkdir(exist_ok=True)
            lock = outputs.claim(place, overwrite)
            try:
                note(place, shard)
            except BaseException:
                outputs.release(lock)
                raise
    except BaseException:
        share.close()
        raise
    return place, [lock, share]


def note(place: Output, shard: Shard) -> None:
    """Leaves word, in a shard's own place, of which rows it has. Raises OSError."""
    parts.write_document(place.state / _DOCUMENT, asdict(shard))


def clear(output: Output) -> None:
    """Removes all shards, whose rows are elsewhere by now: they are gone in one step, whatever it takes to tidy up."""
    folder, gone = output.state / FOLDER, output.state / f".{FOLDER}.gone"
    shutil.rmtree(gone, ignore_errors=True)
    if folder.is_dir():
        folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def words(shards: list[Shard], most: int = 8) -> str:
    """Shards as the flag names them."""
    named = ", ".join(f"{shard.number}/{shard.of}" for shard in shards[:most])
    return f"{named}, ..." if len(shards) > most else named


def _refuse_whole(output: Output, shown: str) -> None:
    folders = [output.parts, output.state / "parts"]
    rows = any(parts.is_part(path) for folder in folders if folder.is_dir() for path in folder.iterdir())
    if rows or (output.format is not Format.FOLDER and output.path.exists()):
        raise UsageError(
            f"{shown} holds rows that are of no shard: of a run without --shard, or of shards that have been merged",
            "Leave --shard out to go on from there, or choose another output.",
        )


def _refuse_others(output: Output, shard: Shard, shown: str, overwrite: bool) -> None:
    folder = output.state / FOLDER
    names = sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []
    other = next((name for name in names if not name.endswith(f"-of-{shard.of}")), None)
    if other is not None:
        raise UsageError(
            f"{shown} is being made in other shards than {shard.of}: it holds {printable(other)}",
            f"Keep to that number, choose another output, or delete {printable(str(folder))} to start again.",
        )
    looked_at = [] if overwrite else [shard.name] if shard.name in names else names[:1]
    for name in looked_at:
        document = outputs.document(place_of(output, name), _DOCUMENT)
        if document and document.get("total") != shard.total:
            raise UsageError(
                f"{shown}: shard {name.replace('-of-', '/')} was cut from {document.get('total'):,} rows, "
                f"and the input has {shard.total:,} now",
                "Shards need the same input. Finish them with what it was, merge, and run again without --shard; or "
                f"delete {printable(str(folder))} to start again.",
            )
