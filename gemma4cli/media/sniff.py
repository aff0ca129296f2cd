"""What a file is, from its first bytes and never from its name.

Containers that may hold sound or video are left to the container's own reader. What no decoder here reads is
refused by the name that people know it by.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import BinaryIO

from gemma4cli.errors import DecodeError
from gemma4cli.records import Kind

_HEAD = 4096


@dataclass(frozen=True, slots=True)
class Content:
    """What was found. kind None: sound or video, which only the container can say.

    name: for messages, such as "a PNG image". animated: an image format that may hold several frames in time.
    heif: needs the HEIF plugin.
    """

    kind: Kind | None
    name: str
    animated: bool = False
    heif: bool = False

    @property
    def paged(self) -> bool:
        """Whether the format is one of pages, which are pictures of their own."""
        return self.name == "a TIFF image"


_IMAGES: tuple[tuple[bytes, str, bool], ...] = (
    (b"\xff\xd8\xff", "JPEG", False),
    (b"\x89PNG\r\n\x1a\n", "PNG", True),
    (b"GIF87a", "GIF", True),
    (b"GIF89a", "GIF", True),
    (b"II*\0", "TIFF", False),
    (b"MM\0*", "TIFF", False),
    (b"II+\0", "TIFF", False),
    (b"MM\0+", "TIFF", False),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG 2000", False),
    (b"\xff\x4f\xff\x51", "JPEG 2000", False),
    (b"8BPS", "PSD", False),
    (b"DDS ", "DDS", False),
    (b"icns", "ICNS", False),
    (b"qoif", "QOI", False),
    (b"\x01\xda", "SGI", False),
    (b"\x59\xa6\x6a\x95", "Sun raster", False),
)
_SOUNDS: tuple[tuple[bytes, str], ...] = (
    (b"ID3", "MP3"),
    (b"fLaC", "FLAC"),
    (b"#!AMR", "AMR"),
    (b".snd", "AU"),
    (b"caff", "CAF"),
    (b"MAC ", "Monkey's Audio"),
    (b"wvpk", "WavPack"),
    (b"TTA1", "True Audio"),
    (b"ADIF", "AAC"),
    (b"\x0b\x77", "AC-3"),
    (b"NIST_1A", "NIST SPHERE"),
    (b"Creative Voice File\x1a", "VOC"),
    (b"2BIT", "AVR"),
    (b"PVF1\n", "PVF"),
    (b" paf", "PAF"),
    (b"fap ", "PAF"),
)
_CONTAINERS: tuple[tuple[bytes, str], ...] = (
    (b"\x1aE\xdf\xa3", "Matroska or WebM"),
    (b"OggS", "Ogg"),
    (b"FLV", "FLV"),
    (b"0&\xb2u\x8ef\xcf\x11", "ASF (WMA or WMV)"),
    (b"\0\0\x01\xba", "MPEG program stream"),
    (b"\x06\x0e+4", "MXF"),
    (b".RMF", "RealMedia"),
    (b"nut/multimedia container\0", "NUT"),
    (b"DKIF", "IVF"),
    (b"YUV4MPEG2 ", "YUV4MPEG"),
)
_REFUSED: tuple[tuple[bytes, str], ...] = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive (or an Office document)"),
    (b"PK\x05\x06", "an empty ZIP archive"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\xfd7zXZ\0", "xz-compressed data"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"PAR1", "a Parquet file"),
    (b"%!PS", "a PostScript document"),
    (b"\xd0\xcf\x11\xe0", "an old Office document"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"MThd", "a MIDI file, which holds notes and no sound"),
    (b"\xff\x0a", "a JPEG XL image"),
    (b"\0\0\0\x0cJXL ", "a JPEG XL image"),
    (b"{\\rtf", "an RTF document"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file (run `git lfs pull`)"),
)
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1", b"mif2"}
_PNM = re.compile(rb"P[1-7Ff]\s")
_TEXTS = (
    (
        re.compile(r"^\s*(<!--.*?-->\s*)*<(!doctype\s+html|html|head|body|script|meta|title)[\s>]", re.S | re.I),
        "an HTML page",
    ),
    (re.compile(r"^\s*<([?!].*<)?(\w+:)?svg[\s/>]", re.S | re.I), "an SVG drawing"),
    (re.compile(r"^\s*<\?xml", re.I), "an XML file"),
    (re.compile(r"^#EXTM3U"), "an M3U playlist"),
    (re.compile(r"^ffconcat"), "an ffconcat playlist"),
    (re.compile(r"^\s*[{\[]"), "a JSON file"),
)


def sniff(file: BinaryIO) -> Content:
    """Says what an open file is and leaves it at its start.

    Raises DecodeError `empty` or `unsupported_format`, naming what the file is.
    """
    file.seek(0)
    head = file.read(_HEAD)
    file.seek(0)
    if not head:
        raise DecodeError("empty", "the file is empty (0 bytes)")
    content = _by_magic(head)
    if content is not None:
        return content
    raise DecodeError("unsupported_format", f"this is {_named(head)}, not an image, sound or video that can be read")


def _by_magic(head: bytes) -> Content | None:
    for magic, name, animated in _IMAGES:
        if head.startswith(magic):
            return Content(Kind.IMAGE, f"a {name} image", animated)
    for magic, name in _SOUNDS:
        if head.startswith(magic):
            return Content(Kind.AUDIO, f"{name} file")
    for magic, name in _CONTAINERS:
        if head.startswith(magic):
            return Content(None, f"{name} file")
    if any(head.startswith(magic) for magic, _ in _REFUSED):
        return None
    return _riff(head) or _iso(head) or _loose(head)


def _riff(head: bytes) -> Content | None:
    """RIFF, its 64-bit and big-endian kin, and IFF."""
    group, form = head[:4], head[8:12]
    if group in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        if form == b"WEBP":
            return Content(Kind.IMAGE, "a WebP image", animated=True)
        if form == b"WAVE":
            return Content(Kind.AUDIO, "WAV file")
        if form == b"AVI ":
            return Content(None, "AVI file")
    if group == b"FORM" and form in (b"AIFF", b"AIFC"):
        return Content(Kind.AUDIO, "AIFF file")
    if group == b"FORM" and form in (b"8SVX", b"16SV"):
        return Content(Kind.AUDIO, "SVX file")
    if head.startswith(b"riff\x2e\x91\xcf\x11"):
        return Content(Kind.AUDIO, "Wave64 file")
    return None


def _iso(head: bytes) -> Content | None:
    """The ISO base media family: MP4 and MOV, or HEIC and AVIF by their brands."""
    box = head[4:8]
    if box == b"ftyp":
        end = min(int.from_bytes(head[:4], "big"), len(head))
        brands = [head[8:12], *(head[i : i + 4] for i in range(16, end - 3, 4))]
        if brands[0] in (b"avif", b"avis") or (brands[0] in (b"mif1", b"msf1") and b"avif" in brands):
            return Content(Kind.IMAGE, "an AVIF image", animated=True)
        if brands[0] in _HEIF_BRANDS:
            return Content(Kind.IMAGE, "a HEIC image", heif=True)
        return Content(None, "MP4 or MOV file")
    if box in (b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot"):
        return Content(None, "MOV file")
    return None


def _loose(head: bytes) -> Content | None:
    """Formats whose mark is short or missing, with what else their headers must say."""
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in (12, 16, 40, 52, 56, 64, 108, 124):
        return Content(Kind.IMAGE, "a BMP image")
    if head[:4] in (b"\0\0\x01\0", b"\0\0\x02\0") and len(head) > 22 and 0 < head[4] < 64 and head[5] == head[9] == 0:
        return Content(Kind.IMAGE, "an icon")
    if head.startswith(b"\x64\xa3") and head[2:4] in (b"\1\0", b"\2\0", b"\3\0", b"\4\0"):
        return Content(Kind.AUDIO, "IRCAM file")
    if _PNM.match(head):
        return Content(Kind.IMAGE, "a PNM image")
    if head[:1] == b"\x0a" and head[1:2] in (b"\0", b"\2", b"\3", b"\4", b"\5") and head[2:3] == b"\1":
        return Content(Kind.IMAGE, "a PCX image")
    if head[0] == 0xFF and head[1:2] and head[1] & 0xE0 == 0xE0 and head[1] != 0xFE:  # FF FE starts UTF-16
        return Content(Kind.AUDIO, "AAC file" if head[1] & 0xF6 == 0xF0 else "MP3 file")
    if head[:1] == b"\x56" and head[1:2] and head[1] & 0xE0 == 0xE0:
        length = 3 + (int.from_bytes(head[1:3], "big") & 0x1FFF)
        if head[length : length + 1] in (b"", b"\x56"):
            return Content(Kind.AUDIO, "LOAS file")
    if head[:1] == b"\x47" and head[188:189] == b"\x47" and head[376:377] == b"\x47":
        return Content(None, "MPEG transport stream")
    if head[4:5] == b"\x47" and head[196:197] == b"\x47" and head[388:389] == b"\x47":
        return Content(None, "MPEG transport stream")
    if _looks_like_tga(head):
        return Content(Kind.IMAGE, "a TGA image")
    return None


def _looks_like_tga(head: bytes) -> bool:
    if len(head) < 18:
        return False
    map_type, image_type, map_depth, depth, flags = head[1], head[2], head[7], head[16], head[17]
    width, height = int.from_bytes(head[12:14], "little"), int.from_bytes(head[14:16], "little")
    return (
        map_type in (0, 1)
        and image_type in (1, 2, 3, 9, 10, 11)
        and (map_type == 1) == (image_type in (1, 9))
        and map_depth in ((15, 16, 24, 32) if map_type else (0,))
        and depth in (1, 8, 16, 24, 32)
        and flags & 0xC0 == 0
        and width > 0
        and height > 0
    )


def _named(head: bytes) -> str:
    for magic, name in _REFUSED:
        if head.startswith(magic):
            return name
    if head[257:262] == b"ustar":
        return "a tar archive"
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return "a file of an unknown format" if head.strip(b"\0") else "a file of nothing but zero bytes"
        text = head[: error.start].decode("utf-8-sig")
    if "\0" in text:
        return "a file of an unknown format" if text.strip("\0") else "a file of nothing but zero bytes"
    for pattern, name in _TEXTS:
        if pattern.search(text):
            return name
    return "a text file"
