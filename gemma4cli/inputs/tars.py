"""WebDataset shards -> records: tar files whose members belong together by the name before their first dot.

    000017.jpg  000017.json  000017.txt  ->  {"__key__": "000017", "jpg": <medium>, <fields of the JSON>, "txt": ...}

Media of a plain tar are read from their place in it, by whoever decodes them; those of a compressed one come along as
bytes. Nothing is ever written where a member's name says. A shard that breaks off costs the sample that it breaks off
in: the samples before it stand, and a failed row names the shard.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self

import pyarrow as pa

from gemma4cli import storage
from gemma4cli.errors import ParseError
from gemma4cli.escaping import printable, without_surrogates
from gemma4cli.inputs.json_types import ColumnTypes
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.names import EXTENSIONS
from gemma4cli.inputs.opened import InputFile
from gemma4cli.records import Kind, Media

KEY = "__key__"
_JSON = frozenset({"json", "jsn"})
_TEXTS = frozenset({"txt", "text", "caption", "transcript", "prompt", "question", "answer", "label"})
_NUMBERS = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_MOST_TEXT = 16 << 20  # bytes of a member that becomes columns
_MOST_MEDIUM = 1 << 30  # bytes of one that is held in memory
_CHUNK_ROWS = 2_000
_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError)
_PACKED: dict[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
_END = getattr(tarfile, "EOFHeaderError", tarfile.HeaderError)  # a block of zeros, which ends an archive
_FEATURES = {Kind.IMAGE: "Image", Kind.AUDIO: "Audio", Kind.VIDEO: "Video"}


@dataclass(slots=True)
class _Sample:
    """Members that share a key: their columns, and the first thing that is wrong with one of them."""

    key: str
    record: dict[str, Any]
    seen: set[str] = field(default_factory=set)
    error: ParseError | None = None


def open_tars(files: Sequence[InputFile], kinds: frozenset[Kind], media_columns: Sequence[str]) -> Table:
    """Reads the shards once, for the columns' types and the number of samples; media are passed over.

    Args:
        kinds: members of these kinds are media; others are left out, unless `media_columns` names their extension.
    """
    types = ColumnTypes()
    media: dict[str, Kind] = {}
    total = 0
    chunk: list[dict[str, Any]] = []
    for file in files:
        for sample in _samples(file, data=False):
            total += 1
            if isinstance(sample, ParseError) or sample.error is not None:
                continue
            found = {name: kind for name, value in sample.record.items() if (kind := _medium_kind(name, value))}
            media |= {name: kind for name, kind in found.items() if kind in kinds or name in media_columns}
            chunk.append({name: value for name, value in sample.record.items() if not isinstance(value, Media)})
            if len(chunk) >= _CHUNK_ROWS:
                types.add(chunk)
                chunk = []
    types.add(chunk)
    schema, as_json = types.schema()
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    fields = [each for each in schema if each.name not in media] + [pa.field(name, struct) for name in media]
    features = {name: {"_type": _FEATURES[kind]} for name, kind in media.items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}

    def read(wanted: Wanted) -> Iterator[Entry]:
        numbers = count()
        for file in files:
            for sample in _samples(file, data=bool(media.keys() & wanted.columns)):
                number = next(numbers)
                if isinstance(sample, ParseError):
                    yield Entry(number, file.name, sample, file.folder)
                else:
                    place = f"{file.name} sample {printable(sample.key)}"
                    yield Entry(number, place, sample.error or sample.record, file.folder)

    name = files[0].name if len(files) == 1 else f"{files[0].name} and {len(files) - 1} more"
    return Table(name, pa.schema(fields, metadata), total, read, as_json)


def _medium_kind(name: str, value: Any) -> Kind | None:
    suffix = "." + name.rpartition(".")[2]
    return next((kind for kind, known in EXTENSIONS.items() if suffix in known and isinstance(value, Media)), None)


@dataclass(frozen=True, slots=True)
class _Shard:
    """An open shard.

    packed: it is compressed, and can only be read from its beginning to its end.
    version: of a file elsewhere, what its store says of it.  data: media that must be held are.
    """

    file: InputFile
    tar: tarfile.TarFile
    packed: bool
    version: str | None
    data: bool

    def add(self, sample: _Sample, name: str, member: tarfile.TarInfo) -> None:
        """Puts a member into its sample."""
        shown = printable(member.name)
        if name in sample.seen:
            sample.error = sample.error or ParseError("duplicate_member", f"there are two members {shown}")
            return
        sample.seen.add(name)
        suffix = name.rpartition(".")[2]
        try:
            if any(f".{suffix}" in known for known in EXTENSIONS.values()):
                sample.record[name] = self._medium(member, shown)
            elif suffix in _JSON | _TEXTS | _NUMBERS:
                found = _columns(name, suffix, self._read(member, _MOST_TEXT), shown)
                # A member of its own goes before a field of the JSON.
                sample.record |= {column: v for column, v in found.items() if column not in sample.seen - {name}}
        except ParseError as error:
            sample.error = sample.error or error

    def _medium(self, member: tarfile.TarInfo, shown: str) -> Media:
        if member.size == 0:
            raise ParseError("no_media", f"the member {shown} holds 0 bytes")
        apart = self.file.path is not None or storage.is_remote(self.file.shown)
        if apart and not self.packed and not member.issparse():
            location = f"{self.file.folder}/{self.file.shown.rpartition('/')[2]}"
            return Media(location, span=(member.offset_data, member.size), version=self.version)
        if member.size > _MOST_MEDIUM:
            raise ParseError("too_large", f"the member {shown} is larger than {_MOST_MEDIUM:,} bytes")
        return Media(member.name, data=self._read(member, _MOST_MEDIUM) if self.data else b"")

    def _read(self, member: tarfile.TarInfo, most: int) -> bytes:
        if member.size > most:
            raise ParseError("too_large", f"the member {printable(member.name)} is larger than {most:,} bytes")
        source = self.tar.extractfile(member)
        assert source is not None  # it is a regular file
        data = source.read()
        if len(data) < member.size:
            raise tarfile.ReadError("unexpected end of data")
        return data


class _Member(tarfile.TarInfo):
    """A member whose place tells damage: by itself, `tarfile` takes that for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            if isinstance(error, _END):
                raise
            raise tarfile.ReadError(f"no end of the archive, but {error}") from error


