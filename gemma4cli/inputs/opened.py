"""The files that inputs are read from: here, in a store that fsspec opens, or downloaded once."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gemma4cli import storage
from gemma4cli.errors import FetchError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.media.download import download
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.remote import open_remote

_BLOCK = 1 << 20  # bytes of a store's file that are read ahead


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that can be opened as often as it takes.

    shown: as the user would write it.  folder: absolute, or a URI; relative paths in the file are relative to it.
    path: of a local file, else None.
    """

    shown: str
    folder: str
    path: str | None
    _open: Callable[[], BinaryIO] = field(repr=False)

    @property
    def name(self) -> str:
        """For messages."""
        return printable(self.shown)

    def open(self) -> BinaryIO:
        """Raises OSError."""
        return self._open()


def file_at(text: str, *, whole: bool = False, allow_private_hosts: bool = False) -> InputFile:
    """The file that a path or a URI means.

    Args:
        whole: it will be read from its beginning to its end, more than once: a store's file is then copied first.

    Raises:
        UsageError: it cannot be downloaded.
    """
    if storage.is_remote(text) or text[:5].lower() in ("http:", "https"):
        options = MediaOptions(
            allow_private_hosts=allow_private_hosts,
            allow_protocols=frozenset(storage.protocols(text)),
            timeout_s=3600.0,
            max_bytes=1 << 40,
        )
        bare = text.partition("?")[0] if text[:4].lower() == "http" else text
        folder = bare.rpartition("/")[0]
        if storage.is_remote(text):
            if not whole:
                return InputFile(text, folder, None, lambda: _stored(text))
            copy = _copied(text, options, open_remote)
        else:
            copy = _copied(text, options, download)
        return InputFile(text, folder, None, copy)
    path = Path(text)
    return InputFile(text, str(path.absolute().parent), text, lambda: path.open("rb"))


class _Copy:
    """A file without a name, gone with whoever may still read it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        weakref.finalize(self, file.close)

    def __call__(self) -> BinaryIO:
        # Opened anew, not duplicated: each reader has a place of its own in the file.
        return open(f"/proc/self/fd/{self._file.fileno()}", "rb")  # noqa: PTH123


def _copied(text: str, options: MediaOptions, fetch: Callable[[str, MediaOptions], BinaryIO]) -> _Copy:
    try:
        copy = fetch(text, options)
    except FetchError as error:
        raise UsageError(f"cannot read the input: {error}", "is the address right, and may you read it?") from error
    copy.fileno()  # moves what is in memory to disk, where it can be opened again
    copy.flush()
    return _Copy(copy)


class _Stored(io.RawIOBase):
    """A store's file, whose errors are all OSErrors."""

    def __init__(self, uri: str) -> None:
        try:
            fs, path = storage.filesystem(uri)
            self._file: Any = fs.open(path, "rb", block_size=_BLOCK)
        except Exception as error:
            raise OSError(storage.reason(error)) from error

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._file.read(len(buffer))
        except Exception as error:
            raise OSError(storage.reason(error)) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def _stored(uri: str) -> BinaryIO:
    return io.BufferedReader(_Stored(uri), _BLOCK)
