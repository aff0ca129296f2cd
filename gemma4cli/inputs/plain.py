"""Arrow's types and values as those that every reader of our output knows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from gemma4cli.tables import is_inexact, python_values


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


def values_of(array: pa.Array) -> list[Any]:
    """A column's values as those of its plain type."""
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
