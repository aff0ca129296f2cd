"""Parquet manifests: types carried unchanged, media embedded or named, damage contained."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.records import Item, Kind

ALL = InputOptions(kinds=frozenset(Kind))


def write(path: Path, table: pa.Table, **options: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return str(path)


def read(path: str, options: InputOptions = ALL) -> tuple[pa.Schema, list[Item]]:
    inputs = open_inputs([path], options)
    items = list(inputs)
    assert inputs.total == len(items)
    assert [item.row_index for item in items] == list(range(len(items)))
    return inputs.columns, items


COLUMNS = {
    "struct": pa.array([{"w": 1, "t": ["a", None]}, None], pa.struct({"w": pa.int32(), "t": pa.list_(pa.string())})),
    "decimal": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(10, 2)),
    "wide decimal": pa.array([decimal.Decimal("1.5"), None], pa.decimal256(60, 5)),
    "ns": pa.array([1_234_567_890_123_456_789, None], pa.timestamp("ns", "Europe/Berlin")),
    "us": pa.array([-5, None], pa.timestamp("us")),
    "far": pa.array([2**62, None], pa.timestamp("us")),
    "time": pa.array([12_345_678_901_231, None], pa.time64("ns")),
    "times": pa.array([[12_345_678_901_231], None], pa.list_(pa.time64("ns"))),
    "duration": pa.array([1_234_567_890_123_456_789, None], pa.duration("ns")),
    "date": pa.array([datetime.date(2020, 1, 1), None], pa.date32()),
    "large": pa.array(["x", None], pa.large_string()),
    "binary": pa.array([b"\xff", None], pa.binary()),
    "fixed": pa.array([b"abcd", None], pa.binary(4)),
    "list": pa.array([[1.5, None], None], pa.large_list(pa.float32())),
    "pair": pa.array([[1, 2], None], pa.list_(pa.int8(), 2)),
    "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
    "half": pa.array([1.5, None], pa.float16()),
    "nothing": pa.array([None, None], pa.null()),
}


def test_types_and_values_come_through_unchanged(tmp_path: Path) -> None:
    table = pa.table({"path": ["a.jpg", "b.jpg"], **COLUMNS})
    columns, items = read(write(tmp_path / "rows.parquet", table))
    stored = pq.read_table(tmp_path / "rows.parquet").drop_columns(["path"])
    assert columns == stored.schema.remove_metadata()
    items = pickle.loads(pickle.dumps(items))
    for field in columns:
        again = pa.array([item.extra[field.name] for item in items], field.type)
        assert again.equals(stored[field.name].combine_chunks()), field.name


def test_encodings_are_undone(tmp_path: Path) -> None:
    mapping = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    words = pa.array(["x", None]).dictionary_encode()
    table = pa.table({"path": pa.array(["a.jpg", "b.jpg"]).dictionary_encode(), "word": words, "map": mapping})
    columns, items = read(write(tmp_path / "rows.parquet", table))
    assert items[0].source == "a.jpg"
    assert columns.field("word").type == pa.string()
    assert [item.extra["word"] for item in items] == ["x", None]
    assert [item.extra["map"] for item in items] == [[{"key": "a", "value": 1}], None]
    assert pa.array([item.extra["map"] for item in items], columns.field("map").type).null_count == 1


def test_datasets_features_name_the_media_and_classes_stay_named(tmp_path: Path) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    features = {"scan": {"_type": "Image"}, "label": label, "n": {"dtype": "int64", "_type": "Value"}}
    scans = pa.array([{"bytes": b"png", "path": None}, {"bytes": None, "path": "a.png"}, None], kind)
    table = pa.table({"scan": scans, "label": [0, 1, 0], "n": [1, 2, 3]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    columns, items = read(write(tmp_path / "rows.parquet", table))
    assert columns.names == ["label", "n"]
    assert json.loads(columns.metadata[b"huggingface"])["info"]["features"]["label"] == label
    assert items[0].media[0].data == b"png"
    assert items[0].source == f"{tmp_path}/rows.parquet row 0"
    assert items[1].media[0].location == str(tmp_path / "a.png")
    assert [m.kind for item in items for m in item.media] == [Kind.IMAGE, Kind.IMAGE]
    assert items[2].failure is not None


def test_plain_bytes_and_lists_of_structs(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    clips = pa.array([[{"bytes": b"1", "path": None}, {"bytes": None, "path": "b.mp4"}]], kind)
    table = pa.table({"audio": [b"wav"], "clip": clips})
    _, (item,) = read(write(tmp_path / "rows.parquet", table))
    assert [(m.kind, m.data) for m in item.media] == [
        (Kind.AUDIO, b"wav"),
        (Kind.VIDEO, b"1"),
        (Kind.VIDEO, None),
    ]


def test_structs_of_bytes_and_path_are_media_whatever_their_name(tmp_path: Path) -> None:
    table = pa.table({"x": [1], "scan": pa.array([{"bytes": b"png", "path": "a.png"}])})
    columns, (item,) = read(write(tmp_path / "rows.parquet", table))
    assert columns.names == ["x"]
    assert (item.media[0].kind, item.media[0].data, item.source) == (None, b"png", "a.png")


def test_folder_of_parts(tmp_path: Path) -> None:
    for n in (2, 10, 1):
        write(tmp_path / f"data/part-{n}.parquet", pa.table({"path": ["a.jpg"], "n": [n]}))
    (tmp_path / "README.md").write_text("about")
    (tmp_path / ".cache").mkdir()
    assert [item.extra["n"] for item in read(str(tmp_path))[1]] == [1, 2, 10]
    options = InputOptions(kinds=ALL.kinds, limit=2)
    assert [item.extra["n"] for item in read(str(tmp_path), options)[1]] == [1, 2]


def test_parts_with_other_columns_are_read_as_one(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"path": ["a.jpg"], "n": pa.array([1], pa.int32())}))
    write(tmp_path / "b.parquet", pa.table({"path": ["b.jpg"], "m": ["x"], "n": pa.array([2**40])}))
    columns, items = read(str(tmp_path))
    assert columns == pa.schema({"n": pa.int64(), "m": pa.string()})
    assert [item.extra for item in items] == [{"n": 1, "m": None}, {"n": 2**40, "m": "x"}]
    write(tmp_path / "c.parquet", pa.table({"path": [b"c.jpg"], "n": ["text"]}))
    with pytest.raises(UsageError, match="different types"):
        open_inputs([str(tmp_path)], ALL)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "whole.parquet", pa.table({"path": ["a.jpg"] * 1000}))).read_bytes()
    for name, data in {"cut.parquet": whole[: len(whole) // 2], "empty.parquet": b"", "text.parquet": b"hello"}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=name):
            open_inputs([str(tmp_path / name)], ALL)
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["path", "path"])
    with pytest.raises(UsageError, match="several columns"):
        open_inputs([write(tmp_path / "twice.parquet", twice)], ALL)


def test_damaged_row_group_fails_its_own_rows_only(tmp_path: Path) -> None:
    paths = [f"{i:06d}.jpg" for i in range(3000)]
    name = write(tmp_path / "rows.parquet", pa.table({"path": paths}), row_group_size=1000, use_dictionary=False)
    column = pq.ParquetFile(name).metadata.row_group(1).column(0)
    data = bytearray(Path(name).read_bytes())
    start = column.data_page_offset
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    Path(name).write_bytes(data)
    _, items = read(name)
    assert [item.failure and item.failure.type for item in items] == [None] * 1000 + ["damaged"] * 1000 + [None] * 1000
    assert items[2000].source == "002000.jpg"


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    raw = pa.array([b"a.jpg", b"\xff.jpg"])
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    _, items = read(write(tmp_path / "rows.parquet", pa.table({"id": text, "path": text, "note": text})))
    assert items[1].media[0].location == f"{tmp_path}/\udcff.jpg"
    assert items[1].id == r"\xff.jpg"
    assert items[1].source == r"\xff.jpg"


def test_no_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path / "rows.parquet", pa.table({"path": pa.array([], pa.string())})))[1] == []


def test_types_of_arrows_own_are_carried_as_plain_ones(tmp_path: Path) -> None:
    one = uuid.UUID(int=1)
    uuids = pa.array([one.bytes, None], pa.uuid())
    columns = {
        "truth": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None], pa.int8())),
        "list": pa.ListArray.from_arrays([0, 1, 2], uuids),
        "struct": pa.StructArray.from_arrays([uuids], names=["u"]),
        "view": pa.array([[1], None], pa.large_list_view(pa.int64())),
    }
    expected = {
        "truth": (pa.bool_(), [True, None]),
        "list": (pa.list_(pa.string()), [[str(one)], [None]]),
        "struct": (pa.struct({"u": pa.string()}), [{"u": str(one)}, {"u": None}]),
        "view": (pa.large_list(pa.int64()), [[1], None]),
    }
    schema, items = read(write(tmp_path / "rows.parquet", pa.table({"path": ["a.jpg", "b.jpg"], **columns})))
    for name, (kind, values) in expected.items():
        assert schema.field(name).type.equals(kind) or name == "list"
        assert [item.extra[name] for item in items] == values
        assert pa.array(values, schema.field(name).type).to_pylist() == values


def test_structs_with_two_fields_of_one_name_are_refused(tmp_path: Path) -> None:
    fields = [pa.field("a", pa.int64()), pa.field("a", pa.int64())]
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], fields=fields)
    path = write(tmp_path / "rows.parquet", pa.table({"path": ["a.jpg"], "x": twice}))
    with pytest.raises(UsageError, match="x has several fields of the name a"):
        open_inputs([path], ALL)
