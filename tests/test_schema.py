"""The output's columns and what they tell `datasets`."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.schema import ROW_FIELDS, carried_names, feature, output_schema

TYPES = [
    pa.null(),
    pa.bool_(),
    pa.uint8(),
    pa.int64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.binary(4),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("ns"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.duration("ms"),
    pa.decimal128(10, 2),
    pa.decimal256(60, 5),
    pa.list_(pa.string()),
    pa.list_(pa.null()),
    pa.large_list(pa.int8()),
    pa.list_(pa.float32(), 3),
    pa.struct({"a": pa.list_(pa.struct({"b": pa.decimal128(5, 1)})), "c": pa.timestamp("s")}),
]


def test_own_columns_come_first_in_the_records_order() -> None:
    schema = output_schema(pa.schema({"label": pa.string()}), {"model": "m"})
    assert schema.names == [*ROW_FIELDS, "label"]
    assert schema.field("row_index").type == pa.int64()
    assert schema.field("status").type == pa.string()
    assert schema.field("duration_s").type == pa.float64()
    assert json.loads(schema.metadata[b"gemma4cli"]) == {"model": "m"}


def test_carried_columns_never_take_a_name_that_is_ours() -> None:
    columns = pa.schema({"text": pa.int64(), "input_text": pa.int64(), "x": pa.int64(), "id": pa.string()})
    assert carried_names(columns) == {
        "text": "input_input_text",
        "input_text": "input_text",
        "x": "x",
        "id": "input_id",
    }


NAMES = [prefix + name for prefix in ("", "input_", "input_input_") for name in ("id", "text", "Text", "x")]


@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_carried_names_are_all_different(names: list[str]) -> None:
    out = carried_names(pa.schema({name: pa.int64() for name in names}))
    assert list(out) == names
    assert len({*out.values(), *ROW_FIELDS}) == len(names) + len(ROW_FIELDS)
    assert all(new == old for old, new in out.items() if old.lower() not in ROW_FIELDS)
    assert not {name.lower() for old, name in out.items() if old != name} & {*ROW_FIELDS}


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_features_are_those_of_datasets(kind: pa.DataType) -> None:
    own = datasets.Features.from_arrow_schema(pa.schema({"x": kind})).to_dict()["x"]
    assert feature(kind) == own


def test_types_that_datasets_has_no_word_for_leave_its_description_out() -> None:
    for kind in (pa.map_(pa.string(), pa.int64()), pa.struct({"_type": pa.string()}), pa.decimal32(5, 1)):
        assert set(output_schema(pa.schema({"x": kind}), {}).metadata) == {b"gemma4cli"}


def test_datasets_reads_the_output_typed(tmp_path: Path) -> None:
    values = {
        "nested": (
            [{"a": [1, None], "b": {"c": "x"}}],
            pa.struct({"a": pa.list_(pa.int32()), "b": pa.struct({"c": pa.string()})}),
        ),
        "decimal": ([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
        "when": ([datetime.datetime(2020, 1, 2, 3, 4, 5, 6)], pa.timestamp("us")),
        "list": ([[0.5, None]], pa.list_(pa.float64())),
        "nothing": ([None], pa.null()),
        "label": ([1], pa.int64()),
    }
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    columns = pa.schema(
        {name: kind for name, (_, kind) in values.items()},
        {"huggingface": json.dumps({"info": {"features": {"label": label}}})},
    )
    schema = output_schema(columns, {})
    arrays = [pa.array(values[name][0] if name in values else [None], schema.field(name).type) for name in schema.names]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), tmp_path / "x.parquet")
    data = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "x.parquet"), cache_dir=str(tmp_path), split="train"
    )
    assert data.features["label"].names == ["no", "yes"]
    assert data.features.arrow_schema.remove_metadata() == schema.remove_metadata()
    row = data[0]
    assert {name: row[name] for name in values} == {name: cells[0] for name, (cells, _) in values.items()}
