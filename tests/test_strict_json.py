"""JSON that every reader takes, of any value a column can hold."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import strict_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refuse(word: str) -> Any:
    raise AssertionError(f"{word} is not JSON")


def finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [finite(part) for part in value]
    return {key: finite(part) for key, part in value.items()} if isinstance(value, dict) else value


@given(JSON)
def test_any_json_comes_back(value: Any) -> None:
    data = strict_json.encode(value)
    assert b"\n" not in data
    assert json.loads(data.decode("utf-8"), parse_constant=refuse) == finite(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (decimal.Decimal("1.50"), '"1.50"'),
        (datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC), '"2020-01-02T03:00:00+00:00"'),
        (datetime.date(2020, 1, 2), '"2020-01-02"'),
        (datetime.time(1, 2, 3), '"01:02:03"'),
        (datetime.timedelta(seconds=90.5), '"PT90.5S"'),
        (datetime.timedelta(days=-1), '"PT-86400S"'),
        (b"\xff", '"/w=="'),
        (uuid.UUID(int=0), '"00000000-0000-0000-0000-000000000000"'),
        ({1: float("nan"), "t": (decimal.Decimal(1), float("inf"))}, '{"1": null, "t": ["1", null]}'),
        (pa.scalar(253_402_300_800, pa.timestamp("s")), '"10000-01-01T00:00:00"'),
        (pa.scalar([{"t": 1}], pa.list_(pa.struct({"t": pa.time64("ns")}))), '[{"t": "00:00:00.000000001"}]'),
        ("caf\udce9", '"caf\\udce9"'),
    ],
)
def test_values_without_a_json_form(value: Any, text: str) -> None:
    assert strict_json.encode(value).decode() == text
