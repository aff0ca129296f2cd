"""Parquet files -> records, with the columns' types as they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from gemma4cli.errors import ParseError, UsageError
from gemma4cli.escaping import first_line, printable
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.opened import InputFile
from gemma4cli.inputs.plain import plain, values_of
from gemma4cli.inputs.where import Where

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20  # a row group of images is read by and by, not whole
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Part:
    """A file of a table: its rows, and the columns that its folders' names say (`split=train/`)."""

    file: InputFile
    rows: int
    constants: Mapping[str, Any]


def open_parquet(files: Sequence[InputFile], name: str | None = None, folder: str | None = None) -> Table:
    """Parquet files as one table; only their footers are read.

    Args:
        name: what they are together, for messages.
        folder: what they are parts of; folders in it called `column=value` are columns, as in Hive.

    Raises:
        UsageError: a file cannot be read, or has two columns of one name, or other types than the first.
    """
    below = [file.shown.removeprefix(folder.rstrip("/") + "/") if folder else "" for file in files]
    schema, counts = _described(files)
    constants, kinds = _partitions(below, schema.names)
    schema = pa.schema([*schema, *(pa.field(column, kind) for column, kind in kinds.items())], schema.metadata)
    _refuse_unwritable(schema)
    parts = [_Part(*each) for each in zip(files, counts, constants, strict=True)]

    def read(wanted: Wanted) -> Iterator[Entry]:
        start = 0
        for part in parts:
            if start + part.rows <= wanted.first:
                start += part.rows
                continue
            for row, record in _records(part, schema, replace(wanted, first=max(0, wanted.first - start))):
                number = start + row
                yield Entry(number, f"{part.file.name} row {number}", record, part.file.folder)
            start += part.rows

    together = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    return Table(name or together, schema, sum(counts), read, selects=True, skips=True)


def _described(files: Sequence[InputFile]) -> tuple[pa.Schema, list[int]]:
    """The columns of all files together, in plain types, and the rows of each."""
    schemas, counts = [], []
    for source in files:
        try:
            with _opened(source) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except _UNREADABLE as error:
            hint = "was it cut short while being written or copied?"
            raise UsageError(
                f"{source.name} is not a Parquet file that can be read: {first_line(error)}", hint
            ) from error
        if not schema.names:
            raise UsageError(f"{source.name} has no columns", "give a Parquet file that names media")
        twice = {column for column in schema.names if schema.names.count(column) > 1}
        if twice:
            raise UsageError(f"{source.name} has several columns of the name {printable(min(twice))}", "rename them")
        schemas.append(pa.schema([field.with_type(plain(field.type)) for field in schema], schema.metadata))
        counts.append(rows)
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
    except pa.ArrowException as error:
        raise UsageError(f"the Parquet files have columns of different types: {first_line(error)}") from error
    return unified, counts


@contextmanager
def _opened(source: InputFile) -> Iterator[pq.ParquetFile]:
    with (
        nullcontext(source.path) if source.path is not None else source.open() as where,
        pq.ParquetFile(where, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file,
    ):
        yield file


def _partitions(paths: Sequence[str], columns: Sequence[str]) -> tuple[list[dict[str, Any]], dict[str, pa.DataType]]:
    """What the names of its folders say of each file, and the types: numbers where all are whole numbers."""
    said: list[dict[str, str | None]] = []
    for path in paths:
        pairs = (segment.partition("=") for segment in path.split("/")[:-1] if "=" in segment)
        said.append({unquote(name): None if value == _NO_VALUE else unquote(value) for name, _, value in pairs})
    names = dict.fromkeys(name for each in said for name in each if name and name not in columns)
    values = {name: [each.get(name) for each in said] for name in names}
    whole = {name for name in names if all(text is None or _WHOLE.fullmatch(text) for text in values[name])}
    kinds = {name: pa.int64() if name in whole else pa.string() for name in names}
    typed = [
        {
            name: int(text) if name in whole and (text := each.get(name)) is not None else each.get(name)
            for name in names
        }
        for each in said
    ]
    return typed, kinds


def _refuse_unwritable(schema: pa.Schema) -> None:
    """Columns that could be read, but not be carried to an output."""
    hint = "leave the column out, or rename or flatten what is in it"
    for field in schema:
        name, twice = printable(field.name), _repeated(field.type)
        if twice is not None:
            raise UsageError(f"{name} has several fields of the name {printable(twice)}", hint)
        try:
            buffer = pa.BufferOutputStream()
            pq.write_table(pa.schema([field]).empty_table(), buffer)
            pq.read_schema(pa.BufferReader(buffer.getvalue()))
        except _UNREADABLE as error:
            raise UsageError(f"{name} cannot be written again: {first_line(error)}", hint) from error


def _repeated(kind: pa.DataType) -> str | None:
    """A name that a struct in the type gives to several of its fields."""
    inner = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in inner] if pa.types.is_struct(kind) else []
    twice = [name for name in names if names.count(name) > 1]
    return twice[0] if twice else next((found for f in inner if (found := _repeated(f.type)) is not None), None)


