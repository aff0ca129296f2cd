"""Folders and glob patterns elsewhere: listed once, in the order that local ones have."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from typing import Any

from gemma4cli import storage
from gemma4cli.errors import UsageError
from gemma4cli.inputs.files import Found, is_magic
from gemma4cli.inputs.names import natural_key


def kind_of(uri: str) -> str:
    """`folder` or `file`.

    Raises:
        UsageError: there is no such thing, or it cannot be looked at.
    """
    fs, path = _filesystem(uri)
    try:
        if not uri.endswith("/") and fs.isfile(path):
            return "file"
        if fs.isdir(path):
            return "folder"
        if fs.exists(path):
            return "file"
    except Exception as error:
        raise UsageError(f"cannot read {storage.shown(uri)}: {storage.reason(error)}") from error
    raise UsageError(f"no such file or folder: {storage.shown(uri)}")


def is_pattern(uri: str) -> bool:
    """Whether it has wildcards, and nothing has that very name."""
    if not is_magic(uri):
        return False
    fs, path = _filesystem(uri)
    try:
        return not fs.exists(path)
    except Exception:  # the listing tells
        return True


def expand(pattern: str) -> list[Found]:
    """The files that match a glob pattern, in natural order. Raises UsageError where that cannot be told."""
    fs, path = _filesystem(pattern)
    try:
        found = fs.glob(path, detail=True)
    except Exception as error:
        raise UsageError(f"cannot read {storage.shown(pattern)}: {storage.reason(error)}") from error
    names = sorted((name for name, info in found.items() if info.get("type") == "file"), key=_place)
    return [Found(uri := _uri(pattern, path, name), uri, version=storage.version(found[name])) for name in names]


def walk(folder: str) -> Callable[[Callable[[str], bool]], Iterator[Found]]:
    """The files below a folder, as `files.walk` gives them; listed now, so that they stay what they are.

    Raises:
        UsageError: the folder cannot be listed.
    """
    fs, path = _filesystem(folder)
    try:
        infos: dict[str, Any] = fs.find(path, detail=True)
    except Exception as error:
        raise UsageError(f"cannot read the folder {storage.shown(folder)}: {storage.reason(error)}") from error
    below = path.rstrip("/") + "/"
    files = [(name.removeprefix(below), storage.version(info)) for name, info in infos.items()]
    files = [(name, version) for name, version in files if not any(part[:1] == "." for part in name.split("/"))]
    files.sort(key=lambda pair: _place(pair[0]))
    # The key of a prefix may be a "folder" itself, as an object of no bytes.
    found = [Found(name, f"{folder.rstrip('/')}/{name}", version=version) for name, version in files if name]

    def walked(wanted: Callable[[str], bool]) -> Iterator[Found]:
        return (each for each in found if wanted(posixpath.basename(each.name)))

    return walked


def _place(path: str) -> list[tuple[str, str]]:
    """Sorts as a walk through the folders does, in each by its names."""
    return [(natural_key(part), part) for part in path.split("/")]


def _uri(pattern: str, path: str, name: str) -> str:
    """A match, spelt as the pattern is."""
    at = pattern.rfind(path) if path and pattern.endswith(path) else -1
    return pattern[:at] + name if at >= 0 else str(_filesystem(pattern)[0].unstrip_protocol(name))


def _filesystem(uri: str) -> tuple[Any, str]:
    try:
        return storage.filesystem(uri)
    except ImportError as error:
        raise UsageError(f"cannot read {storage.shown(uri)}: {storage.reason(error)}", storage.INSTALL) from error
    except Exception as error:
        raise UsageError(f"cannot read {storage.shown(uri)}: {storage.reason(error)}") from error
