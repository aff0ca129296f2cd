"""Names of inputs: their order, how they are shown, and which extensions belong to which kind of media."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from gemma4cli.records import Kind

# svg is among them although it cannot be decoded: such a file fails with a reason, rather than go missing.
_IMAGE = """.jpg .jpeg .jpe .jfif .png .apng .gif .webp .bmp .dib .tif .tiff .tga .ico .avif .avifs .heic .heif .hif
    .jp2 .j2k .jpx .ppm .pgm .pbm .pnm .qoi .svg"""
_AUDIO = """.wav .wave .mp3 .flac .ogg .oga .opus .m4a .m4b .aac .wma .aif .aiff .aifc .amr .au .snd .caf .ac3 .mka
    .weba .mp2 .w64 .rf64 .eac3 .spx .wv .ape .tta .3ga .m4r .sph .voc .8svx .avr .pvf .paf .latm .loas"""
_VIDEO = """.mp4 .m4v .mov .mkv .webm .avi .wmv .flv .mpg .mpeg .m2v .ts .mts .m2ts .3gp .3g2 .ogv .vob .asf .mxf .y4m
    .f4v .qt .divx .nut .ivf"""
EXTENSIONS: dict[Kind, frozenset[str]] = {
    Kind.IMAGE: frozenset(_IMAGE.split()),
    Kind.AUDIO: frozenset(_AUDIO.split()),
    Kind.VIDEO: frozenset(_VIDEO.split()),
}
JSONL_EXTENSIONS = frozenset({".jsonl", ".ndjson", ".json"})
DELIMITED_EXTENSIONS = frozenset({".csv", ".tsv"})
PARQUET_EXTENSIONS = frozenset({".parquet", ".pq"})
_SHARD_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")

_NUMBERS = re.compile("[0-9]+")


def extension(name: str) -> str:
    """The extension of a path or file name in lower case, with its dot; empty when there is none."""
    return PurePosixPath(name).suffix.lower()


def extensions_of(kinds: frozenset[Kind]) -> frozenset[str]:
    """Every extension that belongs to one of the kinds."""
    return frozenset[str]().union(*(EXTENSIONS[kind] for kind in kinds))


def is_shard(name: str) -> bool:
    """Whether a file is a tar shard, compressed or not, by its name."""
    return name.lower().endswith(_SHARD_ENDINGS)


def natural_key(path: str) -> str:
    """Sort key that puts img2 before img10, and a folder's files by the folder's place; case counts for nothing.

    Names may tie (case, leading zeros): sort by the names themselves first.
    """
    # Each number is led by its length, so that plain comparison of texts orders numbers.
    return _NUMBERS.sub(_padded, path.casefold().replace("/", "\0"))


def _padded(match: re.Match[str]) -> str:
    digits = match[0].lstrip("0")
    return f"0{len(digits):03}{digits}"
