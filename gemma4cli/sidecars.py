"""Small files that belong to one input each: captions for trainers, subtitles for players.

They lie beside the input, or in a folder of their own that mirrors its tree. Each is written whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from gemma4cli.errors import JobError, RowError, UsageError
from gemma4cli.escaping import encodable, printable
from gemma4cli.identity import local_path
from gemma4cli.records import Media, Stage

_LONGEST_NAME = 255  # bytes, on all common file systems
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class SidecarError(RowError):
    """A row whose sidecar cannot be placed or written."""

    stage = Stage.PARSE


class Sidecar(StrEnum):
    """Kinds of caption file, and their extensions."""

    TXT = "txt"
    CAPTION = "caption"
    JSON = "json"


class Existing(StrEnum):
    """What becomes of a sidecar that is there already."""

    SKIP = "skip"
    OVERWRITE = "overwrite"
    APPEND = "append"
    PREPEND = "prepend"


@dataclass(frozen=True, slots=True)
class CaptionOptions:
    """How captions are written: `prefix` and `suffix` go around each as they are.

    folder: holds them all, in folders as the inputs'; None puts each beside its input.
    whole_name: a.jpg.txt rather than a.txt, where a folder has an a.jpg and an a.png.
    Raises UsageError where they contradict each other.
    """

    kind: Sidecar = Sidecar.TXT
    folder: Path | None = None
    prefix: str = ""
    suffix: str = ""
    existing: Existing = Existing.SKIP
    whole_name: bool = False

    def __post_init__(self) -> None:
        if self.kind is Sidecar.JSON and self.existing in (Existing.APPEND, Existing.PREPEND):
            raise UsageError(f"a JSON file cannot be {self.existing.value}ed to", "use overwrite or skip with json")


class Claims:
    """Which sidecar belongs to which row of a job, so that no two rows write the same. Keeps 8 bytes of each path."""

    def __init__(self) -> None:
        self._rows: dict[bytes, int] = {}

    def claim(self, path: Path, row_index: int) -> None:
        """Takes `path` for a row, which may ask again. Raises SidecarError `sidecar_clash` if another has it."""
        key = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
        owner = self._rows.setdefault(key, row_index)
        if owner != row_index:
            raise SidecarError(
                "sidecar_clash",
                f"{printable(str(path))} belongs to row {owner} already; --whole-name calls it by the whole name "
                "of its input (a.jpg.txt), else give these rows ids of their own and --output-dir",
            )


def sidecar_path(
    media: Media, name: str, extension: str, folder: Path | None = None, *, whole_name: bool = False
) -> Path:
    """Where a medium's sidecar lies.

    Args:
        name: the row's id, whose folders are mirrored under `folder`. It stays below it, whatever it says: `..`,
            empty parts and a leading slash are left out. Parts of more than 255 bytes are shortened and end in a hash.
        folder: None puts the sidecar beside the medium's file.

    Raises SidecarError `no_place`: the medium is no file, or the name holds nothing to make one of.
    """
    if folder is None:
        beside = _file_of(media)
        return beside.with_name(_fitting(_stem(beside.name, whole_name), extension))
    plain = name.partition("://")[2] or name
    parts = [part for part in plain.replace("\0", "_").split("/") if part not in ("", ".", "..")]
    if not parts:
        raise SidecarError("no_place", f"the row's id, {printable(name)!r}, gives no name for a file")
    parts = [_encodable(part) for part in parts]
    return folder.joinpath(
        *(_fitting(part, "") for part in parts[:-1]), _fitting(_stem(parts[-1], whole_name), extension)
    )


def is_done(path: Path, options: CaptionOptions) -> bool:
    """Whether a row need not run, as the sidecar that it is asked for is there."""
    return options.existing is Existing.SKIP and path.exists()


def write_caption(path: Path, text: str, options: CaptionOptions, fields: Mapping[str, Any] | None = None) -> None:
    """Writes a caption as one line, as trainers read no more than the first; as JSON, `fields` stand beside it.

    Text that is there already is kept where `options.existing` says so; a caption that it begins or ends with is not
    put there twice, so that a row can be written again. Raises what `write_whole` raises.
    """
    caption = f"{options.prefix}{' '.join(text.split())}{options.suffix}"
    if options.kind is Sidecar.JSON:
        record = json.dumps({"caption": caption, **(fields or {})}, ensure_ascii=False, indent=2)
        write_whole(path, f"{record}\n".encode("utf-8", "backslashreplace"))
        return
    before = _read(path) if options.existing in (Existing.APPEND, Existing.PREPEND) else ""
    new = encodable(caption).encode().decode("utf-8", "surrogateescape")
    if before and options.existing is Existing.APPEND:
        new = before if before.endswith(new) else f"{before} {new}"
    elif before:
        new = before if before.startswith(new) else f"{new} {before}"
    write_whole(path, f"{new}\n".encode("utf-8", "surrogateescape"))


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, and makes its folder.

    Raises SidecarError `not_writable`, or JobError when the disk is full.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        message = f"cannot write {printable(str(path))}: {error.strerror or error}"
        if error.errno in _NO_ROOM:
            raise JobError(message, "make room and run the same command again") from error
        raise SidecarError("not_writable", message) from error


def _file_of(media: Media) -> Path:
    path = (local_path(media.location) if media.data is None and media.span is None else None) or ""
    if path.startswith("/") and Path(path).name:
        return Path(path)
    raise SidecarError("no_place", "this medium is no file that a sidecar could lie beside; --output-dir takes them")


def _stem(name: str, whole_name: bool) -> str:
    """The name without the extension of a medium; other endings (v1.5, 2024.06) are part of the name."""
    stem, dot, extension = name.rpartition(".")
    return stem if stem and not whole_name and f"{dot}{extension.lower()}" in _media_extensions() else name


@cache
def _media_extensions() -> frozenset[str]:
    from gemma4cli.inputs.names import EXTENSIONS  # its package imports Arrow, which the command line does without

    return frozenset[str]().union(*EXTENSIONS.values())


def _fitting(stem: str, extension: str) -> str:
    """A file name of at most 255 bytes; one that had to be shortened ends in a hash of the whole."""
    ending = f".{extension}" if extension else ""
    name = os.fsencode(stem)
    if len(name) + len(ending) <= _LONGEST_NAME:
        return stem + ending
    mark = f"-{hashlib.blake2b(name, digest_size=6).hexdigest()}{ending}"
    # Cut at a whole character; bytes that are no UTF-8 stay as they are.
    kept = name[: _LONGEST_NAME - len(mark)]
    while kept and (name[len(kept)] & 0xC0) == 0x80:
        kept = kept[:-1]
    return os.fsdecode(kept) + mark


def _encodable(part: str) -> str:
    try:
        os.fsencode(part)
    except UnicodeEncodeError:
        return encodable(part)
    return part


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig", "surrogateescape").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise SidecarError("not_writable", f"cannot read {printable(str(path))}: {error.strerror or error}") from error
