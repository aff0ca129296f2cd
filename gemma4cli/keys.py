"""The keys of committed rows, as tables that travel with the rows: inside each part, and beside finished data.

A table of keys has a row for each row of data, in its order. On disk it is a small Parquet file with checksums, so
that damage is found; inside a part it is that file in base64, since a part's metadata must be text.
"""

from __future__ import annotations

import base64
import bisect
import functools
import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import strict_json
from gemma4cli.identity import UNKNOWN, Key, id_key
from gemma4cli.parts import DamagedPartError
from gemma4cli.records import Status

SCHEMA = pa.schema(
    {
        "row_index": pa.int64(),
        "id": pa.uint64(),
        "content": pa.uint64(),
        "digest0": pa.uint64(),
        "digest1": pa.uint64(),
        "failed": pa.bool_(),
        "skipped": pa.bool_(),
        "input": pa.string(),  # of a failed row: the manifest record that would ask for it again
    }
)
_HEADER = b"gemma4cli.header"
_TAIL_BYTES = 64 << 10


class Span(NamedTuple):
    """Keys of rows that follow one another in a file: the least and greatest row_index, how many, and a way to them."""

    first: int
    last: int
    rows: int
    read: Callable[[], pa.Table]


class Seal(NamedTuple):
    """What a finished file is known by: its name, size, the checksum of its end, and its number of rows."""

    name: str
    size: int
    crc: int
    rows: int


def seal(path: Path, rows: int, name: str | None = None) -> Seal:
    """The seal of a file as it is on disk. Raises OSError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - _TAIL_BYTES))
        return Seal(name or path.name, size, zlib.crc32(file.read()), rows)


def table(
    row_index: Sequence[int], keys: Sequence[Key], status: Sequence[str], inputs: Sequence[str | None]
) -> pa.Table:
    """Keys as a table, in the order given; `status` as a Row has it."""
    columns = [
        pa.array(row_index, pa.int64()),
        pa.array([key.id for key in keys], pa.uint64()),
        pa.array([key.content for key in keys], pa.uint64()),
        pa.array([key.digest[0] for key in keys], pa.uint64()),
        pa.array([key.digest[1] for key in keys], pa.uint64()),
        pa.array([word == Status.FAILED for word in status], pa.bool_()),
        pa.array([word == Status.SKIPPED for word in status], pa.bool_()),
        pa.array(inputs, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def adopted(row_index: Sequence[int], ids: Sequence[str | None], status: Sequence[str]) -> pa.Table:
    """Keys for rows whose own are lost: by id, with a content that is equal to any."""
    keys = [Key(id_key(id or ""), UNKNOWN) for id in ids]
    return table(row_index, keys, status, [None] * len(keys))


def write(path: Path | pa.BufferOutputStream, tables: Iterable[pa.Table], header: Mapping[str, Any]) -> int:
    """Writes keys, a few at a time, and what is said of them; returns how many there are. Raises OSError."""
    rows = 0
    # Hashes do not compress; what does is the rest, and that with little effort.
    with pq.ParquetWriter(
        path,
        SCHEMA,
        compression={
            name: "zstd" if name in ("row_index", "input", "digest0", "digest1") else "none" for name in SCHEMA.names
        },
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        for table in tables:
            writer.write_table(table.cast(SCHEMA), row_group_size=max(1, len(table)))
            rows += len(table)
        writer.add_key_value_metadata({_HEADER: strict_json.encode(header)})
    return rows


def read(source: Path | pa.BufferReader) -> tuple[pa.Table, dict[str, Any]]:
    """The keys, and what is said of them. Raises OSError, ValueError or ArrowException where they are damaged."""
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        return file.read().cast(SCHEMA), _said(file)


def header(path: Path) -> dict[str, Any]:
    """What is said of keys. Raises as `read` does."""
    with pq.ParquetFile(path) as file:
        return _said(file)


def _said(file: pq.ParquetFile) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((file.metadata.metadata or {})[_HEADER]) if file.metadata.metadata else {}
    return said


def spans(path: Path, rows: Sequence[int]) -> list[tuple[Span, ...]]:
    """Of files whose keys follow one another in a file of keys: where those of each are. All are looked at, none kept.

    Args:
        rows: how many each of the files has.

    Raises:
        OSError, ValueError, ArrowException: they are damaged, or not as many.
    """
    found: list[list[Span]] = [[] for _ in rows]
    ends = list(itertools.accumulate(rows, initial=0))
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        if file.metadata.num_rows != ends[-1]:
            raise ValueError("it has another number of rows than its data")
        begin = 0
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, use_threads=False).cast(SCHEMA)
            low = 0
            while low < len(group):
                owner = bisect.bisect_right(ends, begin + low) - 1
                high = min(len(group), ends[owner + 1] - begin)
                again = functools.partial(_slice, path, number, low, high - low)
                found[owner].append(span(group.slice(low, high - low), again))
                low = high
            begin += len(group)
    return list(map(tuple, found))


def span(keys: pa.Table, read: Callable[[], pa.Table]) -> Span:
    """What is said of keys, of which there is one at least."""
    index = column(keys, "row_index")
    return Span(int(index.min()), int(index.max()), len(keys), read)


def _slice(path: Path, group: int, start: int, rows: int) -> pa.Table:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return file.read_row_group(group, use_threads=False).cast(SCHEMA).slice(start, rows)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedPartError(path, error) from error


def encoded(keys: pa.Table, header: Mapping[str, Any]) -> str:
    """Keys as text for the metadata of a part."""
    buffer = pa.BufferOutputStream()
    write(buffer, [keys], header)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def decoded(text: bytes) -> tuple[pa.Table, dict[str, Any]]:
    """The other way round. Raises as `read` does."""
    return read(pa.BufferReader(base64.b64decode(text, validate=True)))


def column(keys: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """A column as numpy has it."""
    array: np.ndarray[Any, Any] = keys[name].to_numpy()
    return array
