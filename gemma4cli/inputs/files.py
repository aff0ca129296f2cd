"""Files, folders, glob patterns and lists of paths -> Items, one for each medium."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gemma4cli import storage
from gemma4cli.errors import UsageError
from gemma4cli.escaping import encodable, printable
from gemma4cli.inputs.names import EXTENSIONS, extension, extensions_of, natural_key
from gemma4cli.records import Failure, Item, Kind, Media, Stage

_URI = re.compile(r"(?:https?|file)://|data:", re.IGNORECASE)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
_BRACES = re.compile(r"\{([^{},]*(?:,[^{},]*)+|[0-9]+\.\.[0-9]+)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_MOST_BRACES = 100_000
_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Found:
    """One medium, as discovery found it.

    name: what becomes the row's id.
    shown: the path as the user would write it.
    unreadable: why this folder could not be listed; None for media.
    version: of a file elsewhere, what its listing says to tell it from what it was.
    """

    name: str
    shown: str
    unreadable: str | None = None
    version: str | None = None


Wanted = Callable[[str], bool]
"""Whether a file is wanted, by its name alone."""
Walk = Callable[[Wanted], Iterator[Found]]
"""The files below a folder that are wanted."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a first look at a folder found: media of the kinds wanted, and how many files of other kinds."""

    taken: int
    others: int
    extensions: frozenset[str]


def joined(folder: str, path: str) -> str:
    """The path below the folder; an absolute one as it is. Unlike pathlib it keeps the user's spelling."""
    return path if path.startswith("/") else f"{folder.rstrip('/')}/{path}" if path else folder


def is_uri(text: str) -> bool:
    """Whether the text names its bytes by a URI that can be fetched, rather than by a path."""
    return _URI.match(text) is not None or storage.is_remote(text)


def unsupported_scheme(text: str) -> str | None:
    """The scheme of a URI that nobody here knows (`gopher`); None for paths and for URIs that can be fetched."""
    match = None if "://" not in text or is_uri(text) else _SCHEME.match(text)
    return match[1].lower() if match else None


def is_pattern(text: str) -> bool:
    """Whether the text is to be expanded: it has wildcards, and no file has that very name."""
    return is_magic(text) and not is_uri(text) and not os.path.lexists(text)


def is_magic(text: str) -> bool:
    """Whether the text has wildcards."""
    return _MAGIC.search(text) is not None


def walk(folder: str, wanted: Wanted) -> Iterator[Found]:
    """Every file below a folder that is wanted by name, in natural order, hidden files and folders left out.

    Links to folders are followed when they lead out of the tree, and each folder is entered once, so that loops
    end and nothing is found twice. A folder that cannot be listed is found as such: its files must not
    go missing in silence.
    """
    root = os.path.realpath(folder)
    entered: set[str] = set()

    def descend(relative: str) -> Iterator[Found]:
        here = joined(folder, relative)
        try:
            with os.scandir(here) as entries:
                found = [(entry.name, _is_folder(entry)) for entry in entries if entry.name[0] != "."]
        except OSError as error:
            yield Found(relative, here, error.strerror or str(error))
            return
        found.sort()
        found.sort(key=lambda pair: natural_key(pair[0]))
        for name, is_folder in found:
            below = f"{relative}/{name}" if relative else name
            if not is_folder:
                if wanted(name):
                    yield Found(below, joined(folder, below))
            elif _enter(joined(folder, below), root, entered):
                yield from descend(below)

    return descend("")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a loop of links: a name like any other, whose bytes cannot be had
        return False


def _enter(folder: str, root: str, entered: set[str]) -> bool:
    if not Path(folder).is_symlink():
        return not entered or os.path.realpath(folder) not in entered
    target = os.path.realpath(folder)
    inside = target == root or target.startswith(root.rstrip("/") + "/")
    if inside or target in entered or root.startswith(target.rstrip("/") + "/"):
        return False
    entered.add(target)
    return True


def scan(folder: str, walk: Walk, kinds: frozenset[Kind], limit: int | None = None) -> Scan:
    """Counts the media below a folder, up to a limit, and the files that are not.

    Raises:
        UsageError: the folder itself cannot be listed.
    """
    suffixes = extensions_of(kinds)
    others = 0
    seen: set[str] = set()

    def wanted(name: str) -> bool:
        nonlocal others
        suffix = extension(name)
        seen.add(suffix)
        others += suffix not in suffixes
        return suffix in suffixes

    taken = 0
    for found in islice(walk(wanted), limit):
        if found.unreadable is not None and found.name == "":
            raise UsageError(f"cannot read the folder {printable(folder)}: {found.unreadable}")
        taken += 1
    return Scan(taken, others, frozenset(seen))


