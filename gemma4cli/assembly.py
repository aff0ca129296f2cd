"""Finished data and parts -> new finished data, in order of row_index, in the place of the old in one step."""

from __future__ import annotations

import contextlib
import heapq
import json
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import keys, parts, reading, shards, strict_json
from gemma4cli.errors import JobError
from gemma4cli.escaping import printable
from gemma4cli.ledger import Ledger, Source
from gemma4cli.outputs import Format, Output
from gemma4cli.schema import with_columns
from gemma4cli.tables import python_values

_LINES_AT_ONCE = 1000  # rows, for as Python's values they take far more than in a table


def assemble(place: Output, ledger: Ledger, schema: pa.Schema, fingerprint: Mapping[str, Any]) -> None:
    """Puts all rows that count in order, with their keys beside them, and removes the parts.

    A crash at any moment leaves either the old state or the new: what decides is the one step in which the new data
    takes the place of the old, and the keys that hold are those whose seals fit the data.

    Raises:
        OSError, ArrowException: it cannot be written.
        DamagedPartError: a file of rows cannot be read.
    """
    files = [source.path for source in ledger.sources]
    ordered = place.state / "sorted"
    path = place.state / f"keys-{secrets.token_hex(4)}.parquet"
    earlier = ledger.earlier(fingerprint)
    header = {"fingerprint": fingerprint, "earlier": earlier}
    schema = _telling(united(files, schema), earlier)
    if place.format is Format.FOLDER:
        shutil.rmtree(ordered, ignore_errors=True)
        groups = parts.row_groups(parts.merged(files, schema))
        try:
            written = parts.write_folder(ordered, groups, schema, ledger.next_part if place.apart else 0)
        except (OSError, pa.ArrowException):
            shutil.rmtree(ordered, ignore_errors=True)  # on a full disk it is the last that is needed
            raise
        _write_keys(path, ledger, [keys.seal(file, rows) for file, rows in written], header)
        parts.swap(ordered, place.parts)
        parts.clear(ordered, place.parts)
    else:
        with parts.whole_file(place.path, ordered) as temporary:
            if place.format is Format.PARQUET:
                rows = parts.write_parquet(temporary, parts.row_groups(parts.merged(files, schema)), schema)
            else:
                rows = _write_lines(temporary, ledger, schema)
            _write_keys(path, ledger, [keys.seal(temporary, rows, place.path.name)], header)
    for other in place.state.glob("keys-*.parquet"):
        if other != path:
            other.unlink()
    shutil.rmtree(place.state / "parts", ignore_errors=True)
    shards.clear(place)


def _write_keys(path: Path, ledger: Ledger, seals: Sequence[keys.Seal], header: Mapping[str, Any]) -> None:
    with parts.whole_file(path) as temporary:
        tables = parts.row_groups(ledger.in_order())
        rows = keys.write(temporary, tables, {**header, "files": [list(each) for each in seals]})
        if sum(each.rows for each in seals) != rows:
            raise JobError("the rows do not add up, so nothing was replaced", "run the same command again")


def _telling(schema: pa.Schema, earlier: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The schema, whose metadata says as well which other settings some rows were made with."""
    if not earlier:
        return schema
    document = {**json.loads(schema.metadata[b"gemma4cli"]), "earlier": earlier}
    return schema.with_metadata({**schema.metadata, b"gemma4cli": strict_json.encode(document)})


def united(paths: Iterable[Path], schema: pa.Schema) -> pa.Schema:
    """The schema of the run, with the columns that only earlier rows have after its own.

    Raises JobError where a column has another type in them.
    """
    written = _as_written(schema)
    known = []
    for path in paths:
        if path.suffix in (".parquet", ".pq"):
            with contextlib.suppress(OSError, pa.ArrowException), pq.ParquetFile(path) as file:
                known.append(file.schema_arrow.remove_metadata())
    if all(other.equals(written) for other in known):
        return schema
    try:
        united = pa.unify_schemas([written, *known], promote_options="permissive")
    except pa.ArrowException as error:
        message = f"the columns have other types than in the rows that are there: {printable(str(error))}"
        raise JobError(message, "write to another output, or start again with --overwrite") from error
    own = [
        field if united.field(field.name).type == written.field(field.name).type else united.field(field.name)
        for field in schema
    ]
    return with_columns(pa.schema(own, schema.metadata), [field for field in united if field.name not in schema.names])


def _as_written(schema: pa.Schema) -> pa.Schema:
    """The schema as it comes back from Parquet, which has no times in whole seconds, for one."""
    buffer = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), buffer)
    return pq.read_schema(pa.BufferReader(buffer.getvalue())).remove_metadata()


def _write_lines(path: Path, ledger: Ledger, schema: pa.Schema) -> int:
    """Lines of JSON from the finished lines, which stay as they are, and from parts."""
    old = [_old_lines(source) for source in ledger.sources if source.finished]
    added = parts.merged([source.path for source in ledger.sources if not source.finished], schema)
    new = _new_lines(parts.row_groups(added))
    rows = 0
    with path.open("wb") as file:
        for _, same in groupby(heapq.merge(*old, new, key=_index), key=_index):
            *_, (_, text) = same  # of equal ones, the last is the latest
            file.write(text)
            rows += 1
    return rows


def write_new_lines(path: Path, groups: Iterable[pa.Table]) -> int:
    """Writes rows as lines of JSON; returns how many they are. Raises OSError."""
    rows = 0
    with path.open("wb") as file:
        for _, text in _new_lines(groups):
            file.write(text)
            rows += 1
    return rows


def _index(line: tuple[int, bytes]) -> int:
    return line[0]


def _old_lines(source: Source) -> Iterator[tuple[int, bytes]]:
    """The lines of a finished file whose keys are known: one that is damaged may look as if it were whole."""
    wanted = chain.from_iterable(span.read()["row_index"].to_pylist() for span in source.spans)
    awaited = next(wanted, None)
    for row_index, text in reading.lines(source.path):
        while awaited is not None and awaited < row_index:
            awaited = next(wanted, None)
        if row_index == awaited:
            yield row_index, text


def _new_lines(groups: Iterable[pa.Table]) -> Iterator[tuple[int, bytes]]:
    for group in groups:
        for start in range(0, len(group), _LINES_AT_ONCE):
            columns = [python_values(column) for column in group.slice(start, _LINES_AT_ONCE).columns]
            for values in zip(*columns, strict=True):
                yield values[0], line(dict(zip(group.column_names, values, strict=True)))


def line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON."""
    return strict_json.encode(record) + b"\n"
