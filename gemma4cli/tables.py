"""Rows and Python values <-> Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa

from gemma4cli.errors import JobError
from gemma4cli.escaping import printable, without_surrogates
from gemma4cli.records import Item, Kind, Media, Row
from gemma4cli.schema import DUPLICATE_KEY, DUPLICATE_OF, ROW_FIELDS

_LONGEST_ADDRESS = 8192
_own_values = attrgetter(*ROW_FIELDS)


def table_of(rows: Sequence[Row], schema: pa.Schema, names: Mapping[str, str], answers: Sequence[str] = ()) -> pa.Table:
    """Rows as a table of the output's schema.

    Args:
        names: what each carried column is called there.
        answers: its columns of typed answers.

    Raises:
        JobError: a carried value does not fit its column's type.
    """
    columns: list[Sequence[Any]] = list(zip(*map(_own_values, rows), strict=True)) or [()] * len(ROW_FIELDS)
    columns += [[getattr(row, name) for row in rows] for name in answers]
    if DUPLICATE_OF in schema.names:
        columns.append([row.extra.get(DUPLICATE_KEY) for row in rows])
    columns += [[row.extra.get(name) for row in rows] for name in names]
    pairs = zip(columns, schema, strict=True)
    return pa.Table.from_arrays([_array(values, field, rows) for values, field in pairs], schema=schema)


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns and types of a schema; columns that it lacks are null.

    Raises:
        ArrowInvalid: a value does not fit its new type.
    """
    if table.schema.equals(schema):
        return table.replace_schema_metadata(schema.metadata)
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def record_of(row: Row, names: Mapping[str, str], answers: Sequence[str] = ()) -> dict[str, Any]:
    """A row as one record, in the output's order and names."""
    record = dict(zip(ROW_FIELDS, _own_values(row), strict=True))
    record |= {name: getattr(row, name) for name in answers}
    for name, out in names.items():
        record[out] = row.extra.get(name)
    return record


def manifest_record(item: Item) -> dict[str, Any]:
    """A row's input as a record that a manifest can have: absolute paths, the prompt and the carried columns.

    Media without an address are null, as are long data: URIs and members of a tar: their bytes are in the manifest
    that they came from.
    """
    record: dict[str, Any] = {"id": item.id}
    if item.system is not None or any(isinstance(part, str) for part in item.content):
        return {**item.extra, **record, **_as_said(item)}
    kinds = [medium.kind for medium in item.media]
    for kind in dict.fromkeys(kinds):
        media = [medium for medium in item.media if medium.kind is kind]
        found = [_address(medium) for medium in media]
        name = kind.value if kind is not None and None not in kinds else "path"
        record[name if len(found) == 1 else f"{name}s"] = found[0] if len(found) == 1 else found
    if item.prompt is not None:
        record["prompt"] = item.prompt
    return {**item.extra, **record}


def _as_said(item: Item) -> dict[str, Any]:
    """A row's media and texts in order, as whole messages where it had those."""
    parts: list[Any] = []
    for part in item.content:
        if isinstance(part, str):
            parts.append({"type": "text", "text": part})
        else:
            name = f"{part.kind or Kind.IMAGE}_url"
            parts.append({"type": name, name: {"url": _address(part)}})
    if item.prompt != "":
        return {"content": parts, **({} if item.prompt is None else {"prompt": item.prompt})}
    system = [] if item.system is None else [{"role": "system", "content": item.system}]
    return {"messages": [*system, {"role": "user", "content": parts}]}


def _address(medium: Media) -> str | None:
    named = medium.data is None and medium.span is None and 0 < len(medium.location) <= _LONGEST_ADDRESS
    return medium.location if named else None


def nbytes(row: Row) -> int:
    """About how much memory a row takes."""
    texts = sum(len(value) for value in row.extra.values() if isinstance(value, (str, bytes)))
    texts += sum(len(output["text"] or "") for output in (row.outputs or {}).values())
    return 1000 + len(row.text or "") + texts


def python_values(array: pa.Array | pa.ChunkedArray) -> list[Any]:
    """An array's values; Arrow scalars where Python has no exact type (nanoseconds of a day, the year 10000).

    Text that is not UTF-8 comes with its bytes as lone surrogates, as Python's file names have them.
    """
    if not is_inexact(array.type):
        try:
            return list(array.to_pylist())
        except UnicodeDecodeError:
            if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
                raw = array.cast(pa.large_binary()).to_pylist()
                return [None if data is None else data.decode("utf-8", "surrogateescape") for data in raw]
        except (ValueError, OverflowError):
            pass
    return [scalar if scalar.is_valid else None for scalar in array]


def has_times(kind: pa.DataType) -> bool:
    """Whether a type is one of times, or holds some."""
    return pa.types.is_temporal(kind) or any(has_times(kind.field(i).type) for i in range(kind.num_fields))


def is_inexact(kind: pa.DataType) -> bool:
    """Whether a type holds nanoseconds of a day, which Python's times do not."""
    return kind == pa.time64("ns") or any(is_inexact(kind.field(i).type) for i in range(kind.num_fields))


def _array(values: Sequence[Any], field: pa.Field, rows: Sequence[Row]) -> pa.Array | pa.ChunkedArray:
    try:
        return pa.array(values, type=field.type)
    except UnicodeEncodeError:
        return pa.array([without_surrogates(value) for value in values], type=field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        for value, row in zip(values, rows, strict=True):
            try:
                pa.array([value], type=field.type)
            except (pa.ArrowException, OverflowError, TypeError, ValueError):
                shown = printable(repr(value)[:80])
                message = f"row {row.row_index}: {field.name} does not fit its type {field.type}: {shown}"
                raise JobError(message, "was the input changed while the job ran?") from error
        raise
