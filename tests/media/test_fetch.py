"""Locations that people and manifests write, and those that must not hang or surprise."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import FetchError
from gemma4cli.media import MediaOptions
from gemma4cli.media.fetch import fetch
from gemma4cli.records import Media


def read(location: str, data: bytes | None = None) -> bytes:
    with fetch(Media(location, data), MediaOptions()) as file:
        return file.read()


def failure(location: str) -> FetchError:
    with pytest.raises(FetchError) as caught:
        read(location)
    assert "\n" not in str(caught.value)
    assert "\0" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return caught.value


@pytest.mark.parametrize(
    "name", ["plain", "two  spaces", "naïve_写真_🐈‍⬛", "line\nbreak", "-o", "100%25", "a?b#c", "n" * 255, "concat:a|b"]
)
def test_any_name_is_a_path_and_a_file_uri(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"here")
    assert read(str(path)) == b"here"
    assert read(path.as_uri()) == b"here"
    assert read(path.as_uri().replace("file://", "file://localhost")) == b"here"
    assert read(path.as_uri().replace("file://", "FILE:")) == b"here"


def test_a_name_of_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.jpg"
    with open(path, "wb") as file:  # noqa: PTH123 - the name is bytes
        file.write(b"here")
    assert read(os.fsdecode(path)) == b"here"
    assert read("file://" + os.fsdecode(path).replace("\udce9", "%E9")) == b"here"


def test_a_file_uri_that_was_not_escaped(tmp_path: Path) -> None:
    (tmp_path / "a b?c#d").write_bytes(b"here")
    assert read(f"file://{tmp_path}/a b?c#d") == b"here"


def test_given_bytes_win_over_the_location() -> None:
    assert read("/nowhere", b"bytes") == b"bytes"
    assert read("", b"") == b""


def test_what_fetch_opens_has_no_name_that_a_decoder_could_read_into(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"here")
    with fetch(Media(str(tmp_path / "x")), MediaOptions()) as file:
        assert isinstance(file.name, int)
        assert file.seekable()


@pytest.mark.parametrize(
    ("uri", "data"),
    [
        ("data:image/png;base64,aGVsbG8=", b"hello"),
        ("data:;base64,aGVsbG8", b"hello"),
        ("data:image/png;charset=x;BASE64,aGVs\n bG8=", b"hello"),
        ("DATA:image/png;base64,aGVsbG8%3D", b"hello"),
        ("data:;base64,-_-_", b"\xfb\xff\xbf"),
        ("data:,h%C3%A9llo%2C+x", b"h\xc3\xa9llo,+x"),
        ("data:text/plain,", b""),
    ],
)
def test_data_uris(uri: str, data: bytes) -> None:
    assert read(uri) == data


@given(st.binary(max_size=200))
def test_data_uris_carry_any_bytes(data: bytes) -> None:
    import base64
    from urllib.parse import quote

    assert read("data:application/octet-stream;base64," + base64.b64encode(data).decode()) == data
    assert read("data:," + quote(data)) == data


@pytest.mark.parametrize("uri", ["data:image/png;base64", "data:;base64,a", "data:;base64,a*b=", "data:"])
def test_broken_data_uris(uri: str) -> None:
    assert failure(uri).type == "bad_location"


def test_a_broken_data_uri_is_not_repeated_in_the_message() -> None:
    assert len(str(failure("data:image/png;base64," + "*" * 10_000))) < 250


@pytest.mark.parametrize(
    ("location", "type_"),
    [
        ("/no/such/file.jpg", "not_found"),
        ("file:///no/such/file.jpg", "not_found"),
        ("/etc/hostname/x.jpg", "not_found"),
        ("/etc", "is_a_directory"),
        ("/dev/null", "not_a_file"),
        ("/dev/zero", "not_a_file"),
        ("/tmp/nul\0byte", "bad_location"),
        ("file:///tmp/nul%00byte", "bad_location"),
        ("/tmp/" + "n" * 300, "bad_location"),
        ("/tmp/\ud800", "bad_location"),
        ("", "bad_location"),
        ("file://elsewhere/x.jpg", "bad_location"),
        ("file:x.jpg", "bad_location"),
        ("s3://bucket/x.jpg", "unsupported_scheme"),
        ("ftp://host/x.jpg", "protocol_refused"),
        ("gopher://host/x.jpg", "unsupported_scheme"),
        ("concat:a.mp4|b.mp4", "unsupported_scheme"),
        ("subfile,,start,1,end,2,,:x.mp4", "not_found"),
        ("javascript:alert(1)", "unsupported_scheme"),
    ],
)
def test_locations_that_cannot_be_read(location: str, type_: str) -> None:
    assert failure(location).type == type_


def test_the_message_on_a_scheme_says_what_works() -> None:
    error = failure("gopher://bucket/x.jpg")
    assert "gopher:" in str(error)
    assert all(word in str(error) for word in ("paths", "file:", "data:", "https:"))


def test_links(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "target").write_bytes(b"here")
    (tmp_path / "good").symlink_to("target")
    assert failure(str(tmp_path / "a")).type == "symlink_loop"
    error = failure(str(tmp_path / "dangling"))
    assert error.type == "not_found"
    assert "link" in str(error)
    assert read(str(tmp_path / "good")) == b"here"


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert failure(str(tmp_path / "pipe")).type == "not_a_file"


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert failure(str(tmp_path / "socket")).type == "not_a_file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_read_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"x")
    path.chmod(0)
    assert failure(str(path)).type == "permission_denied"


def test_with_a_root_nothing_outside_is_read_whatever_leads_there(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "secret.txt"
    (root / "below").mkdir(parents=True)
    outside.write_bytes(b"secret")
    (root / "below" / "fine.txt").write_bytes(b"fine")
    (root / "link.txt").symlink_to(outside)
    (root / "inner.txt").symlink_to(root / "below" / "fine.txt")
    (tmp_path / "root-beside").mkdir()
    (tmp_path / "root-beside" / "x.txt").write_bytes(b"beside")
    options = MediaOptions(root=str(root))
    for allowed in (root / "below" / "fine.txt", root / "inner.txt", root / "below" / ".." / "below" / "fine.txt"):
        with fetch(Media(str(allowed)), options) as file:
            assert file.read() == b"fine"
    for refused in (outside, root / "link.txt", root / ".." / "secret.txt", tmp_path / "root-beside" / "x.txt"):
        for location in (str(refused), f"file://{refused}"):
            with pytest.raises(FetchError, match="outside --root") as error:
                fetch(Media(location), options)
            assert error.value.type == "outside_root"
