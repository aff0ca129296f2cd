"""What is committed: the files that hold rows for good, with the keys of their rows.

There is no list of what is done beside the data that could disagree with it: a part carries its own keys and is there
whole or not at all; finished data has its keys in one file, which names the very data that it belongs to by a seal.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import keys, shards
from gemma4cli.errors import UsageError
from gemma4cli.escaping import first_line, printable
from gemma4cli.ordering import Run, latest
from gemma4cli.outputs import Format, Output, is_row
from gemma4cli.parts import DamagedPartError, is_part

IN_PART = b"gemma4cli.keys"  # in the metadata of a part
_UNREADABLE = (OSError, ValueError, pa.ArrowException, KeyError, TypeError)


@dataclass(frozen=True, slots=True)
class Source:
    """A file of committed rows. Its keys are where it is, or beside it, and not in memory.

    spans: where they are, in the order of its rows.
    finished: it is part of the finished output, rather than a part on the way there.
    """

    path: Path
    spans: tuple[keys.Span, ...]
    finished: bool
    header: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(span.rows for span in self.spans)

    @property
    def keys(self) -> pa.Table:
        """A row for each of its rows, in their order. Raises DamagedPartError if they cannot be read any more."""
        return pa.concat_tables([keys.SCHEMA.empty_table(), *(span.read() for span in self.spans)])

    def among(self, row_index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Those of some row_index that it may have."""
        within = [(row_index >= span.first) & (row_index <= span.last) for span in self.spans]
        return row_index[np.any(within, axis=0)] if within else row_index[:0]


