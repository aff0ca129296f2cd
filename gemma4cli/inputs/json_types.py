"""The Arrow types of columns whose values come as JSON, learnt chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gemma4cli.errors import UsageError

_MOST_COLUMNS = 2_000
_MOST_FIELDS = 200  # an object with more keys is a table of its own, not a struct
_MOST_LEVELS = 16  # of lists and objects in each other; Parquet's own end comes at about 60
_EXACT = 1 << 53  # integers beyond are not exact as doubles
_UNFIT = (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError, RecursionError)


class ColumnTypes:
    """Collects the types of all chunks; a column that no one type fits is one of JSON text.

    Such are mixed types, integers over 64 bits, integers over 2^53 beside fractions, and objects without keys or
    with very many, and deep nesting.
    """

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType | None] = {}  # None: JSON text
        self._wide: set[tuple[str, ...]] = set()

    def add(self, records: list[dict[str, Any]]) -> None:
        """Takes the types of one chunk of records into account.

        Raises:
            UsageError: there is no end of different columns.
        """
        for record in records:
            if not record.keys() <= self._types.keys():
                for name in record:
                    self._types.setdefault(name, pa.null())
        if len(self._types) > _MOST_COLUMNS:
            message = f"the manifest's objects have more than {_MOST_COLUMNS} different keys"
            raise UsageError(message, "each key becomes a column: put such data under one key")
        for name, array in self._arrays(records):
            fit = array is not None and _levels(array.type) <= _MOST_LEVELS
            self._types[name] = self._unified(name, array) if fit else None

    def schema(self) -> tuple[pa.Schema, frozenset[str]]:
        """The columns in order of appearance, and which of them are JSON text."""
        exact = {name: None if kind is None else self._exact(name, kind) for name, kind in self._types.items()}
        fields = [pa.field(name, pa.string() if kind is None else kind) for name, kind in exact.items()]
        return pa.schema(fields), frozenset(name for name, kind in exact.items() if kind is None)

    def _arrays(self, records: list[dict[str, Any]]) -> Iterator[tuple[str, pa.Array | None]]:
        try:
            struct = pa.array(records, type=None if records else pa.struct([]))
        except _UNFIT:
            for name in [name for name, kind in self._types.items() if kind is not None]:
                try:
                    yield name, pa.array([record.get(name) for record in records])
                except _UNFIT:
                    yield name, None
        else:
            for i, field in enumerate(struct.type):
                if self._types[field.name] is not None:
                    yield field.name, struct.field(i)

    def _unified(self, name: str, array: pa.Array) -> pa.DataType | None:
        self._wide.update(_wide_integers(array, (name,)))
        known = self._types[name]
        if known == array.type:
            return known
        try:
            schemas = [pa.schema([pa.field("x", kind)]) for kind in (known, array.type)]
            return pa.unify_schemas(schemas, promote_options="permissive").field("x").type
        except pa.ArrowException:
            return None

    def _exact(self, name: str, kind: pa.DataType) -> pa.DataType | None:
        if not _storable(kind) or _fields(kind) > _MOST_FIELDS:
            return None
        inexact = any(path[0] == name and pa.types.is_floating(_leaf(kind, path[1:])) for path in self._wide)
        return None if inexact else kind


def _wide_integers(array: pa.Array, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    kind = array.type
    if pa.types.is_struct(kind):
        for i, field in enumerate(kind):
            yield from _wide_integers(array.field(i), (*path, field.name))
    elif pa.types.is_list(kind):
        yield from _wide_integers(array.flatten(), (*path, ""))
    elif pa.types.is_integer(kind) and len(array):
        least, most = pc.min_max(array).as_py().values()
        if least is not None and (least < -_EXACT or most > _EXACT):
            yield path


def _leaf(kind: pa.DataType, path: tuple[str, ...]) -> pa.DataType:
    for step in path:
        kind = kind.field(step).type if pa.types.is_struct(kind) else kind.value_type
    return kind


def _storable(kind: pa.DataType) -> bool:
    """Parquet has no struct without fields."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(_storable(field.type) for field in kind)
    return not pa.types.is_list(kind) or _storable(kind.value_type)


def _levels(kind: pa.DataType) -> int:
    """How deep a type's lists and structs lie in each other; 0 for plain values."""
    depth, nested = 0, [kind]
    while nested := [each for each in nested if pa.types.is_nested(each)]:  # not by recursion, which has an end
        depth += 1
        nested = [each.field(i).type for each in nested for i in range(each.num_fields)]
    return depth


def _fields(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return int(sum(_fields(field.type) for field in kind))
    return _fields(kind.value_type) if pa.types.is_list(kind) else 1
