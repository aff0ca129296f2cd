"""From a URI that fsspec opens to an open file of its bytes, in memory or in a file without a name."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from typing import Any, BinaryIO, cast

from gemma4cli import storage
from gemma4cli.errors import FetchError
from gemma4cli.media import traffic
from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Item, Media

_IN_MEMORY = 32 << 20  # larger files go on to disk
_CHUNK = 4 << 20
_BUSY = frozenset({408, 425, 429})


def open_remote(uri: str, options: MediaOptions, span: tuple[int, int] | None = None) -> BinaryIO:
    """The bytes of a file elsewhere, or `span` of them (start, length), as an open file at its start.

    Raises FetchError with a type of `protocol_refused`, `unsupported_scheme`, `outside_root`, `not_found`,
    `permission_denied`, `is_a_directory`, `too_large`, `timeout`, `server_error`, `no_room` or `read_error`.
    """
    shown = storage.shown(uri)
    _refuse(uri, options)
    deadline = time.monotonic() + options.timeout_s
    with traffic.fetching() as count:
        try:
            fs, path = storage.filesystem(uri)
            size = fs.info(path).get("size") if span is None else span[1]
            if size is not None and size > options.max_bytes:
                raise FetchError("too_large", f"larger than the limit of {options.max_bytes:,} bytes: {shown}")
            file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller closes it
            try:
                for chunk in _chunks(fs, path, span, size):
                    count(len(chunk))
                    if time.monotonic() > deadline:
                        raise FetchError("timeout", f"not fetched within {options.timeout_s:g} s: {shown}")
                    _keep(file, chunk, options.max_bytes, shown)
                file.seek(0)
            except BaseException:
                file.close()
                raise
        except FetchError:
            raise
        except ImportError as error:
            raise FetchError("unsupported_scheme", f"{storage.reason(error)}: {shown}") from error
        except Exception as error:  # each file system has exceptions of its own
            raise FetchError(_type(error), f"{storage.reason(error)}: {shown}") from error
    return cast(BinaryIO, file)


def held(item: Item, options: MediaOptions) -> Item:
    """The row with the bytes of those of its media that only this process can read, such as `memory://`.

    Raises FetchError as `open_remote` does.
    """
    if not any(_is_here_alone(medium) for medium in item.media):
        return item
    content: list[Media | str] = []
    for part in item.content:
        if isinstance(part, Media) and _is_here_alone(part):
            with open_remote(part.location, options, part.span) as file:
                part = replace(part, data=file.read(), span=None)
        content.append(part)
    return replace(item, content=tuple(content))


def _is_here_alone(medium: Media) -> bool:
    return medium.data is None and storage.is_remote(medium.location) and not storage.is_shared(medium.location)


def _refuse(uri: str, options: MediaOptions) -> None:
    shown = storage.shown(uri)
    if options.root is not None:
        below = options.root.rstrip("/") + "/"
        if not uri.startswith(below) or ".." in uri[len(below) :].split("/"):
            raise FetchError("outside_root", f"outside --root {options.root}: {shown}")
    if options.allow_private_hosts:
        return
    refused = storage.refusal(uri, options.allow_protocols)
    if refused:
        raise FetchError(
            "protocol_refused",
            f"a row may not name {refused}: addresses, which may lead to private hosts; --allow-private-hosts permits "
            f"them: {shown}",
        )


def _chunks(fs: Any, path: str, span: tuple[int, int] | None, size: int | None) -> Any:
    """A file's bytes by and by. One request fetches what is small."""
    if span is not None:
        for start in range(span[0], span[0] + span[1], _CHUNK):
            chunk = fs.cat_file(path, start=start, end=min(start + _CHUNK, span[0] + span[1]))
            if not chunk:
                raise EOFError("the file ends before its part")
            yield chunk
        return
    if size is not None and size <= _CHUNK:
        yield fs.cat_file(path)
        return
    with fs.open(path, "rb", block_size=_CHUNK) as source:
        while chunk := source.read(_CHUNK):
            yield chunk


def _keep(file: Any, chunk: bytes, limit: int, shown: str) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        where = f"{error.strerror or error}; TMPDIR names another folder than {tempfile.gettempdir()}"
        raise FetchError("no_room", f"the file cannot be kept ({where}): {shown}") from error
    if file.tell() > limit:
        raise FetchError("too_large", f"larger than the limit of {limit:,} bytes: {shown}")


def _type(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not_found"
    if isinstance(error, PermissionError):
        return "permission_denied"
    if isinstance(error, IsADirectoryError):
        return "is_a_directory"
    if isinstance(error, TimeoutError):
        return "timeout"
    said = str(getattr(error, "status", None) or getattr(error, "code", None))
    code = int(said) if said.isdecimal() else 0
    if code in (401, 403):
        return "permission_denied"
    if code == 404:
        return "not_found"
    if code >= 500 or code in _BUSY or isinstance(error, ConnectionError):
        return "server_error"  # worth another try, later
    return "read_error"
