"""Parquet parts: written whole or not at all, and put together in order of the rows."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

# Row groups small enough to be read by page in a viewer, large enough to compress.
GROUP_ROWS = 20_000
GROUP_BYTES = 64 << 20
PART_ROWS = 500_000
PART_BYTES = 512 << 20
_RENAME_EXCHANGE = 2  # linux/fs.h


@dataclass(frozen=True, slots=True)
class Part:
    """A part that is on disk for good: its file's name, its number of rows, its least and greatest row_index."""

    name: str
    rows: int
    first: int
    last: int


@contextlib.contextmanager
def whole_file(path: Path, scratch: Path | None = None) -> Iterator[Path]:
    """A temporary file that becomes `path`, on disk for good, when the block ends without an error.

    Args:
        scratch: the temporary file, on the same file system; a hidden sibling if None.
    """
    temporary = scratch or path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_part(folder: Path, number: int, table: pa.Table) -> Part:
    """Writes rows, sorted by row_index, as one part that is there whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    table = table.sort_by("row_index")
    part = Part(part_name(number), len(table), table["row_index"][0].as_py(), table["row_index"][-1].as_py())
    with whole_file(folder / part.name) as temporary:
        pq.write_table(table, temporary, compression="zstd", row_group_size=GROUP_ROWS)
    return part


def part_name(number: int) -> str:
    return f"part-{number:05d}.parquet"


def merged(folder: Path, parts: Iterable[Part], schema: pa.Schema) -> Iterator[pa.Table]:
    """All rows of the parts in order of row_index, in tables of any size.

    A row leaves as soon as no part still to be read can come before it, so what is in memory is the parts that
    overlap: as much as the rows were out of order when they were written.
    """
    waiting = schema.empty_table()
    for part in sorted(parts, key=lambda part: part.first):
        before = pc.less(waiting["row_index"], part.first)
        ready = waiting.filter(before)
        if len(ready):
            yield ready
        waiting = waiting.filter(pc.invert(before))
        read = pq.read_table(folder / part.name, schema=schema, partitioning=None)
        waiting = pa.concat_tables([waiting, read]).sort_by("row_index").combine_chunks()
    if len(waiting):
        yield waiting


def row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of the size of a row group; a single row may be larger than one."""
    held: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        step = max(1, min(GROUP_ROWS, GROUP_BYTES * len(table) // max(1, table.nbytes)))
        for start in range(0, len(table), step):
            piece = table.slice(start, step)
            if held and (rows + len(piece) > GROUP_ROWS or size + piece.nbytes > GROUP_BYTES):
                yield pa.concat_tables(held)
                held, rows, size = [], 0, 0
            held.append(piece)
            rows += len(piece)
            size += piece.nbytes
    if held:
        yield pa.concat_tables(held)


def write_parquet(path: Path, groups: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Writes one Parquet file, a row group for each table."""
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, len(group)))


def write_folder(folder: Path, groups: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Writes a data set as parts of a sensible size, at least one, all of it on disk for good at the end."""
    folder.mkdir()
    source = iter(groups)
    group = next(source, None)
    for number in itertools.count():
        path = folder / part_name(number)
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            rows = size = 0
            while group is not None:
                writer.write_table(group, row_group_size=len(group))
                rows += len(group)
                size += group.nbytes
                group = next(source, None)
                if group is not None and (rows + len(group) > PART_ROWS or size + group.nbytes > PART_BYTES):
                    break
        sync(path)
        if group is None:
            break
    sync(folder)


def swap(new: Path, old: Path) -> None:
    """Puts one folder in the place of another, and the other in its place, in one step where the system can.

    Where it cannot (some network file systems), there is a moment between two renames; `settle` makes up for it.
    """
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_cwd = -100
    if exchange is None or exchange(at_cwd, os.fsencode(new), at_cwd, os.fsencode(old), _RENAME_EXCHANGE) != 0:
        aside = _aside(new)
        old.rename(aside)
        new.rename(old)
        aside.rename(new)
    sync(new.parent)
    sync(old.parent)


def settle(new: Path, old: Path) -> None:
    """Finishes a swap that was cut off between its renames; does nothing otherwise."""
    if new.is_dir() and _aside(new).is_dir() and not old.exists():
        new.rename(old)
        sync(old.parent)


def _aside(new: Path) -> Path:
    return new.with_name(f"{new.name}.old")
