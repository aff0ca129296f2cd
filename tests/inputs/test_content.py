"""Content with media and texts in order: parts, messages, lines of OpenAI batches."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemma4cli.identity import content_key
from gemma4cli.inputs import InputOptions, Inputs, open_inputs
from gemma4cli.records import Item, Kind, Media
from gemma4cli.tables import manifest_record

ALL = InputOptions(kinds=frozenset(Kind))
TEXT = {"type": "text", "text": "Look:"}


def read(folder: Path, rows: list[Any], options: InputOptions = ALL) -> tuple[Inputs, list[Item]]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inputs = open_inputs([str(folder / "rows.jsonl")], options)
    return inputs, list(inputs)


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def test_order_is_kept_and_texts_stand_between(tmp_path: Path) -> None:
    parts = [
        TEXT,
        image("a.jpg"),
        "and",
        {"type": "audio_url", "audio_url": "https://host/b.wav"},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}},
        {"type": "video", "path": "/c.mp4"},
        {"type": "video_url", "video_url": {"url": "file:///d.mp4"}},
        image("data:image/png;base64,AAAA"),
    ]
    inputs, (item,) = read(tmp_path, [{"id": "x", "content": parts, "n": 1}])
    assert item.content == (
        "Look:",
        Media(str(tmp_path / "a.jpg"), kind=Kind.IMAGE),
        "and",
        Media("https://host/b.wav", kind=Kind.AUDIO),
        Media("", b"RIFF", Kind.AUDIO),
        Media("/c.mp4", kind=Kind.VIDEO),
        Media("file:///d.mp4", kind=Kind.VIDEO),
        Media("data:image/png;base64,AAAA", kind=Kind.IMAGE),
    )
    assert (item.id, item.prompt, item.system, item.extra) == ("x", None, None, {"n": 1})
    assert item.source == str(tmp_path / "a.jpg")
    assert inputs.speaking
    assert inputs.columns.names == ["n"]


def test_a_line_of_a_batch_is_a_row(tmp_path: Path) -> None:
    def line(name: str, *messages: Any) -> dict[str, Any]:
        body = {"model": "m", "messages": list(messages), "max_tokens": 9}
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}

    inputs, items = read(
        tmp_path,
        [
            line("one", {"role": "system", "content": "Be brief."}, user(TEXT, image("a.jpg"))),
            line("two", {"role": "user", "content": "Hello?"}),
        ],
    )
    assert [item.id for item in items] == ["one", "two"]
    assert items[0].system == "Be brief."
    assert items[0].content == ("Look:", Media(str(tmp_path / "a.jpg"), kind=Kind.IMAGE))
    assert (items[1].content, items[1].prompt, items[1].system) == (("Hello?",), "", None)
    assert inputs.columns.names == []


def test_messages_in_parquet_with_their_empty_fields(tmp_path: Path) -> None:
    rows = [{"messages": [user(TEXT, image("a.jpg"))], "label": "l"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    inputs = open_inputs([str(tmp_path / "rows.parquet")], ALL)
    (item,) = inputs
    assert item.content == ("Look:", Media(str(tmp_path / "a.jpg"), kind=Kind.IMAGE))
    assert inputs.columns.names == ["label"]


@pytest.mark.parametrize(
    ("messages", "type_"),
    [
        ([], "no_messages"),
        (None, "no_messages"),
        ([{"role": "system", "content": "x"}], "no_messages"),
        ([user(TEXT), {"role": "assistant", "content": "x"}], "unsupported_messages"),
        ([user(TEXT), user(TEXT)], "unsupported_messages"),
        ([{"role": "system", "content": [image("a.jpg")]}, user(TEXT)], "unsupported_messages"),
        ([{"role": "user", "content": ""}], "no_content"),
        ([user()], "no_content"),
        ([user({"type": "file", "file": {}})], "unsupported_part"),
        ([user({"text": "x"})], "unsupported_part"),
        ([user({"type": "text"})], "unsupported_part"),
        ([user({"type": "image_url", "image_url": {"url": ""}})], "no_media"),
        ([user({"type": "image_url"})], "no_media"),
        ([user({"type": "image_url", "image_url": {"url": "gopher://host/a"}})], "unsupported_scheme"),
        ([user({"type": "input_audio", "input_audio": {"data": "*"}})], "bad_base64"),
        ([user({"type": "input_audio", "input_audio": {"data": ""}})], "no_media"),
    ],
)
def test_what_cannot_be_a_row_is_a_failed_one(tmp_path: Path, messages: Any, type_: str) -> None:
    good = {"messages": [user(TEXT)]}
    _, (item, other) = read(tmp_path, [{"messages": messages}, good])
    assert item.failure is not None
    assert item.failure.type == type_
    assert "line 1" in item.failure.message
    assert other.failure is None


def test_columns_of_other_kinds_that_are_called_content_are_carried(tmp_path: Path) -> None:
    inputs, (item,) = read(tmp_path, [{"image": "a.jpg", "content": "a text", "messages": 3}])
    assert not inputs.speaking
    assert item.extra == {"content": "a text", "messages": 3}
    assert len(item.media) == 1


def test_a_row_that_failed_can_be_asked_again(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "messages": [{"role": "system", "content": "S"}, user(TEXT, image("/a.jpg"))], "n": 1},
    ]
    _, (item,) = read(tmp_path, rows)
    (tmp_path / "again").mkdir()
    _, (again,) = read(tmp_path / "again", [manifest_record(item)])
    assert (again.content, again.system, again.prompt, again.extra) == (item.content, "S", "", {"n": 1})
    _, (parts,) = read(tmp_path, [{"id": "a", "content": [TEXT, image("/a.jpg")]}])
    _, (same,) = read(tmp_path / "again", [manifest_record(parts)])
    assert same == parts


def test_a_system_prompt_makes_a_row_another(tmp_path: Path) -> None:
    _, items = read(
        tmp_path, [{"messages": [*system, user(TEXT)]} for system in ([], [{"role": "system", "content": "S"}])]
    )
    assert content_key(items[0]) != content_key(items[1])
