"""From a medium's location to an open, seekable file of its bytes.

Files are opened by descriptor, so that no decoder ever sees a name: names such as `concat:a|b` mean something to
ffmpeg. Downloads are in `download`, other stores in `remote`.
"""

from __future__ import annotations

import base64
import binascii
import errno
import io
import os
import re
import stat
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, unquote_to_bytes

from gemma4cli import storage
from gemma4cli.errors import FetchError
from gemma4cli.media.kept import kept
from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Media

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SHOWN = 200  # characters of a location in a message

_OS_ERRORS = {
    errno.ENOENT: ("not_found", "no such file"),
    errno.ENOTDIR: ("not_found", "no such file: a part of the path is not a folder"),
    errno.EACCES: ("permission_denied", "permission denied; make the file readable for this user"),
    errno.EPERM: ("permission_denied", "permission denied; make the file readable for this user"),
    errno.ELOOP: ("symlink_loop", "its symbolic links go round in a circle"),
    errno.ENAMETOOLONG: ("bad_location", "the name is too long for the file system"),
}


def fetch(media: Media, options: MediaOptions) -> BinaryIO:
    """Opens a medium's bytes for reading; the caller closes the file, which leaves nothing behind.

    Raises FetchError with a type of `not_found`, `permission_denied`, `is_a_directory`, `not_a_file`,
    `symlink_loop`, `outside_root`, `bad_location`, `read_error`, `unsupported_scheme`, or one of `download`'s or of
    `open_remote`'s.
    """
    if media.data is not None:
        return io.BytesIO(media.data)
    location = media.location
    scheme = _SCHEME.match(location)
    if not location:
        raise FetchError("bad_location", "the row names no medium")
    if storage.is_remote(location):
        from gemma4cli.media.remote import open_remote

        return (
            kept(location, options, open_remote) if media.span is None else open_remote(location, options, media.span)
        )
    if location.startswith("/") or scheme is None:
        file = open_file(location, options.root)
        return file if media.span is None else part_of(file, media.span)
    match scheme[1].lower():
        case "file":
            return open_file(path_of(location), options.root)
        case "data":
            return io.BytesIO(_data_of(location))
        case "http" | "https":
            from gemma4cli.media.download import download

            return kept(location, options, download)
        case other:
            raise FetchError(
                "unsupported_scheme",
                f"cannot read {other}: locations ({_shown(location)}); paths, file:, data:, http: and https: work, and "
                "what fsspec opens",
            )


def path_of(uri: str) -> str:
    """The path that a file: URI means. Raises FetchError `bad_location` where it means none on this host."""
    # Split by hand: a file name may hold ? and #, and what wrote the URI may not have escaped them.
    path = uri.partition(":")[2]
    if path.startswith("//"):
        host, slash, path = path[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise FetchError("bad_location", f"file: URI on another host, {host}; file:///path works: {_shown(uri)}")
        path = slash + path
    decoded = os.fsdecode(unquote_to_bytes(_bytes_of(path, uri)))
    if not decoded.startswith("/"):
        raise FetchError("bad_location", f"file: URI without an absolute path: {_shown(uri)}")
    return decoded


def _data_of(uri: str) -> bytes:
    """The bytes in a data: URI (RFC 2397), in base64 with or without padding, or percent-encoded."""
    header, comma, body = uri[len("data:") :].partition(",")
    if not comma:
        raise FetchError("bad_location", f"data: URI without a comma before its data: {_shown(uri)}")
    if not header.rstrip().lower().endswith(";base64"):
        return unquote_to_bytes(_bytes_of(body, uri))
    text = "".join(unquote(body).split()).replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FetchError("bad_location", f"data: URI whose base64 is broken ({error}): {_shown(uri)}") from error


def _bytes_of(text: str, uri: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as error:
        raise FetchError("bad_location", f"not a URI, it holds half a character: {_shown(uri)}") from error


def open_file(path: str, root: str | None) -> BinaryIO:
    """Opens a regular file; a FIFO or a device would block, or never end. With a root, only what lies below it.

    Raises FetchError as `fetch` does.
    """
    if "\0" in path:
        raise FetchError("bad_location", f"the name holds a NUL character: {_shown(path)}")
    try:
        _refuse_special(os.stat(path).st_mode, path)  # noqa: PTH116 - Path drops what a name may mean, such as //
        # Not blocking, because the file may have become a FIFO since.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        type_, what = _OS_ERRORS.get(error.errno or 0, ("read_error", error.strerror or str(error)))
        if type_ == "not_found" and os.path.islink(path):  # noqa: PTH114
            what = "the symbolic link leads nowhere"
        raise FetchError(type_, f"{what}: {_shown(path)}") from error
    except ValueError as error:  # lone surrogates
        raise FetchError("bad_location", f"not a name that this file system can hold: {_shown(path)}") from error
    file = os.fdopen(descriptor, "rb")
    try:
        _refuse_special(os.fstat(descriptor).st_mode, path)
        if root is not None:
            _refuse_outside(descriptor, root, path)
    except FetchError:
        file.close()
        raise
    return file


class _Part(io.RawIOBase):
    """A part of an open file, as a file of its own that closes the other."""

    def __init__(self, file: BinaryIO, span: tuple[int, int]) -> None:
        self._file, (self._start, self._size) = file, span
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "a place before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        left = max(0, self._size - self._at)
        data = os.pread(self._file.fileno(), min(len(buffer), left), self._start + self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def part_of(file: BinaryIO, span: tuple[int, int]) -> BinaryIO:
    """Some bytes of an open file as a file of their own, at its start. Raises FetchError `truncated`."""
    if os.fstat(file.fileno()).st_size < sum(span):
        file.close()
        raise FetchError("truncated", "the file that it is a part of ends before it")
    return cast(BinaryIO, io.BufferedReader(_Part(file, span)))


def _refuse_outside(descriptor: int, root: str, path: str) -> None:
    # The open file is asked where it is: links and `..` are behind us, and nobody can exchange it any more.
    real, allowed = os.readlink(f"/proc/self/fd/{descriptor}"), os.path.realpath(root)  # noqa: PTH115
    if storage.is_remote(root) or os.path.commonpath([real, allowed]) != allowed:
        raise FetchError("outside_root", f"outside --root {_shown(root)}: {_shown(path)}")


def _refuse_special(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise FetchError("is_a_directory", f"a folder, not a file: {_shown(path)}")
    if not stat.S_ISREG(mode):
        raise FetchError("not_a_file", f"a pipe, socket or device, not a file: {_shown(path)}")


def _shown(location: str) -> str:
    """A location fit for a message: printable, short, without the data of a data: URI."""
    if location[:5].lower() == "data:":
        location = location[:60] + ("…" if len(location) > 60 else "")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in location)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}…{text[-_SHOWN // 2 :]}"
