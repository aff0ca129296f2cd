"""Parquet files -> records, with the columns' types as they stand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli.errors import ParseError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.tables import is_inexact, python_values

_BATCH_BYTES = 16 << 20
_BATCH_ROWS = 4096
_BUFFER_BYTES = 1 << 20  # a row group of images is read by and by, not whole
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


def describe(paths: list[Path]) -> tuple[pa.Schema, list[int]]:
    """The columns of all files together, in plain types, and the rows of each.

    Raises:
        UsageError: a file cannot be read, has two columns of one name, or other types than the first.
    """
    schemas, counts = [], []
    for path in paths:
        name = printable(str(path))
        try:
            with pq.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        except _UNREADABLE as error:
            hint = "was it cut short while being written or copied?"
            raise UsageError(f"{name} is not a Parquet file that can be read: {_first_line(error)}", hint) from error
        if not schema.names:
            raise UsageError(f"{name} has no columns", "give a Parquet file that names media")
        twice = {column for column in schema.names if schema.names.count(column) > 1}
        if twice:
            raise UsageError(f"{name} has several columns of the name {printable(min(twice))}", "rename them")
        schemas.append(pa.schema([field.with_type(plain(field.type)) for field in schema], schema.metadata))
        counts.append(rows)
    try:
        unified = pa.unify_schemas(schemas, promote_options="permissive") if schemas else pa.schema([])
    except pa.ArrowException as error:
        raise UsageError(f"the Parquet files have columns of different types: {_first_line(error)}") from error
    _refuse_unwritable(unified)
    return unified, counts


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
            raise UsageError(f"{name} cannot be written again: {_first_line(error)}", hint) from error


def _repeated(kind: pa.DataType) -> str | None:
    """A name that a struct in the type gives to several of its fields."""
    inner = [kind.field(i) for i in range(kind.num_fields)]
    names = [field.name for field in inner] if pa.types.is_struct(kind) else []
    twice = [name for name in names if names.count(name) > 1]
    return twice[0] if twice else next((found for f in inner if (found := _repeated(f.type)) is not None), None)


def records(path: Path, schema: pa.Schema, passed: int = 0) -> Iterator[dict[str, Any] | ParseError]:
    """One row after the other as Python values, `schema`'s columns; a row group that is damaged gives errors.

    `passed` rows are passed over at the beginning; row groups among them are not read.

    Times that Python has no exact type for (nanoseconds of a day, years after 9999) come as Arrow stores them, as
    integers: these fit the column's type again, and travel between processes.
    """
    with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
        names = [name for name in schema.names if name in file.schema_arrow.names]
        fields = [schema.field(name) for name in names]
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            if passed >= facts.num_rows:
                passed -= facts.num_rows
                continue
            size = max(1, facts.total_byte_size // max(1, facts.num_rows))
            rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // size))
            done = 0
            try:
                for batch in file.iter_batches(rows, row_groups=[group], columns=None):
                    if passed >= done + len(batch):
                        done += len(batch)
                        continue
                    batch = batch.slice(max(0, passed - done))
                    done = max(done, passed)
                    columns = [_values(batch.column(field.name)) for field in fields]
                    for values in zip(*columns, strict=True):
                        yield dict(zip(names, values, strict=True))
                        done += 1
            except _UNREADABLE as error:
                message = f"row group {group} of the Parquet file is damaged: {_first_line(error)}"
                for _ in range(facts.num_rows - max(done, passed)):
                    yield ParseError("damaged", message)
            passed = 0


def plain(kind: pa.DataType) -> pa.DataType:
    """The type without encodings and without what `datasets` cannot read.

    Dictionary and run-end encoding are undone, extensions give way to their storage, but UUIDs to text and 8-bit truth
    values to plain ones, views to plain lists, text and bytes, maps to lists of {key, value}, small decimals to 128
    bits.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        own = {pa.UuidType: pa.string(), pa.Bool8Type: pa.bool_()}.get(type(kind))
        return plain(kind.storage_type) if own is None else own
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return plain(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if types.is_map(kind):
        pair = [pa.field("key", plain(kind.key_type), nullable=False), pa.field("value", plain(kind.item_type))]
        return pa.list_(pa.struct(pair))
    if types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)), kind.list_size)
    if types.is_large_list(kind) or types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(plain(kind.value_type)))
    if types.is_list(kind) or types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain(kind.value_type)))
    if types.is_string_view(kind):
        return pa.string()
    if types.is_binary_view(kind):
        return pa.binary()
    if types.is_decimal32(kind) or types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _values(array: pa.Array) -> list[Any]:
    if is_inexact(array.type):
        array = array.cast(_with_integers(array.type))
    values = python_values(array)
    if any(isinstance(value, pa.Scalar) for value in values):
        values = python_values(array.cast(_with_integers(array.type)))
    if _has_own_values(array.type):
        return [_plain_value(value, array.type) for value in values]
    return values


def _with_integers(kind: pa.DataType) -> pa.DataType:
    """The type with integers in the place of times: what Arrow stores, and takes back as the same times."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(_with_integers(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_with_integers(kind.key_type), _with_integers(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_with_integers(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_with_integers(kind.value_type))
    if types.is_list(kind):
        return pa.list_(_with_integers(kind.value_type))
    if types.is_temporal(kind):
        return pa.int32() if kind.bit_width == 32 else pa.int64()
    return kind


def _has_own_values(kind: pa.DataType) -> bool:
    """Whether Python's values of a type, or of one inside it, are others than those of its plain type."""
    if pa.types.is_map(kind) or isinstance(kind, pa.UuidType):
        return True
    return any(_has_own_values(inner) for inner in _inner(kind))


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return [kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, pa.UuidType):
        return str(value)
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain_value(value, _inner(kind)[0])
    if pa.types.is_map(kind):
        return [
            {"key": _plain_value(key, kind.key_type), "value": _plain_value(part, kind.item_type)}
            for key, part in value
        ]
    if pa.types.is_struct(kind):
        return {field.name: _plain_value(value[field.name], field.type) for field in kind}
    if isinstance(value, list):
        return [_plain_value(part, kind.value_type) for part in value]
    return value


def _first_line(error: BaseException) -> str:
    return printable(str(error).strip().split("\n")[0])
