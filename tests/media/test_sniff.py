"""What a file is, whatever it is called."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from gemma4cli.errors import DecodeError
from gemma4cli.media.sniff import sniff
from gemma4cli.records import Kind


def saved(format_: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Pillow.new(mode, (20, 30)).save(buffer, format_, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "format_",
    ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000", "ICO", "TGA", "PPM", "PCX", "SGI", "DDS"],
)
def test_images(format_: str) -> None:
    content = sniff(io.BytesIO(saved(format_)))
    assert content.kind is Kind.IMAGE
    assert content.animated == (format_ in ("GIF", "PNG", "WEBP", "AVIF"))


@pytest.mark.parametrize(
    "head",
    [b"RIFF\xff\xff\xff\xffWAVEfmt ", b"ID3\x04\0\0", b"\xff\xfb\x90\0", b"\xff\xf1\x50\x80", b"fLaC\0\0\0\x22",
     b"FORM\0\0\0\x10AIFF", b"#!AMR\n", b".snd\0\0\0\x20", b"RF64\xff\xff\xff\xffWAVE",
     b"NIST_1A\n   1024\n", b"Creative Voice File\x1a", b"\x64\xa3\x03\0", b"\x56\xe0\x03\0\0\0\x56"],
)  # fmt: skip
def test_sounds(head: bytes) -> None:
    assert sniff(io.BytesIO(head + bytes(64))).kind is Kind.AUDIO


@pytest.mark.parametrize(
    "head",
    [b"\0\0\0\x18ftypisom\0\0\0\0isommp42", b"\0\0\0\x08wide\0\0\0\0mdat", b"\x1aE\xdf\xa3\x01", b"OggS\0\x02",
     b"RIFF\x10\0\0\0AVI LIST", b"FLV\x01", b"DKIF\0\0 \0VP80",
     b"\x47" + b"\0" * 187 + b"\x47" + b"\0" * 187 + b"\x47"],
)  # fmt: skip
def test_containers_that_only_their_reader_can_tell(head: bytes) -> None:
    assert sniff(io.BytesIO(head + bytes(400))).kind is None


@pytest.mark.parametrize(
    ("head", "named"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
        (b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- x -->\n<svg width='1'>", "SVG"),
        (b"<!DOCTYPE svg [<!ENTITY a 'b'>]>\n<svg/>", "SVG"),
        (b"<s:svg xmlns:s='http://www.w3.org/2000/svg'>", "SVG"),
        (b"<!DOCTYPE html><html>", "HTML"),
        (b"<!doctype html><body><svg width='1'>", "HTML"),
        (b"<script>location = 'login'</script>", "HTML"),
        (b"\n\n <html lang=en>", "HTML"),
        (b"<?xml version='1.0'?><feed>", "XML"),
        (b"%PDF-1.7\n", "PDF"),
        (b"PK\x03\x04\x14\0", "ZIP"),
        (b"\x1f\x8b\x08\0", "gzip"),
        (bytes(257) + b"ustar\x0000" + bytes(100), "tar"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/passwd\n", "M3U"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "ffconcat"),
        (b'{"error": "not found"}', "JSON"),
        (b"just words\n", "text"),
        ("naïve 写真 ".encode() * 500, "text"),
        (bytes(5000), "zero bytes"),
        (b"\x80\x81\x82\x83" * 100, "unknown"),
        (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
        (b"\xff\xfe<\0h\0t\0m\0l\0", "unknown"),
    ],
)
def test_what_is_no_medium_is_called_by_its_name(head: bytes, named: str) -> None:
    with pytest.raises(DecodeError, match=named) as caught:
        sniff(io.BytesIO(head))
    assert caught.value.type == "unsupported_format"


def test_nothing_at_all() -> None:
    with pytest.raises(DecodeError, match="0 bytes") as caught:
        sniff(io.BytesIO())
    assert caught.value.type == "empty"


@given(st.binary(max_size=600))
def test_any_bytes_are_something_or_refused_and_the_file_is_left_at_its_start(data: bytes) -> None:
    file = io.BytesIO(data)
    file.seek(len(data) // 2)
    with contextlib.suppress(DecodeError):
        sniff(file)
    assert file.tell() == 0
