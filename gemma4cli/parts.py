"""Parquet parts: written whole or not at all, and put together in order of the rows."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import strict_json
from gemma4cli.ordering import Run, latest
from gemma4cli.tables import conformed

# Row groups small enough to be read by page in a viewer, large enough to compress.
GROUP_ROWS = 20_000
GROUP_BYTES = 64 << 20
PART_ROWS = 500_000
PART_BYTES = 512 << 20
MARK = b"gemma4cli"  # in the metadata of all Parquet files that are ours
_NAME = re.compile(r"part-\d{5,}(-[0-9a-f]+)?\.parquet|\.part-\d{5,}(-[0-9a-f]+)?\.parquet\.tmp")
_RENAME_EXCHANGE = 2  # linux/fs.h


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


def write_document(path: Path, document: Mapping[str, Any], indent: int | None = None) -> None:
    """Writes JSON that is there whole or not at all. Raises OSError."""
    with whole_file(path) as temporary:
        temporary.write_bytes(strict_json.encode(document, indent=indent) + b"\n")


def sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_part(folder: Path, number: int, table: pa.Table, metadata: Mapping[str, str], mark: str = "") -> Path:
    """Writes rows, sorted by row_index, as one part that is there whole, with its metadata, or not at all.

    mark: hexadecimal digits that tell parts of one number apart, where several processes write into a folder.

    Raises:
        OSError: it cannot be written.
    """
    path = folder / part_name(number, mark)
    with whole_file(path) as temporary, pq.ParquetWriter(temporary, table.schema, compression="zstd") as writer:
        writer.write_table(table, row_group_size=GROUP_ROWS)
        writer.add_key_value_metadata(metadata)
        writer.close()  # before the file is made to last
    return path


def part_name(number: int, mark: str = "") -> str:
    return f"part-{number:05d}-{mark}.parquet" if mark else f"part-{number:05d}.parquet"


def merged(paths: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """All rows of some Parquet files in order, in tables of any size; of equal row_index, the latest file's.

    What is in memory is the row groups that overlap.

    Raises:
        DamagedPartError: a file cannot be read.
    """

    def run(group: _Group) -> Run:
        return Run(group.first, lambda: conformed(read_group(group.path, group.number), schema))

    return latest([run(group) for group in _groups(paths)])


def in_order(paths: Iterable[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """All rows of Parquet files as they stand, a row group at a time.

    Raises:
        DamagedPartError: a file cannot be read.
    """
    for path in paths:
        for group in _groups([path]):
            yield conformed(read_group(path, group.number), schema)


def read_group(path: Path, number: int, columns: list[str] | None = None) -> pa.Table:
    """One row group of a file, or some of its columns.

    Raises:
        DamagedPartError: it cannot be read.
    """
    try:
        with pq.ParquetFile(path) as file:
            return file.read_row_group(number, columns=columns, use_threads=False)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedPartError(path, error) from error


class DamagedPartError(Exception):
    """A committed file that can no longer be read."""

    def __init__(self, path: Path, error: BaseException) -> None:
        super().__init__(str(error).strip().split("\n")[0])
        self.path = path


class _Group(NamedTuple):
    """A row group of a file, and its least row_index, or less."""

    path: Path
    number: int
    first: int


def _groups(paths: Iterable[Path]) -> Iterator[_Group]:
    for path in paths:
        try:
            with pq.ParquetFile(path) as file:
                for number in range(file.metadata.num_row_groups):
                    if file.metadata.row_group(number).num_rows:
                        first, _ = bounds(file.metadata.row_group(number)) or (-1, -1)
                        yield _Group(path, number, first)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DamagedPartError(path, error) from error


def bounds(group: pq.RowGroupMetaData) -> tuple[int, int] | None:
    """The least and the greatest row_index of a row group that has rows; None where it does not say.

    By its own columns: a file's metadata and its schema hold each other, and stay, keys and all, until Python looks for
    such circles, which is seldom.
    """
    columns = (group.column(i) for i in range(group.num_columns))
    statistics = next((column.statistics for column in columns if column.path_in_schema == "row_index"), None)
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


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
                pa.default_memory_pool().release_unused()
            held.append(piece)
            rows += len(piece)
            size += piece.nbytes
    if held:
        yield pa.concat_tables(held)


def write_parquet(path: Path, groups: Iterable[pa.Table], schema: pa.Schema) -> int:
    """Writes one Parquet file, a row group for each table; returns its number of rows."""
    rows = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, len(group)))
            rows += len(group)
    return rows


def write_folder(folder: Path, groups: Iterable[pa.Table], schema: pa.Schema, first: int = 0) -> list[tuple[Path, int]]:
    """Writes a data set as parts of a sensible size, at least one, all of it on disk for good at the end.

    They are numbered from `first` on.

    Returns the parts and their numbers of rows.
    """
    folder.mkdir()
    written = []
    source = iter(groups)
    group = next(source, None)
    for number in itertools.count(first):
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
        written.append((path, rows))
        if group is None:
            break
    sync(folder)
    return written


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
    """Makes up for a swap that was cut off, whether between its renames or before what it left was cleared away."""
    if new.is_dir() and _aside(new).is_dir() and not old.exists():
        new.rename(old)
        _aside(new).rename(new)
        sync(old.parent)
    if new.is_dir() and old.is_dir():
        clear(new, old)


def clear(new: Path, old: Path) -> None:
    """Removes what a swap took out, except files that are not parts: they were put there by others, and go back."""
    for path in new.iterdir():
        if not is_part(path):
            path.rename(old / path.name)
    shutil.rmtree(new)


def is_part(path: Path) -> bool:
    """Whether a file is a part, or what was to become one: by its name, and by its metadata if it can be read."""
    if not _NAME.fullmatch(path.name):
        return False
    try:
        return path.is_file() and MARK in (pq.read_metadata(path).metadata or {})
    except (OSError, ValueError, pa.ArrowException):  # damaged, or not written to its end
        return True


def _aside(new: Path) -> Path:
    return new.with_name(f"{new.name}.old")
