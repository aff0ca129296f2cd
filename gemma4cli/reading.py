"""Committed rows read back from where they lie: Parquet files, or lines of JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gemma4cli.ledger import Source
from gemma4cli.parts import DamagedPartError, bounds

Ints = np.ndarray[Any, np.dtype[Any]]
_LINE_INDEX = re.compile(rb'\{"row_index": ?(\d+)')
_LINES_AT_ONCE = 10_000


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The row_index and the text of each line of a finished file; damaged lines are left out. Raises OSError."""
    with path.open("rb") as file:
        for text in file:
            match = _LINE_INDEX.match(text)
            if match is not None and text.endswith(b"}\n"):
                yield int(match[1]), text


def tables(path: Path, columns: Sequence[str], wanted: Ints | None = None) -> Iterator[pa.Table]:
    """The rows of a file, some columns of them; those that it lacks are left out.

    Args:
        wanted: only these row_index, which must be among the columns; None for all.

    Raises:
        DamagedPartError: the file cannot be read.
    """
    try:
        if path.suffix in (".jsonl", ".ndjson"):
            yield from _tables_of_lines(path, columns, wanted)
            return
        with pq.ParquetFile(path) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            for number in range(file.num_row_groups):
                if wanted is None:
                    yield file.read_row_group(number, columns=there)
                    continue
                known = bounds(file.metadata.row_group(number))
                if known is not None and not np.any((wanted >= known[0]) & (wanted <= known[1])):
                    continue
                index = file.read_row_group(number, columns=["row_index"])["row_index"]
                here = pc.is_in(index, pa.array(wanted))
                if pc.any(here).as_py():
                    yield file.read_row_group(number, columns=there).filter(here)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DamagedPartError(path, error) from error


def records(sources: Sequence[Source], wanted: Sequence[int], columns: Sequence[str]) -> dict[int, dict[str, Any]]:
    """Committed rows by their row_index, each from the latest source that has it.

    Raises:
        DamagedPartError: a file cannot be read.
    """
    left = np.unique(np.array(wanted, np.int64))
    found: dict[int, dict[str, Any]] = {}
    for source in reversed(sources):
        wanted_here = source.among(left)
        if not len(wanted_here):
            continue
        here: dict[int, dict[str, Any]] = {}
        for table in tables(source.path, ["row_index", *columns], wanted_here):
            here |= {record["row_index"]: record for record in table.to_pylist()}
        found |= here
        left = np.setdiff1d(left, np.fromiter(here, np.int64, len(here)))
    return found


def _tables_of_lines(path: Path, columns: Sequence[str], wanted: Ints | None) -> Iterator[pa.Table]:
    only = None if wanted is None else frozenset(wanted.tolist())
    held: list[dict[str, Any]] = []
    for row_index, text in lines(path):
        if only is None or row_index in only:
            try:
                record = json.loads(text)
            except ValueError:  # as `lines` leaves out what it can tell
                continue
            held.append({name: record.get(name) for name in columns})
        if len(held) >= _LINES_AT_ONCE:
            yield pa.Table.from_pylist(held)
            held = []
    if held:
        yield pa.Table.from_pylist(held)
