"""What the user named -> Items: folders, files, glob patterns, manifests (JSON Lines, Parquet), paths on stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import pyarrow as pa

from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs import files, manifests
from gemma4cli.inputs.names import EXTENSIONS, JSONL_EXTENSIONS, PARQUET_EXTENSIONS, extension
from gemma4cli.inputs.options import InputOptions, Inputs
from gemma4cli.records import Item, Kind

__all__ = ["InputOptions", "Inputs", "open_inputs"]


def open_inputs(inputs: Sequence[str], options: InputOptions, stdin: TextIO | BinaryIO | None = None) -> Inputs:
    """Finds out what the arguments are, and checks all that can be checked without opening media.

    Args:
        inputs: files, folders, glob patterns, URIs; or manifests; or `-` for a list of paths.
        stdin: where `-` reads; the process's own if None.

    Raises:
        UsageError: something is not there, is empty, cannot be read, or does not go together.
    """
    if options.limit is not None and options.limit < 0:
        raise UsageError(f"a limit of {options.limit} rows makes no sense", "give 0 or more")
    if not inputs:
        hint = "name a folder, files, a .jsonl or .parquet manifest, or - for paths on standard input"
        raise UsageError("no input", hint)
    if "-" in inputs:
        if len(inputs) > 1:
            raise UsageError("- (paths on standard input) cannot be mixed with other inputs", "give one or the other")
        return _listed(_read(stdin or sys.stdin), options)
    arguments = list(chain.from_iterable(_expanded(text) for text in inputs))
    formats = {argument.format for argument in arguments}
    paths = [argument.path for argument in arguments]
    if formats == {"folder"} and len(arguments) == 1:
        parts = _parquet_parts(paths[0])
        if parts:
            return manifests.open_parquet(parts, options, printable(paths[0]))
    if formats == {"jsonl"}:
        return manifests.open_jsonl([Path(path) for path in paths], options)
    if formats == {"parquet"}:
        return manifests.open_parquet([Path(path) for path in paths], options)
    manifest = next((argument for argument in arguments if argument.format in {"jsonl", "parquet"}), None)
    if manifest is not None:
        other = next(argument for argument in arguments if argument.format != manifest.format)
        message = f"the manifest {printable(manifest.path)} cannot be mixed with {printable(other.path)}"
        raise UsageError(message, "give manifests of one format, or files and folders")
    return _found(arguments, options)


class _Argument(NamedTuple):
    path: str
    format: str  # folder, file, jsonl or parquet


def _expanded(text: str) -> list[_Argument]:
    if files.is_uri(text):
        return [_Argument(text, "file")]
    scheme = files.unsupported_scheme(text)
    if scheme is not None:
        message = f"{printable(text)}: {scheme}:// cannot be read"
        raise UsageError(message, "copy it here, or give an http(s) address")
    if files.is_pattern(text):
        paths = files.expand(text)
        if not paths:
            raise UsageError(f"nothing matches {printable(text)}")
        return [_Argument(path, _format(path)) for path in paths]
    try:
        os.lstat(text)
        return [_Argument(text, "folder" if Path(text).is_dir() else _format(text))]
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no such file or folder: {printable(text) or repr(text)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {printable(text)}: {reason}") from error


def _format(path: str) -> str:
    suffix = extension(path)
    return "jsonl" if suffix in JSONL_EXTENSIONS else "parquet" if suffix in PARQUET_EXTENSIONS else "file"


def _parquet_parts(folder: str) -> list[Path]:
    """The Parquet files of a folder that holds no other data; empty if it is a folder of something else."""
    data = frozenset[str]().union(PARQUET_EXTENSIONS, JSONL_EXTENSIONS - {".json"}, *EXTENSIONS.values())
    parts = []
    for found in files.walk(folder, lambda name: extension(name) in data):
        if found.unreadable is not None or extension(found.name) not in PARQUET_EXTENSIONS:
            return []
        parts.append(Path(found.shown))
    return parts


def _found(arguments: list[_Argument], options: InputOptions) -> Inputs:
    total = 0
    for argument in arguments:
        if argument.format != "folder":
            total += 1
            continue
        seen = files.scan(argument.path, options.kinds, None if options.limit is None else max(options.limit, 1))
        if not seen.taken:
            raise _nothing_under(argument.path, seen, options.kinds)
        total += seen.taken
    alone = len(arguments) == 1

    def discover() -> Iterator[files.Found]:
        for argument in arguments:
            if argument.format != "folder":
                yield files.Found(argument.path, argument.path)
                continue
            for found in files.media_below(argument.path, options.kinds):
                # One folder's ids are relative to it; those of several are told apart by the folder.
                yield found if alone else files.Found(found.shown, found.shown, found.unreadable)

    return _rows(discover, total, options)


def _nothing_under(folder: str, seen: files.Scan, kinds: frozenset[Kind]) -> UsageError:
    words = {Kind.IMAGE: "images", Kind.AUDIO: "audio files", Kind.VIDEO: "videos"}
    wanted = " or ".join(words[kind] for kind in Kind if kind in kinds) or "media"
    shown = printable(folder).rstrip("/") + "/"
    if not seen.others:
        return UsageError(f"no {wanted} under {shown}: there are no files in it")
    files_of = "1 file of another kind was" if seen.others == 1 else f"{seen.others} files of other kinds were"
    hint = f"{files_of} skipped ({', '.join(sorted(seen.extensions)[:8]) or 'without extension'})"
    if seen.extensions & (JSONL_EXTENSIONS | PARQUET_EXTENSIONS):
        hint += "; to use a manifest, name the file itself"
    return UsageError(f"no {wanted} under {shown}", hint)


def _read(stdin: TextIO | BinaryIO) -> bytes:
    stream = getattr(stdin, "buffer", stdin)
    data = stream.read()
    return os.fsencode(data) if isinstance(data, str) else data


def _listed(data: bytes, options: InputOptions) -> Inputs:
    # A list of a million paths is some 100 MB as bytes, and several times that as Python texts.
    total = sum(1 for _ in files.split_paths(data))
    if not total:
        hint = "pipe a list in, such as: find images -name '*.jpg' | gemma4 caption -"
        raise UsageError("no paths on standard input", hint)
    return _rows(lambda: (files.Found(path, path) for path in files.split_paths(data)), total, options)


def _rows(discover: Callable[[], Iterator[files.Found]], total: int, options: InputOptions) -> Inputs:
    working_folder = str(Path.cwd())

    def rows() -> Iterator[Item]:
        for i, found in enumerate(islice(discover(), options.limit)):
            yield files.item_of(found, i, options.kind, working_folder)

    return Inputs(total if options.limit is None else min(total, options.limit), pa.schema([]), rows)
