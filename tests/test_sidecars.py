"""Sidecars lie where trainers look for them, are whole, and belong to one row each."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import JobError, UsageError
from gemma4cli.records import Media
from gemma4cli.sidecars import (
    CaptionOptions,
    Claims,
    Existing,
    Sidecar,
    SidecarError,
    is_done,
    sidecar_path,
    write_caption,
    write_whole,
)

OUT = Path("/out")


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("/in/a.jpg", "/in/a.txt"),
        ("/in/a.b.JPG", "/in/a.b.txt"),
        ("/in/model.v1.5", "/in/model.v1.5.txt"),
        ("/in/no extension", "/in/no extension.txt"),
        ("/in/.jpg", "/in/.jpg.txt"),
        ("file:///in/a%20b.png", "/in/a b.txt"),
        ("file://localhost/in/a.png", "/in/a.txt"),
    ],
)
def test_beside_the_input(location: str, path: str) -> None:
    assert sidecar_path(Media(location), "any", "txt") == Path(path)


@pytest.mark.parametrize("media", [Media("https://host/a.jpg"), Media("data:,x"), Media("/a.jpg", b"x"), Media("/")])
def test_no_place_beside_what_is_no_file(media: Media) -> None:
    with pytest.raises(SidecarError, match="--output-dir") as caught:
        sidecar_path(media, "a.jpg", "txt")
    assert caught.value.type == "no_place"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("a.jpg", "a.txt"),
        ("cats/a.jpg", "cats/a.txt"),
        ("../../etc/a.jpg", "etc/a.txt"),
        ("/abs/a.jpg", "abs/a.txt"),
        ("x/./..//a.jpg", "x/a.txt"),
        ("https://host/b/a.jpg", "host/b/a.txt"),
        ("row-17", "row-17.txt"),
        ("a\0b.jpg", "a_b.txt"),
    ],
)
def test_mirrored_under_a_folder(name: str, path: str) -> None:
    assert sidecar_path(Media("/in/x.jpg"), name, "txt", OUT) == OUT / path


def test_names_of_nothing() -> None:
    for name in ("", "..", "../.", "//"):
        with pytest.raises(SidecarError, match="gives no name"):
            sidecar_path(Media("/in/x.jpg"), name, "txt", OUT)


@given(st.text(max_size=600), st.sampled_from(["txt", "caption"]))
def test_any_name_stays_below_its_folder_and_fits(name: str, extension: str) -> None:
    try:
        path = sidecar_path(Media("/in/x.jpg"), name, extension, OUT)
    except SidecarError:
        return
    below = path.relative_to(OUT)
    assert ".." not in below.parts
    assert path.name.endswith(f".{extension}")
    assert all(len(os.fsencode(part)) <= 255 for part in below.parts)


def test_long_names_differ_where_their_ends_do(tmp_path: Path) -> None:
    names = [f"{'ä' * 124}{end}.jpg" for end in ("one", "two")]
    paths = [sidecar_path(Media(str(tmp_path / name)), "", "caption") for name in names]
    assert paths[0] != paths[1]
    for path in paths:
        write_whole(path, b"x")
        assert path.read_bytes() == b"x"
    just = sidecar_path(Media(str(tmp_path / f"{'a' * 251}.jpg")), "", "txt")
    assert just.name == f"{'a' * 251}.txt"


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    path = sidecar_path(Media(str(tmp_path / name)), name, "txt")
    write_whole(path, b"x")
    assert [os.fsencode(path.name) for path in tmp_path.iterdir()] == [b"caf\xe9.txt"]


def test_two_inputs_on_one_sidecar_are_told() -> None:
    claims = Claims()
    a, b = (sidecar_path(Media(location), "", "txt") for location in ("/in/a.jpg", "/in/a.png"))
    claims.claim(a, 3)
    claims.claim(a, 3)
    with pytest.raises(SidecarError, match=r"/in/a\.txt belongs to row 3 already") as caught:
        claims.claim(b, 4)
    assert caught.value.type == "sidecar_clash"
    for row, location in enumerate(["/in/a.jpg", "/in/a.png"]):
        claims.claim(sidecar_path(Media(location), "", "txt", whole_name=True), row)


@pytest.mark.parametrize(
    ("existing", "text"),
    [
        (Existing.OVERWRITE, "[new]\n"),
        (Existing.APPEND, "old words [new]\n"),
        (Existing.PREPEND, "[new] old words\n"),
    ],
)
def test_what_is_there_already(tmp_path: Path, existing: Existing, text: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old words\n")
    options = CaptionOptions(prefix="[", suffix="]", existing=existing)
    for _ in range(2):  # a row that is run again adds nothing
        write_caption(path, "new", options)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_only_the_sidecar_that_is_asked_for_lets_a_row_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    assert is_done(tmp_path / "a.txt", CaptionOptions())
    assert not is_done(tmp_path / "a.caption", CaptionOptions(kind=Sidecar.CAPTION))
    assert not is_done(tmp_path / "a.txt", CaptionOptions(existing=Existing.OVERWRITE))


def test_a_caption_is_one_line(tmp_path: Path) -> None:
    write_caption(tmp_path / "a.txt", "A dog.\n\n  It runs.\r\n", CaptionOptions(prefix="photo of "))
    assert (tmp_path / "a.txt").read_bytes() == b"photo of A dog. It runs.\n"


def test_text_of_others_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xe9 \xc3\xa9\r\n")
    write_caption(path, "né\ud800", CaptionOptions(existing=Existing.APPEND))
    assert path.read_bytes() == b"caf\xe9 \xc3\xa9 n\xc3\xa9\\ud800\n"


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "a.json"
    write_caption(path, "Ein Hund.", CaptionOptions(kind=Sidecar.JSON), {"id": "a.jpg", "width": 3})
    assert json.loads(path.read_text()) == {"caption": "Ein Hund.", "id": "a.jpg", "width": 3}
    with pytest.raises(UsageError, match="appended"):
        CaptionOptions(kind=Sidecar.JSON, existing=Existing.APPEND)


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SidecarError, match="cannot write") as caught:
        write_whole(tmp_path / "file" / "a.txt", b"")
    assert caught.value.type == "not_writable"
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(SidecarError):
        write_whole(tmp_path / "a.txt", b"")

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(JobError, match="No space left"):
        write_whole(tmp_path / "b.txt", b"")
    assert {path.name for path in tmp_path.iterdir()} == {"a.txt", "file"}


def test_a_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_whole(tmp_path / "a.txt", b"")
    (tmp_path / "b.txt").touch()
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "b.txt").stat().st_mode
