"""Any value that a column can hold -> JSON that every reader takes."""

from __future__ import annotations

import base64
import datetime
import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(value: Any) -> str:
    """Strict JSON on one line.

    NaN and Infinity become null; decimals and other numbers without a JSON form, text; times, ISO 8601; bytes, base64.
    Lone surrogates are left in the text: `encode` escapes them.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)
    except (ValueError, TypeError):  # NaN or Infinity somewhere, or keys that are not text
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_plain)


def encode(value: Any) -> bytes:
    """Strict JSON as UTF-8, lone surrogates as `\\udXXX` escapes, which is how JSON itself can name them."""
    return dumps(value).encode("utf-8", "backslashreplace")


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
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)  # Decimal, UUID, Arrow scalars that Python has no type for
