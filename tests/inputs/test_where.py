"""--where and --columns: which rows of a table are taken, and what of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.inputs.where import Where
from gemma4cli.records import Item, Kind

ROWS: list[dict[str, Any]] = [
    {"image": f"{i}.jpg", "width": i * 100, "label": ["cat", "dog", None][i % 3], "caption": f"a red {i}",
     "box": {"h": i}, "tags": ["x"] * i, "two words": i}
    for i in range(10)
]  # fmt: skip
SCHEMA = pa.Table.from_pylist(ROWS).schema


def options(**more: Any) -> InputOptions:
    return InputOptions(kinds=frozenset({Kind.IMAGE}), **more)


@pytest.fixture(params=["jsonl", "parquet"])
def source(request, tmp_path: Path) -> str:
    path = tmp_path / f"rows.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=3)
    return str(path)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("width > 600", [7, 8, 9]),
        ("200 <= width < 400", [2, 3]),
        ("label == 'cat' and not width > 300", [0, 3]),
        ("label in ['dog'] or label is None", [1, 2, 4, 5, 7, 8]),
        ("label != 'cat'", [1, 4, 7]),
        ("label not in ('cat', 'dog')", [2, 5, 8]),
        ("label is not None and width == -1 * -900", [9]),
        ("'red 4' in caption", [4]),
        ("caption.endswith('7') or caption.startswith('b') or caption.matches('red [12]$')", [1, 2, 7]),
        ("box.h * 100 == width and box.h >= 8", [8, 9]),
        ("len(tags) > 7 and len(caption) == 7", [8, 9]),
        ("column('two words') == 5", [5]),
        ("True", list(range(10))),
        ("width < 0", []),
    ],
)
def test_conditions(source: str, text: str, taken: list[int]) -> None:
    inputs = open_inputs([source], options(where=text))
    items = list(inputs)
    assert [item.media[0].location.rpartition("/")[2] for item in items] == [f"{i}.jpg" for i in taken]
    assert [item.row_index for item in items] == list(range(len(taken)))
    assert [item.id for item in items] == [f"row {i}" for i in taken], "a row is called as it is without a condition"
    assert inputs.total == len(taken)


@pytest.mark.parametrize(
    "text",
    [
        "", "width >", "width == None", "__import__('os').system('true')", "width.__class__ == 1", "lambda: 1",
        "nope == 1",
        "width > 'a'", "label > 3", "[x for x in label]", "width ** 9 > 1", "f'{width}'", "width if label else 1",
        "open('x')", "box.nope == 1", "(" * 300, "label in [[1]]", "width := 3", "caption.upper() == 'A'", "width",
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Where(text, SCHEMA)
    assert "--where" in str(caught.value)


def test_a_limit_counts_rows_that_are_taken(source: str) -> None:
    inputs = open_inputs([source], options(where="label == 'cat'", limit=2))
    assert [item.id for item in inputs] == ["row 0", "row 3"]
    assert inputs.total == 2


def test_only_columns_that_were_named_are_carried(source: str) -> None:
    inputs = open_inputs([source], options(columns=("label", "width"), where="box.h == 3"))
    (item,) = inputs
    assert inputs.columns.names == ["width", "label"]
    assert dict(item.extra) == {"width": 300, "label": "cat"}
    with pytest.raises(UsageError) as caught:
        open_inputs([source], options(columns=("lable",)))
    assert "did you mean label?" in caught.value.hint


def test_columns_that_nobody_needs_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"image": ["a.jpg"] * 4, "text": ["x" * 1000] * 4, "n": [1, 2, 3, 4]}), path)
    data = bytearray(path.read_bytes())
    facts = pq.ParquetFile(path).metadata.row_group(0).column(1)
    start = facts.dictionary_page_offset or facts.data_page_offset
    data[start : start + facts.total_compressed_size] = b"\0" * facts.total_compressed_size
    path.write_bytes(data)
    items = list(open_inputs([str(path)], options(columns=("n",), where="n > 2")))
    assert [item.extra for item in items] == [{"n": 3}, {"n": 4}]


def test_flags_about_columns_need_some(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    for more in ({"where": "a == 1"}, {"columns": ("a",)}, {"split": "train"}, {"streaming": True}):
        with pytest.raises(UsageError):
            open_inputs([str(tmp_path)], options(**more))


def test_lines_that_cannot_be_read_are_rows_whatever_the_condition(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"image": "a.jpg", "n": 1}\nnonsense\n{"image": "b.jpg", "n": 2}\n')
    items = list(open_inputs([str(path)], options(where="n == 2")))
    assert [(item.id, item.failure is None) for item in items] == [("row 1", False), ("row 2", True)]


def test_partitions_are_columns_and_prune(tmp_path: Path) -> None:
    for split, year in (("train", 2020), ("train", 2021), ("test a", 2021)):
        folder = tmp_path / f"split={split.replace(' ', '%20')}" / f"year={year}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"image": [f"{split}{year}.jpg"]}), folder / "0.parquet")
    inputs = open_inputs([str(tmp_path)], options())
    assert inputs.columns.field("year").type == pa.int64()
    assert [dict(item.extra) for item in inputs] == [
        {"split": "test a", "year": 2021}, {"split": "train", "year": 2020}, {"split": "train", "year": 2021}
    ]  # fmt: skip
    items: list[Item] = list(open_inputs([str(tmp_path)], options(where="year == 2021 and split == 'train'")))
    assert [dict(item.extra) for item in items] == [{"split": "train", "year": 2021}]
    # What a condition rules out by its folder's name is not opened again.
    inputs = open_inputs([str(tmp_path)], options(where="year == 2021"))
    (tmp_path / "split=train" / "year=2020" / "0.parquet").rename(tmp_path / "gone")
    assert len(list(open_inputs([str(tmp_path / "split=train")], options(where="year == 2021")))) == 1


@given(st.lists(st.tuples(st.integers(-5, 5) | st.none(), st.sampled_from(["a", "b", "ab"]) | st.none()), max_size=20))
def test_conditions_say_what_python_says(rows: list[tuple[int | None, str | None]]) -> None:
    schema = pa.schema({"n": pa.int64(), "s": pa.string()})
    where = Where("n >= 0 and s != 'a' or s is None and n in [1, -1]", schema)
    expected = [
        (n is not None and n >= 0 and s is not None and s != "a") or (s is None and n in (1, -1)) for n, s in rows
    ]
    assert where.keeps([{"n": n, "s": s} for n, s in rows]) == expected


def test_what_cannot_be_told_of_a_row_ends_the_job(source: str) -> None:
    with pytest.raises(UsageError, match="cannot be told of some rows: divide by zero"):
        open_inputs([source], options(where="100 / width > 1"))
    assert len(list(open_inputs([source], options(where="100 / (width + 1.0) > 0.9")))) == 2