@dataclass(slots=True)
class Ledger:
    """All that is committed. Of several rows with one row_index the one of the latest source counts.

    notices: what was found damaged and what was done about it, for people.
    """

    sources: list[Source] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    next_part: int = 0

    @property
    def finished(self) -> bool:
        """Whether there is a finished output, whatever has been added to it since."""
        return any(source.finished for source in self.sources)

    @property
    def added(self) -> bool:
        """Whether there are parts that a finish would take in."""
        return any(not source.finished for source in self.sources)

    @property
    def fingerprint(self) -> Mapping[str, Any] | None:
        """The settings that the latest rows were made with; None where they are not known."""
        headers = [source.header for source in self.sources if source.header.get("fingerprint")]
        return headers[-1]["fingerprint"] if headers else None

    def earlier(self, fingerprint: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The other settings that rows were made with, where --new-only or --retry-failed kept some."""
        found: list[Mapping[str, Any]] = []
        for source in self.sources:
            for made in (*source.header.get("earlier", ()), source.header.get("fingerprint")):
                if made and made != fingerprint and made not in found:
                    found.append(made)
        return found

    def live(self) -> tuple[pa.Table, list[np.ndarray[Any, Any]]]:
        """The keys of the rows that count, by row_index; and for each source the row_index of those that do not.

        Raises:
            DamagedPartError: a file cannot be read any more.
        """
        if not self.sources:
            return keys.SCHEMA.empty_table(), []
        all_keys = pa.concat_tables([source.keys for source in self.sources])
        index = keys.column(all_keys, "row_index")
        order = np.argsort(index, kind="stable")
        last = np.ones(len(order), bool)
        last[:-1] = index[order[1:]] != index[order[:-1]]
        counts = np.zeros(len(order), bool)
        counts[order[last]] = True
        ends = np.cumsum([source.rows for source in self.sources])[:-1]
        replaced = [i[~c] for i, c in zip(np.split(index, ends), np.split(counts, ends), strict=True)]
        chosen = order[last]
        if len(chosen) == len(index) and np.array_equal(chosen, np.arange(len(index))):
            return all_keys, replaced
        return all_keys.take(pa.array(chosen)), replaced

    def in_order(self) -> Iterator[pa.Table]:
        """The keys of the rows that count, by row_index, in tables of any size: of them, few are in memory at a time.

        Raises:
            DamagedPartError: a file cannot be read any more.
        """
        return latest([Run(span.first, span.read) for source in self.sources for span in source.spans])


def part(path: Path, own: pa.Table, header: Mapping[str, Any]) -> Source:
    """A part that was written with its keys in it."""
    return Source(path, _spans(own, functools.partial(_in_part, path)), False, header)


def _spans(own: pa.Table, read_again: Callable[[], pa.Table]) -> tuple[keys.Span, ...]:
    return (keys.span(own, read_again),) if len(own) else ()


def _in_part(path: Path) -> pa.Table:
    try:
        table, _ = keys.decoded(pq.read_metadata(path).metadata[IN_PART])
    except _UNREADABLE as error:
        raise DamagedPartError(path, error) from error
    return table


def read(place: Output, *, repair: bool) -> Ledger:
    """Finds what is committed in an output, in its shards too: as parts that came after its finished data.

    They came before its other parts: those are of a run of the whole that took over from shards.

    Args:
        repair: set damaged parts aside, under `damaged` in the state folder; otherwise they are only told of.

    Raises:
        OSError: the folders cannot be read.
        UsageError: a file of lines holds some that are not ours.
    """
    found = read_whole(place, repair=repair)
    split = sum(source.finished for source in found.sources)
    for shard in shards.begun(place):
        inner = read_whole(shards.place_of(place, shard.name), repair=repair)
        found.sources[split:split] = [replace(source, finished=False) for source in inner.sources]
        found.notices += inner.notices
    return found


def read_whole(place: Output, *, repair: bool) -> Ledger:
    """The same without shards: what is of a run of the whole."""
    ledger = Ledger()
    sealed = _sealed(place, ledger)
    for path in _data(place):
        source = sealed.get(_seal_of(path, place)) or _unsealed(path, place, ledger, repair)
        if source is not None:
            ledger.sources.append(source)
    # Finished data is older than any part.
    ledger.sources.sort(key=lambda source: not source.finished)
    ledger.next_part = 1 + max(map(number_of, _names(place)), default=-1)
    return ledger


def _sealed(place: Output, ledger: Ledger) -> dict[tuple[str, int, int], Source]:
    """Finished files by their seals, as the files of keys tell of them."""
    found: dict[tuple[str, int, int], Source] = {}
    for path in sorted(place.state.glob("keys-*.parquet")):
        try:
            header = keys.header(path)
            seals = [keys.Seal(*values) for values in header["files"]]
            spans = keys.spans(path, [each.rows for each in seals])
        except _UNREADABLE as error:
            shown = printable(str(path))
            ledger.notices.append(f"{shown} is damaged ({first_line(error, 200)}); rows are known by their ids alone")
            continue
        for each, own in zip(seals, spans, strict=True):
            name = each.name if place.format is Format.FOLDER else place.path.name
            found[name, each.size, each.crc] = Source(_home(place) / name, own, True, header)
    return found


def _seal_of(path: Path, place: Output) -> tuple[str, int, int]:
    try:
        return keys.seal(path, 0)[:3]
    except OSError:
        return path.name, -1, 0


def _home(place: Output) -> Path:
    return place.parts if place.format is Format.FOLDER else place.path.parent


def _folders(place: Output) -> list[Path]:
    """Where parts can be, finished ones first."""
    return list(dict.fromkeys([place.parts, place.state / "parts"]))


def _data(place: Output) -> Iterator[Path]:
    if place.format is not Format.FOLDER and place.path.exists():
        yield place.path
    for folder in _folders(place):
        if folder.is_dir():
            names = [path for path in folder.iterdir() if path.name[0] != "." and is_part(path)]
            yield from sorted(names, key=lambda path: (number_of(path.name), path.name))


def _names(place: Output) -> Iterator[str]:
    """Names that a new part must not have: those of parts, of damaged ones, and of temporary files."""
    for folder in (*_folders(place), place.state / "damaged"):
        if folder.is_dir():
            yield from (path.name for path in folder.iterdir())


def number_of(name: str) -> int:
    """The number of a part; -1 of what is none."""
    digits = name.lstrip(".").removeprefix("part-").partition(".")[0].partition("-")[0]
    return int(digits) if digits.isdecimal() else -1


def _unsealed(path: Path, place: Output, ledger: Ledger, repair: bool) -> Source | None:
    """A part, by the keys that it carries; or rows whose keys are lost, by their ids."""
    shown = printable(str(path))
    output = place.format is Format.FOLDER or path != place.path
    if not output and place.format is Format.JSONL:
        return _lines(path, place, ledger, repair)
    try:
        with pq.ParquetFile(path) as file:
            metadata, rows = file.metadata.metadata or {}, file.metadata.num_rows
            text = metadata.get(IN_PART)
            if text is not None:
                try:
                    table, header = keys.decoded(text)
                    if len(table) == rows:
                        return part(path, table, header)
                except _UNREADABLE:
                    pass
            read = file.read(columns=["row_index", "id", "status"])
            table = keys.adopted(*(read[name].to_pylist() for name in ("row_index", "id", "status")))
    except _UNREADABLE as error:
        _set_aside(path, place, ledger, repair, f"{shown} cannot be read ({first_line(error, 200)})")
        return None
    ledger.notices.append(f"the keys of {shown} are lost; its {rows:,} rows are known by their ids alone")
    return Source(path, _spans(table, lambda: table), text is None, _made_with(metadata))


def _lines(path: Path, place: Output, ledger: Ledger, repair: bool) -> Source:
    columns: tuple[list[Any], ...] = ([], [], [])  # row_index, id, status
    damaged = 0
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                damaged += 1
                continue
            if not is_row(record):
                message = f"{printable(str(path))} holds lines that gemma4 did not write: {_shown(line)}"
                raise UsageError(message, "move it away, or choose another output")
            if not line.endswith(b"\n"):
                damaged += 1
                continue
            values = record["row_index"], record["id"], record["status"]
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    lost = f"; {damaged:,} lines are damaged, and their rows will be done again" if damaged else ""
    if damaged and repair:
        shutil.copy2(path, _aside(path, place))
    shown = printable(str(path))
    ledger.notices.append(
        f"the keys of {shown} are lost; its {len(columns[0]):,} rows are known by their ids alone{lost}"
    )
    table = keys.adopted(*columns)
    return Source(path, _spans(table, lambda: table), True)


def set_aside(path: Path, place: Output) -> Path:
    """Moves a damaged part to `damaged` in the state folder, where nobody reads it and nothing deletes it."""
    target = _aside(path, place)
    path.rename(target)
    return target


def _aside(path: Path, place: Output) -> Path:
    folder = place.state / "damaged"
    folder.mkdir(parents=True, exist_ok=True)
    names = (path.name if number == 0 else f"{path.name}.{number}" for number in itertools.count())
    return next(folder / name for name in names if not os.path.lexists(folder / name))


def _set_aside(path: Path, place: Output, ledger: Ledger, repair: bool, what: str) -> None:
    if repair:
        target = set_aside(path, place)
        ledger.notices.append(f"{what}; it is set aside as {printable(str(target))}, and its rows will be done again")
    else:
        ledger.notices.append(f"{what}; its rows will be done again")


def _made_with(metadata: Mapping[bytes, bytes]) -> dict[str, Any]:
    try:
        return {"fingerprint": json.loads(metadata[b"gemma4cli"])["fingerprint"]}
    except _UNREADABLE:
        return {}


def counts(table: pa.Table) -> Counter[str]:
    """How many rows are ok, failed and skipped."""
    failed, skipped = (int(np.count_nonzero(keys.column(table, name))) for name in ("failed", "skipped"))
    return Counter(ok=len(table) - failed - skipped, failed=failed, skipped=skipped)


def _shown(line: bytes) -> str:
    text = printable(line.decode("utf-8", "replace").strip())
    return text if len(text) <= 60 else f"{text[:60]}..."