def media_below(walk: Walk, kinds: frozenset[Kind]) -> Iterator[Found]:
    """The files below a folder whose extension belongs to one of the kinds, in natural order."""
    suffixes = extensions_of(kinds)
    return walk(lambda name: extension(name) in suffixes)


def has_braces(text: str) -> bool:
    """Whether the text has `{000..009}` or `{a,b}` to be expanded: nothing local has that very name."""
    return text[:5].lower() != "data:" and _BRACES.search(text) is not None and not os.path.lexists(text)


def braces(text: str) -> list[str]:
    """The texts that `{000..009}` and `{a,b}` stand for, in order, with as many digits as the first number has.

    Raises:
        UsageError: they are more than anybody means.
    """
    match = _BRACES.search(text)
    if match is None:
        return [text]
    bounds = _RANGE.fullmatch(match[1])
    if bounds is None:
        choices = match[1].split(",")
    else:
        first, last = int(bounds[1]), int(bounds[2])
        if abs(last - first) >= _MOST_BRACES:
            raise UsageError(f"{printable(text)} stands for more than {_MOST_BRACES:,} names")
        step = 1 if first <= last else -1
        choices = [str(number).zfill(len(bounds[1])) for number in range(first, last + step, step)]
    return [each for choice in choices for each in braces(text[: match.start()] + choice + text[match.end() :])]


def expand(pattern: str) -> list[str]:
    """The paths that match a glob pattern, in natural order; `**` crosses folders, hidden names need a dot.

    Folders that match are left out, except those named like a medium, whose row says what is wrong with them.
    """
    parts = pattern.split("/")
    first = next(i for i, part in enumerate(parts) if _MAGIC.search(part))
    rest = "/".join(parts[first:]) + ("/*" if parts[-1] == "**" else "")
    hidden = any(part.startswith(".") for part in parts[first:])
    base = Path("/".join(parts[:first]) or ("/" if first else "."))
    media = frozenset[str]().union(*EXTENSIONS.values())
    paths = []
    # pathlib's `**` does not follow links, so loops of links end.
    for path in base.glob(rest):
        if not hidden and any(part.startswith(".") for part in path.relative_to(base).parts):
            continue
        if path.is_dir() and extension(path.name) not in media:
            continue
        paths.append(str(path))
    return sorted(sorted(set(paths)), key=natural_key)


def item_of(found: Found, row_index: int, kind: Kind | None, working_folder: str) -> Item:
    """One file or URI as a row."""
    name, source = encodable(found.name), printable(found.shown)
    if found.unreadable is not None:
        message = f"the folder {source} cannot be listed ({found.unreadable}); its files are not in the output"
        return Item(row_index, name, source, failure=Failure(Stage.FETCH, "unreadable_folder", message))
    scheme = unsupported_scheme(found.shown)
    if scheme is not None and not os.path.lexists(found.shown):
        message = f"{source}: {scheme}:// cannot be read; copy the file here"
        return Item(row_index, name, source, failure=Failure(Stage.PARSE, "unsupported_scheme", message))
    location = found.shown if is_uri(found.shown) else joined(working_folder, found.shown)
    return Item(row_index, name, shorten_data(source), (Media(location, kind=kind, version=found.version),))


def shorten_data(source: str) -> str:
    """A data: URI without its data, which nobody reads; other texts unchanged."""
    if source[:5].lower() != "data:":
        return source
    head, comma, data = source.partition(",")
    return f"{head[:80]}{comma}... ({len(data)} characters)"


def split_paths(data: bytes) -> Iterator[str]:
    """The paths in a list: NUL-separated if there is a NUL (`find -print0`), else one a line; blanks skipped."""
    separator = b"\0" if b"\0" in data else b"\n"
    start = 0
    while start < len(data):
        end = data.find(separator, start)
        end = len(data) if end < 0 else end
        path = data[start:end]
        if separator == b"\n":
            path = path.removesuffix(b"\r")
        if path.strip():
            yield os.fsdecode(path)
        start = end + 1