def _records(part: _Part, schema: pa.Schema, wanted: Wanted) -> Iterator[tuple[int, dict[str, Any] | ParseError]]:
    """The wanted columns of the rows that `wanted.where` takes, each with its place; a damaged row group gives errors.

    Row groups before `wanted.first`, a place in the file, are not read.

    Times that Python has no exact type for (nanoseconds of a day, years after 9999) come as Arrow stores them, as
    integers: these fit the column's type again, and travel between processes.
    """
    where = wanted.where
    constants = {name: value for name, value in part.constants.items() if name in wanted.columns}
    with _opened(part.file) as file:
        there = [name for name in schema.names if name in file.schema_arrow.names and name in wanted.columns]
        fields = [schema.field(name) for name in there]
        kept = None if where is None else _promising(part, file, schema, where)
        start = 0
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            at, start = start, start + facts.num_rows
            if start <= wanted.first or (kept is not None and group not in kept):
                continue
            size = max(1, facts.total_byte_size // max(1, facts.num_rows))
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // size))
            done = 0
            try:
                # A file without any of the columns has rows all the same.
                for batch in file.iter_batches(rows, row_groups=[group], columns=there or file.schema_arrow.names[:1]):
                    taken = None if where is None else where.of(_looked_at(batch, part, schema, where), len(batch))
                    rows_of_batch = len(batch)
                    passed = max(0, min(rows_of_batch, wanted.first - at - done))
                    places: Sequence[int] = range(passed, rows_of_batch)
                    if taken is not None:
                        places = [i for i in places if taken[i]]
                        batch = batch.take(pa.array(places, pa.int64()))
                    elif passed:
                        batch = batch.slice(passed)
                    columns = [values_of(batch.column(field.name)) for field in fields]
                    values = zip(*columns, strict=True) if columns else repeat((), len(batch))
                    for place, row in zip(places, values, strict=True):
                        yield at + done + place, dict(zip(there, row, strict=True)) | constants
                    done += rows_of_batch
            except _UNREADABLE as error:
                message = f"row group {group} of the Parquet file is damaged: {first_line(error)}"
                for place in range(max(done, wanted.first - at), facts.num_rows):
                    yield at + place, ParseError("damaged", message)


def _promising(part: _Part, file: pq.ParquetFile, schema: pa.Schema, where: Where) -> frozenset[int] | None:
    """The row groups that may hold rows which the condition takes, by their statistics; None where nobody knows."""
    guarantee = pc.scalar(True)
    for name, value in part.constants.items():
        same = (
            pc.field(name).is_null() if value is None else pc.field(name) == pa.scalar(value, schema.field(name).type)
        )
        guarantee = guarantee & same
    source = part.file.path
    try:
        with nullcontext(source) if source is not None else part.file.open() as opened:
            fragment = ds.ParquetFileFormat().make_fragment(
                opened, *([fs.LocalFileSystem()] if source is not None else []), partition_expression=guarantee
            )
            return frozenset(group.id for group in fragment.subset(where.expression, schema=schema).row_groups)
    except (*_UNREADABLE, TypeError):
        return None


def _looked_at(batch: pa.RecordBatch, part: _Part, schema: pa.Schema, where: Where) -> pa.Table:
    """The columns of a batch that a condition looks at; those that the file lacks are what its folders say, or null."""
    names, columns = sorted(where.columns), []
    for name in names:
        kind = schema.field(name).type
        if name in batch.schema.names:
            column = batch.column(name)
            columns.append(column if column.type == kind else column.cast(kind))
        else:
            columns.append(pa.array([part.constants.get(name)] * len(batch), kind))
    return pa.Table.from_arrays(columns, names)
