"""JSON Lines manifests: lines to rows, and the types of their columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, Inputs, open_inputs
from gemma4cli.inputs.json_types import ColumnTypes
from gemma4cli.records import Item, Kind, Stage

ALL = InputOptions(kinds=frozenset(Kind))


def manifest(folder: Path, content: bytes | list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    data = content if isinstance(content, bytes) else b"".join(json.dumps(row).encode() + b"\n" for row in content)
    (folder / name).write_bytes(data)
    return str(folder / name)


def read(folder: Path, content: bytes | list[dict[str, Any]], options: InputOptions = ALL) -> tuple[Inputs, list[Item]]:
    inputs = open_inputs([manifest(folder, content)], options)
    items = list(inputs)
    assert inputs.total == len(items)
    assert [item.row_index for item in items] == list(range(len(items)))
    assert items == list(inputs)
    return inputs, items


def refusal(folder: Path, content: bytes | list[dict[str, Any]], options: InputOptions = ALL) -> UsageError:
    with pytest.raises(UsageError) as caught:
        open_inputs([manifest(folder, content)], options)
    return caught.value


def failures(items: list[Item]) -> list[str | None]:
    assert all(item.failure is None or item.failure.stage is Stage.PARSE for item in items)
    return [None if item.failure is None else item.failure.type for item in items]


def test_row_carries_the_other_columns(tmp_path: Path) -> None:
    row = {"id": 7, "path": "a b.jpg", "prompt": "What?", "label": "cat", "n": 3, "box": {"x": 1.5}}
    inputs, (item,) = read(tmp_path, [row], InputOptions(kinds=ALL.kinds, prompt_column="prompt"))
    assert (item.id, item.source, item.prompt) == ("7", "a b.jpg", "What?")
    assert item.media[0].location == str(tmp_path / "a b.jpg")
    assert item.extra == {"prompt": "What?", "label": "cat", "n": 3, "box": {"x": 1.5}}
    assert inputs.columns == pa.schema(
        {"prompt": pa.string(), "label": pa.string(), "n": pa.int64(), "box": pa.struct({"x": pa.float64()})}
    )


def test_bad_lines_are_failed_rows_with_their_line_number(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"path": "a.jpg"}\r',
        b"",
        b" \t",
        b"{'path': 'b.jpg'}",
        b'{"path": "\xff.jpg"}',
        b'["c.jpg"]',
        b'{"path": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"path": "d',
    ]
    _, items = read(tmp_path, b"\n".join(lines))
    assert failures(items) == [None, "not_json", "not_utf8", "not_an_object", "not_json", "not_json", "truncated"]
    assert "line 4" in items[1].failure.message  # type: ignore[union-attr]
    assert "line 9" in items[6].failure.message  # type: ignore[union-attr]
    assert items[1].id == "row 1"


def test_cells_that_name_no_medium(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"id": "none"},
        {"path": None},
        {"path": "  "},
        {"path": 42},
        {"path": True},
        {"path": ["a.jpg"]},
        {"path": {"bytes": "!!"}},
        {"path": {"bytes": ""}},
        {"path": {"array": [0.0]}},
        {"path": "gopher://host/a.jpg"},
        {"path": {}},
    ]
    _, items = read(tmp_path, rows)
    expected = ["no_media"] * 3 + ["wrong_type"] * 3 + ["bad_base64", "no_media", "wrong_type", "unsupported_scheme"]
    assert failures(items) == [*expected, "no_media"]
    assert items[0].id == "none"


def test_cells_that_name_media(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"image": "a.jpg"},
        {"image": "/abs/a.jpg"},
        {"image": "https://host/a.jpg"},
        {"image": "file:///a%20b.jpg"},
        {"image": {"path": "a.jpg", "bytes": None}},
        {"image": {"path": "wrong.jpg", "bytes": "eHl6"}},
        {"image": {"url": "https://host/a.jpg"}},
    ]
    _, items = read(tmp_path, rows)
    media = [item.media[0] for item in items]
    base = str(tmp_path)
    assert [m.location for m in media] == [
        f"{base}/a.jpg",
        "/abs/a.jpg",
        "https://host/a.jpg",
        "file:///a%20b.jpg",
        f"{base}/a.jpg",
        f"{base}/wrong.jpg",
        "https://host/a.jpg",
    ]
    assert [m.data for m in media] == [None] * 5 + [b"xyz", None]
    assert {m.kind for m in media} == {Kind.IMAGE}


def test_several_media_in_a_row_keep_their_order(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"audio": "a.wav", "images": ["1.jpg", {"path": "2.jpg"}], "video": "v.mp4"},
        {"audio": None, "images": ["1.jpg"]},
        {"audio": "", "images": []},
        {"audio": "a.wav", "images": ["1.jpg", None]},
    ]
    _, items = read(tmp_path, rows)
    assert [Path(m.location).name for m in items[0].media] == ["a.wav", "1.jpg", "2.jpg", "v.mp4"]
    assert [m.kind for m in items[0].media] == [Kind.AUDIO, Kind.IMAGE, Kind.IMAGE, Kind.VIDEO]
    assert [Path(m.location).name for m in items[1].media] == ["1.jpg"]
    assert failures(items) == [None, None, "no_media", "no_media"]


def test_task_says_what_the_media_are(tmp_path: Path) -> None:
    options = InputOptions(kinds=frozenset({Kind.AUDIO, Kind.VIDEO}), kind=Kind.AUDIO)
    _, (item,) = read(tmp_path, [{"video": "talk.mp4", "image": "slide.jpg"}], options)
    assert [m.kind for m in item.media] == [Kind.AUDIO]
    assert item.extra == {"image": "slide.jpg"}
    _, (item,) = read(tmp_path, [{"video": "talk.mp4", "audio": "talk.wav"}], options)
    assert [Path(m.location).name for m in item.media] == ["talk.wav"]
    assert item.extra == {"video": "talk.mp4"}


def test_media_column_goes_down_into_objects(tmp_path: Path) -> None:
    rows = [{"sample": {"file": {"path": "a.jpg", "bytes": None}, "size": 3}}, {"sample": None}]
    options = InputOptions(kinds=ALL.kinds, media_columns=("sample.file.path",))
    inputs, items = read(tmp_path, rows, options)
    assert items[0].source == "a.jpg"
    assert inputs.columns == pa.schema({"sample": pa.struct({"size": pa.int64()})})
    assert items[0].extra["sample"]["size"] == 3
    assert failures(items) == [None, "no_media"]
    assert "no field" in str(refusal(tmp_path, rows, InputOptions(kinds=ALL.kinds, media_columns=("sample.nothing",))))


def test_ids(tmp_path: Path) -> None:
    cells: list[Any] = ["x", "x", 7, 7.5, "", None, True, {"a": 1}, "lone \ud800"]
    _, items = read(tmp_path, [{"id": cell, "path": "a.jpg"} for cell in cells])
    assert [i.id for i in items] == ["x", "x", "7", "7.5", "row 4", "row 5", "true", '{"a": 1}', "lone \\ud800"]
    options = InputOptions(kinds=ALL.kinds, id_column="name")
    inputs, (item,) = read(tmp_path, [{"id": 1, "name": "n", "path": "a.jpg"}], options)
    assert item.id == "n"
    assert inputs.columns.names == ["id"]
    assert read(tmp_path, [{"custom_id": "c", "path": "a.jpg"}])[1][0].id == "c"


def test_prompts(tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "q": q} for q in ["Who?", None, "", 3]]
    inputs, items = read(tmp_path, rows, InputOptions(kinds=ALL.kinds, prompt_column="q"))
    assert [item.prompt for item in items] == ["Who?", None, None, None]
    assert failures(items) == [None, None, None, "wrong_type"]
    assert "q" in inputs.columns.names


def test_unknown_columns_are_refused_with_the_nearest(tmp_path: Path) -> None:
    rows = [{"path": "a.jpg", "caption": "c"}]
    for options in (
        InputOptions(kinds=ALL.kinds, media_columns=("pathh",)),
        InputOptions(kinds=ALL.kinds, id_column="pathh"),
        InputOptions(kinds=ALL.kinds, prompt_column="pathh"),
    ):
        error = refusal(tmp_path, rows, options)
        assert "pathh" in str(error)
        assert error.hint == "did you mean path? the columns are: path, caption"
    error = refusal(tmp_path, [{"picture_of_cat": "a.jpg"}])
    assert "--media-column" in error.hint
    assert "picture_of_cat" in error.hint


def test_rows_without_media_when_the_task_takes_none(tmp_path: Path) -> None:
    _, (item,) = read(tmp_path, [{"q": "Who?"}], InputOptions(kinds=frozenset(), prompt_column="q"))
    assert item.failure is None
    assert item.media == ()
    assert item.prompt == "Who?"


def test_columns_that_no_type_fits_become_json_text(tmp_path: Path) -> None:
    cells: list[dict[str, Any]] = [
        {"mixed": 1, "big": 2**70, "empty": {}, "wide": 2**60 + 1, "nan": float("nan"), "int": 2**60 + 1},
        {"mixed": "a", "big": 1, "empty": {}, "wide": 0.5, "nan": 0.5, "int": 1},
        {"mixed": [1.5, None], "big": None, "empty": None, "wide": 1, "nan": float("-inf"), "int": None},
    ]
    inputs, items = read(tmp_path, [{"path": "a.jpg", **row} for row in cells])
    types = {field.name: field.type for field in inputs.columns}
    assert types.pop("nan") == pa.float64()
    assert types.pop("int") == pa.int64()
    assert set(types.values()) == {pa.string()}
    for row, item in zip(cells, items, strict=True):
        for name in types:
            text = item.extra[name]
            assert (None if text is None else json.loads(text)) == row[name]


def test_types_are_those_of_all_chunks() -> None:
    types = ColumnTypes()
    types.add([{"a": 1, "s": {"x": 1}, "l": [], "wide": 2**60, "t": "x"}, {"big": {"id": 2**60}}])
    types.add([{"a": 0.5, "s": {"y": "z"}, "l": [{"k": True}], "wide": 0.5, "t": 1}, {"late": None}])
    types.add([{"big": {"id": 1, "score": 0.5}}])
    schema, as_json = types.schema()
    assert as_json == {"wide", "t"}
    assert {field.name: field.type for field in schema} == {
        "a": pa.float64(),
        "s": pa.struct({"x": pa.int64(), "y": pa.string()}),
        "l": pa.list_(pa.struct({"k": pa.bool_()})),
        "wide": pa.string(),
        "t": pa.string(),
        "big": pa.struct({"id": pa.int64(), "score": pa.float64()}),
        "late": pa.null(),
    }


def test_no_end_of_different_keys_is_refused(tmp_path: Path) -> None:
    assert "different keys" in str(refusal(tmp_path, [{f"k{i}": 1} for i in range(2_001)]))


def test_limit_reads_and_types_only_so_many_rows(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"path": "a.jpg", "n": 1}, {"path": "b.jpg", "n": "x"}]
    inputs, items = read(tmp_path, rows, InputOptions(kinds=ALL.kinds, limit=1))
    assert len(items) == 1
    assert inputs.columns.field("n").type == pa.int64()
    assert read(tmp_path, rows, InputOptions(kinds=ALL.kinds, limit=0))[1] == []


def test_several_manifests_follow_each_other(tmp_path: Path) -> None:
    names = [manifest(tmp_path, [{"path": "a.jpg", "n": n}], f"{n}.jsonl") for n in (1, 2)]
    assert [item.extra["n"] for item in open_inputs(names, ALL)] == [1, 2]
    assert [item.extra["n"] for item in open_inputs([f"{tmp_path}/*.jsonl"], ALL)] == [1, 2]


def test_empty_manifest_has_no_rows(tmp_path: Path) -> None:
    assert read(tmp_path, b"")[1] == []
    assert read(tmp_path, b"\xef\xbb\xbf\n\n")[1] == []


def test_a_file_that_grows_while_it_is_read_keeps_its_total(tmp_path: Path) -> None:
    path = manifest(tmp_path, [{"path": "a.jpg"}])
    inputs = open_inputs([path], ALL)
    with Path(path).open("ab") as file:
        file.write(b'{"path": "b.jpg"}\n')
    assert len(list(inputs)) == inputs.total == 1


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"\x1f\x8b\x08", "gzip"),
        (b"PAR1", "Parquet"),
        ('{"path": "a"}'.encode("utf-16"), "UTF-16"),
        (b'[{"path": "a.jpg"}]', "array"),
    ],
)
def test_files_that_are_not_lines_of_json_are_refused(tmp_path: Path, data: bytes, word: str) -> None:
    assert word in str(refusal(tmp_path, data))


CELLS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**54), 2**54)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text("ab"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=150)
@given(st.lists(st.lists(st.dictionaries(st.sampled_from("abc"), CELLS, max_size=2), max_size=2), max_size=4))
def test_every_value_fits_the_type_learnt_from_all_chunks(chunks: list[list[dict[str, Any]]]) -> None:
    types = ColumnTypes()
    for chunk in chunks:
        types.add(chunk)
    schema, as_json = types.schema()
    assert set(schema.names) == {name for chunk in chunks for record in chunk for name in record}
    for field in schema:
        if field.name not in as_json:
            pa.array([record.get(field.name) for chunk in chunks for record in chunk], field.type)


@pytest.mark.parametrize("levels", [3, 17, 60, 190])
@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
def test_deeply_nested_values_are_carried_as_json_text(tmp_path: Path, levels: int, start: str, end: str) -> None:
    value = start * levels + "1" + end * levels
    inputs, (item,) = read(tmp_path, f'{{"path": "a.jpg", "x": {value}}}\n'.encode())
    if levels <= 16:
        assert item.extra["x"] == json.loads(value)
    else:
        assert inputs.columns.field("x").type == pa.string()
        assert json.loads(item.extra["x"]) == json.loads(value)


@pytest.mark.parametrize("levels", [300, 900, 2000])
@pytest.mark.parametrize("inner", ["1", "NaN", '"\\ud800"'])
def test_bottomless_values_fail_their_row_alone(tmp_path: Path, levels: int, inner: str) -> None:
    deep = "[" * levels + inner + "]" * levels
    _, (one, other) = read(tmp_path, f'{{"path": "a.jpg", "x": {deep}}}\n{{"path": "b.jpg"}}\n'.encode())
    assert one.failure is not None
    assert one.failure.type in ("too_deep", "not_json")
    assert other.failure is None


def test_rows_without_any_column_have_no_media(tmp_path: Path) -> None:
    _, items = read(tmp_path, b"{}\n{}\n")
    assert [item.failure and (item.failure.stage, item.failure.type) for item in items] == [
        (Stage.PARSE, "no_media"),
        (Stage.PARSE, "no_media"),
    ]
    _, (item,) = read(tmp_path, b"{}\n", InputOptions(kinds=frozenset()))
    assert item.failure is None
