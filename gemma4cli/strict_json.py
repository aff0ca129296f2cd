"""Any value that a column can hold -> JSON that every reader takes."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

import pyarrow as pa


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON on one line.

    NaN and Infinity become null; decimals and other numbers without a JSON form, text; times, ISO 8601; bytes, base64.
    Lone surrogates are left in the text: `encode` escapes them.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain, indent=indent)
    except (ValueError, TypeError):  # NaN or Infinity somewhere, or keys that are not text
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain, indent=indent)


def encode(value: Any, indent: int | None = None) -> bytes:
    """Strict JSON as UTF-8, lone surrogates as `\\udXXX` escapes, which is how JSON itself can name them."""
    return dumps(value, indent).encode("utf-8", "backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _finite(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return f"PT{value.total_seconds():.9f}".rstrip("0").rstrip(".") + "S"
    if isinstance(value, pa.Scalar):
        return _of_scalar(value)
    return dict(value) if isinstance(value, Mapping) else str(value)  # Decimal and UUID, among others


def _of_scalar(scalar: pa.Scalar) -> Any:
    """An Arrow scalar, which stands where Python has no exact type: times in nanoseconds, the year 10000."""
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(scalar.type):
        try:
            if scalar.type != pa.time64("ns"):  # which Python's times would cut to microseconds
                return _plain(scalar.as_py())
        except (ValueError, OverflowError):  # the year 10000
            pass
        return str(scalar.cast(pa.string())).replace(" ", "T")
    if pa.types.is_struct(scalar.type):
        return {field.name: _of_scalar(scalar[i]) for i, field in enumerate(scalar.type)}
    if pa.types.is_nested(scalar.type):
        return [_of_scalar(part) for part in scalar.values]
    return _finite(scalar.as_py())