def _samples(file: InputFile, *, data: bool) -> Iterator[_Sample | ParseError]:
    """The samples of a shard in order, without the bytes of media that would have to be held unless `data`."""
    current: _Sample | None = None
    try:
        with file.open() as opened:
            head = opened.read(6)
            opened.seek(0)
            unpack = next((unpack for magic, unpack in _PACKED.items() if head.startswith(magic)), None)
            packed = unpack is not None
            # As a stream where it is packed: to go back by one byte is to begin again.
            with (
                tarfile.open(fileobj=opened, mode="r:", tarinfo=_Member)
                if unpack is None
                else tarfile.open(fileobj=unpack(opened), mode="r|", tarinfo=_Member)
            ) as tar:
                shard = _Shard(file, tar, packed, _version(file), data)
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined]  # they would be kept, all of them
                    named = _named(member)
                    if named is None:
                        continue
                    key, name = named
                    if current is None or current.key != key:
                        if current is not None:
                            yield current
                        current = _Sample(key, {KEY: key})
                    shard.add(current, name, member)
    except _BROKEN as error:
        reason = printable(str(error).split("\n")[0]) or type(error).__name__
        where = "before its first sample" if current is None else f"in sample {printable(current.key)}"
        yield ParseError("damaged_shard", f"it breaks off {where} ({reason}); what comes after that is missing")
        return
    if current is not None:
        yield current


def _named(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """Key and column of a member; None for what is no part of a sample: folders, links, hidden and nameless files."""
    if not member.isreg():
        return None
    folder, slash, base = member.name.removeprefix("./").rpartition("/")
    stem, dot, name = base.partition(".")
    return (f"{folder}{slash}{stem}", name.lower()) if stem and dot and name else None


def _columns(name: str, suffix: str, data: bytes, shown: str) -> dict[str, Any]:
    """The columns that a member of text makes. Raises ParseError."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParseError("not_utf8", f"byte {error.start + 1} of the member {shown} is not UTF-8") from None
    if suffix not in _JSON:
        number = text.strip()
        return {name: int(number) if suffix in _NUMBERS and number.isdecimal() else text.rstrip("\r\n")}
    try:
        value = without_surrogates(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ParseError("not_json", f"the member {shown} is not JSON: {error}") from None
    return value if isinstance(value, dict) else {name: value}


def _version(file: InputFile) -> str | None:
    """What tells a shard elsewhere from what it was."""
    if not storage.is_remote(file.shown):
        return None
    try:
        fs, path = storage.filesystem(file.shown)
        return storage.version(fs.info(path))
    except Exception:  # reading it tells
        return None
