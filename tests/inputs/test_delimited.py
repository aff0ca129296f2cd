"""CSV and TSV as manifests, and as the list of a folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.records import Item, Kind

IMAGES = InputOptions(kinds=frozenset({Kind.IMAGE}))


def read(path: Path, data: bytes, **more: Any) -> list[Item]:
    path.write_bytes(data)
    inputs = open_inputs([str(path)], InputOptions(kinds=IMAGES.kinds, **more))
    items = list(inputs)
    assert inputs.total == len(items)
    assert items == list(inputs)
    return items


def test_columns_have_the_types_that_all_their_values_have(tmp_path: Path) -> None:
    data = (
        b"\xef\xbb\xbfimage,n,x,yes,zip,text\r\n"
        b'a.jpg,1,0.5,true,01234,"a, ""b""\nc"\r\n\r\n'
        b"b.jpg,,-2e3,False,7,\r\nc.jpg,3\n"
    )
    first, second, third = read(tmp_path / "rows.csv", data)
    assert first.extra == {"n": 1, "x": 0.5, "yes": True, "zip": "01234", "text": 'a, "b"\nc'}
    assert second.extra == {"n": None, "x": -2000.0, "yes": False, "zip": "7", "text": None}
    assert third.extra == {"n": 3, "x": None, "yes": None, "zip": None, "text": None}
    assert third.media[0].location == str(tmp_path / "c.jpg")
    assert first.source == "a.jpg"


def test_tabs(tmp_path: Path) -> None:
    (item,) = read(tmp_path / "rows.tsv", b"image\ttext\na.jpg\ta, b\n")
    assert item.extra == {"text": "a, b"}


def test_lines_that_are_none_are_failed_rows(tmp_path: Path) -> None:
    items = read(tmp_path / "rows.csv", b"image,n\na.jpg,1\nb.jpg,2,3\n\xff.jpg,4\n,5\nc.jpg,6")
    found = [item.failure.type if item.failure else None for item in items]
    assert found == [None, "wrong_fields", "not_utf8", "no_media", None]
    assert "line 3" in (items[1].failure.message if items[1].failure else "")


def test_a_quote_that_is_not_closed_fails_its_row(tmp_path: Path) -> None:
    items = read(tmp_path / "rows.csv", b'image,n\na.jpg,1\nb.jpg,"2\nc.jpg,3\n')
    assert [item.failure.type if item.failure else None for item in items] == [None, "not_csv"]


def test_a_limit_and_a_condition(tmp_path: Path) -> None:
    data = b"image,n\n" + b"".join(b"%d.jpg,%d\n" % (i, i) for i in range(9))
    assert [item.id for item in read(tmp_path / "rows.csv", data, limit=2)] == ["row 0", "row 1"]
    assert [item.id for item in read(tmp_path / "rows.csv", data, where="n >= 6", limit=2)] == ["row 6", "row 7"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no head"),
        ("a,b".encode("utf-16"), "line 1: the line is not UTF-8"),
        (b"image;n\na.jpg;1", "has ';' between"),
        (b"image\tn\na.jpg\t1", r"has '\\t' between"),
        (b",,\na", "no head"),
        (b"a,b,a\n1,2,3", "name a"),
    ],
)
def test_what_has_no_head_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(tmp_path / "rows.csv", data)


def test_a_list_of_media_may_be_csv(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "metadata.csv").write_text("file_name,n\na.jpg,3\n")
    (item,) = open_inputs([str(tmp_path)], IMAGES)
    assert (item.id, item.extra, item.media[0].location) == ("a.jpg", {"n": 3}, str(tmp_path / "a.jpg"))


cells = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=5))
def test_texts_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(
        [("image", "text", "note"), ("first.jpg", "x", "x"), *[("a.jpg", *row) for row in rows]]
    )
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_text(buffer.getvalue(), encoding="utf-8", newline="")
    found = [(item.extra["text"], item.extra["note"]) for item in open_inputs([str(path)], IMAGES)]
    assert found[1:] == rows
