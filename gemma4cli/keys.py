"""The keys of committed rows, as tables that travel with the rows: inside each part, and beside finished data.

A table of keys has a row for each row of data, in its order. On disk it is a small Parquet file with checksums, so
that damage is found; inside a part it is that file in base64, since a part's metadata must be text.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import strict_json
from gemma4cli.identity import UNKNOWN, Key, id_key
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


def write(path: Path | pa.BufferOutputStream, keys: pa.Table, header: Mapping[str, Any]) -> None:
    """Writes keys and what is said of them. Raises OSError."""
    document = {_HEADER: strict_json.encode(header)}
    # Hashes do not compress; what does is the rest, and that with little effort.
    pq.write_table(
        keys.replace_schema_metadata(document),
        path,
        compression={
            name: "zstd" if name in ("row_index", "input", "digest0", "digest1") else "none"
            for name in keys.column_names
        },
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )


def read(source: Path | pa.BufferReader) -> tuple[pa.Table, dict[str, Any]]:
    """The keys, and what is said of them. Raises OSError, ValueError or ArrowException where they are damaged."""
    with pq.ParquetFile(source, page_checksum_verification=True) as file:
        header = json.loads((file.metadata.metadata or {})[_HEADER]) if file.metadata.metadata else {}
        return file.read().cast(SCHEMA), header


def encoded(keys: pa.Table, header: Mapping[str, Any]) -> str:
    """Keys as text for the metadata of a part."""
    buffer = pa.BufferOutputStream()
    write(buffer, keys, header)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def decoded(text: bytes) -> tuple[pa.Table, dict[str, Any]]:
    """The other way round. Raises as `read` does."""
    return read(pa.BufferReader(base64.b64decode(text, validate=True)))


def column(keys: pa.Table, name: str) -> np.ndarray[Any, Any]:
    """A column as numpy has it."""
    array: np.ndarray[Any, Any] = keys[name].to_numpy()
    return array
