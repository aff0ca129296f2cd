"""Files, folders, glob patterns and path lists as inputs."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.records import Kind, Stage

IMAGES = InputOptions(kinds=frozenset({Kind.IMAGE, Kind.VIDEO}))
AUDIO = InputOptions(kinds=frozenset({Kind.AUDIO, Kind.VIDEO}), kind=Kind.AUDIO)


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def ids(inputs: list[str], options: InputOptions = IMAGES, stdin: bytes | None = None) -> list[str]:
    opened = open_inputs(inputs, options, None if stdin is None else io.BytesIO(stdin))
    items = list(opened)
    assert [item.row_index for item in items] == list(range(len(items)))
    assert opened.total == len(items)
    assert items == list(opened), "reading again gives the same rows"
    return [item.id for item in items]


def refusal(inputs: list[str], options: InputOptions = IMAGES, stdin: bytes = b"") -> UsageError:
    with pytest.raises(UsageError) as caught:
        open_inputs(inputs, options, io.BytesIO(stdin))
    return caught.value


def test_folder_is_searched_in_natural_order_for_the_tasks_media(tmp_path: Path) -> None:
    touch(tmp_path, "img10.jpg", "img2.JPG", "b/1.png", "B.webp", "clip.mp4", "notes.txt", "song.mp3", "a.jsonl")
    assert ids([str(tmp_path)]) == ["b/1.png", "B.webp", "clip.mp4", "img2.JPG", "img10.jpg"]
    assert ids([str(tmp_path)], AUDIO) == ["clip.mp4", "song.mp3"]


def test_hidden_files_and_folders_are_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", ".hidden.jpg", ".gemma4cli/x.jpg", "b/._b.jpg", "b/b.jpg")
    assert ids([str(tmp_path)]) == ["a.jpg", "b/b.jpg"]


def test_item_of_a_file_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "in/a.mp3")
    monkeypatch.chdir(tmp_path)
    (item,) = open_inputs(["in"], AUDIO)
    assert (item.id, item.source) == ("a.mp3", "in/a.mp3")
    assert item.media[0].location == str(tmp_path / "in" / "a.mp3")
    assert item.media[0].kind is Kind.AUDIO
    assert item.media[0].data is None


def test_loops_of_links_end_and_nothing_is_found_twice(tmp_path: Path) -> None:
    touch(tmp_path, "in/a.jpg", "in/sub/b.jpg", "out/c.jpg")
    (tmp_path / "in/sub/up").symlink_to(tmp_path / "in")
    (tmp_path / "in/self").symlink_to(tmp_path / "in/self")
    (tmp_path / "in/twin").symlink_to(tmp_path / "in/sub")
    (tmp_path / "in/x").symlink_to(tmp_path / "out")
    (tmp_path / "in/y").symlink_to(tmp_path / "out")
    (tmp_path / "in/root").symlink_to("/")
    assert ids([str(tmp_path / "in")]) == ["a.jpg", "sub/b.jpg", "x/c.jpg"]


def test_links_that_lead_nowhere_are_rows(tmp_path: Path) -> None:
    (tmp_path / "dangling.jpg").symlink_to("nothing.jpg")
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    assert ids([str(tmp_path)]) == ["dangling.jpg", "loop.jpg"]
    assert ids([str(tmp_path / "loop.jpg")]) == [str(tmp_path / "loop.jpg")]


def test_folder_that_cannot_be_listed_is_a_failed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.jpg", "locked/b.jpg")
    scandir = os.scandir

    def refuse(path: str) -> Iterator[os.DirEntry[str]]:  # chmod does not stop root
        if path.endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    first, second = open_inputs([str(tmp_path)], IMAGES)
    assert first.failure is None
    assert second.id == "locked"
    assert second.failure is not None
    assert (second.failure.stage, second.failure.type) == (Stage.FETCH, "unreadable_folder")
    assert "Permission denied" in str(refusal([str(tmp_path / "locked")]))


def test_pattern_takes_files_whatever_their_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "m/a.webp", "m/b.webp", "m/c.xyz", "m/sub/d.webp", "m/.h.webp")
    monkeypatch.chdir(tmp_path)
    assert ids(["m/*.webp"]) == ["m/a.webp", "m/b.webp"]
    assert ids(["m/*"]) == ["m/a.webp", "m/b.webp", "m/c.xyz"]
    assert ids(["**/*.webp"]) == ["m/a.webp", "m/b.webp", "m/sub/d.webp"]
    assert ids(["m/**"]) == ["m/a.webp", "m/b.webp", "m/c.xyz", "m/sub/d.webp"]
    assert ids(["m/sub/../[ab].webp"]) == ["m/sub/../a.webp", "m/sub/../b.webp"]
    assert ids(["m/.*.webp"]) == ["m/.h.webp"]
    assert ids([f"{tmp_path}/?/a.webp"]) == [f"{tmp_path}/m/a.webp"]


def test_pattern_survives_loops_and_passes_on_folders_named_like_files(tmp_path: Path) -> None:
    touch(tmp_path, "a.jpg", "folder.jpg/b.jpg")
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path)
    found = [Path(path).relative_to(tmp_path).as_posix() for path in ids([f"{tmp_path}/**/*.jpg"])]
    assert found == ["a.jpg", "folder.jpg", "folder.jpg/b.jpg"]


def test_name_with_wildcards_that_exists_is_itself(tmp_path: Path) -> None:
    touch(tmp_path, "photo[1].jpg", "photo1.jpg")
    assert ids([f"{tmp_path}/photo[1].jpg"]) == [f"{tmp_path}/photo[1].jpg"]


def test_ids_of_several_folders_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/x.jpg", "b/x.jpg")
    monkeypatch.chdir(tmp_path)
    assert ids(["a", "b/"]) == ["a/x.jpg", "b/x.jpg"]


def test_limit_cuts_rows_and_total(tmp_path: Path) -> None:
    touch(tmp_path, *(f"{i}.jpg" for i in range(5)))
    for limit in (0, 2, 9):
        options = InputOptions(kinds=IMAGES.kinds, limit=limit)
        assert ids([str(tmp_path)], options) == [f"{i}.jpg" for i in range(min(limit, 5))]
    assert "limit" in str(refusal([str(tmp_path)], InputOptions(kinds=IMAGES.kinds, limit=-1)))


def test_odd_names_are_printable_and_open(tmp_path: Path) -> None:
    names = [b"new\nline.jpg", b"not-utf8-\xe9.jpg", b"-o.jpg", "emoji \U0001f468\u200d\U0001f469.jpg".encode()]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"x")
    items = list(open_inputs([str(tmp_path)], IMAGES))
    assert {os.fsencode(Path(item.media[0].location).name) for item in items} == set(names)
    for item in items:
        item.id.encode()
        assert "\n" not in item.source
        assert Path(item.media[0].location).read_bytes() == b"x"
    assert {Path(item.source).name for item in items} == {
        r"new\nline.jpg",
        r"not-utf8-\xe9.jpg",
        "-o.jpg",
        "emoji \U0001f468\u200d\U0001f469.jpg",
    }


def test_paths_on_standard_input() -> None:
    assert ids(["-"], stdin=b"a.jpg\r\n\n  \nb c.png\nlast.jpg") == ["a.jpg", "b c.png", "last.jpg"]
    assert ids(["-"], stdin=b"a\nb.jpg\0c.jpg\0") == ["a\nb.jpg", "c.jpg"]
    assert ids(["-"], InputOptions(kinds=IMAGES.kinds, limit=1), stdin=b"a.jpg\nb.jpg\n") == ["a.jpg"]
    (item,) = open_inputs(["-"], IMAGES, io.StringIO("x.jpg\n"))
    assert item.media[0].location == str(Path.cwd() / "x.jpg")


def test_addresses_are_inputs_too() -> None:
    items = list(open_inputs(["https://example.org/a.jpg", "data:image/png;base64,AAAA"], IMAGES))
    assert items[0].media[0].location == "https://example.org/a.jpg"
    assert items[1].media[0].location == "data:image/png;base64,AAAA"
    assert items[1].source == "data:image/png;base64,... (4 characters)"
    (item,) = open_inputs(["-"], IMAGES, io.BytesIO(b"gopher://bucket/a.jpg\n"))
    assert item.failure is not None
    assert (item.failure.stage, item.failure.type) == (Stage.PARSE, "unsupported_scheme")


def test_refusals_name_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "docs/a.txt", "docs/b.md", "a.jpg", "rows.jsonl", "part.parquet")
    assert "nowhere.jpg" in str(refusal([str(tmp_path / "nowhere.jpg")]))
    assert "nowhere" in str(refusal([str(tmp_path / "a.jpg" / "nowhere")]))
    assert "*.tiff" in str(refusal([f"{tmp_path}/*.tiff"]))
    assert "no images or videos under" in str(refusal([str(tmp_path / "empty")]))
    assert "2 files of other kinds" in refusal([str(tmp_path / "docs")]).hint
    assert "rows.jsonl" in str(refusal([str(tmp_path / "rows.jsonl"), str(tmp_path / "a.jpg")]))
    assert "cannot be mixed" in str(refusal([str(tmp_path / "rows.jsonl"), str(tmp_path / "part.parquet")]))
    assert "cannot be mixed" in str(refusal(["-", str(tmp_path / "a.jpg")]))
    assert "standard input" in str(refusal(["-"], stdin=b"\n\n"))
    assert "s3://" in str(refusal(["s3://bucket/a.jpg"]))
    assert "no input" in str(refusal([]))
    assert "no such file" in str(refusal([""]))
    assert "too long" in str(refusal(["x" * 300])).lower()


@given(st.lists(st.integers(0, 10**12), unique=True))
def test_numbers_in_names_sort_as_numbers(numbers: list[int]) -> None:
    from gemma4cli.inputs.names import natural_key

    names = [f"img{n}.jpg" for n in numbers]
    assert sorted(names, key=natural_key) == [f"img{n}.jpg" for n in sorted(numbers)]


@given(st.lists(st.text(st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"]), min_size=1)))
def test_any_list_of_names_comes_through(names: list[str]) -> None:
    data = b"".join(os.fsencode(name) + b"\0" for name in names)
    wanted = [name for name in names if name.strip(" \t\v\f")]
    if wanted:
        items = list(open_inputs(["-"], IMAGES, io.BytesIO(data + b"x\0")))
        assert [item.id for item in items] == [*wanted, "x"]


def test_a_file_uri_is_a_folder_a_pattern_or_a_manifest_as_its_path_is(tmp_path: Path) -> None:
    place = tmp_path / "a b%20é"
    touch(place, "1.jpg", "2.jpg")
    (place / "rows.jsonl").write_text('{"image": "1.jpg"}\n')
    uri = f"file://{quote(str(place))}"
    assert ids([uri]) == ids([str(place)]) == ["1.jpg", "2.jpg"]
    assert ids([f"{uri}/*.jpg"]) == ids([f"{place}/*.jpg"])
    assert ids([f"{uri}/rows.jsonl"]) == ["row 0"]
    assert ids([f"{uri}/1.jpg"]) == [f"{uri}/1.jpg"]
    assert "another host" in str(refusal(["file://host/a.jpg"]))
