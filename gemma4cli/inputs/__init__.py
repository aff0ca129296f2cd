"""What the user named -> Items: folders, files, glob patterns, paths on stdin; manifests, tar shards, data sets."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO

import pyarrow as pa

from gemma4cli import storage
from gemma4cli.errors import FetchError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs import delimited, files, folders, hub, jsonl, parquet, remote, tars
from gemma4cli.inputs.manifests import Table, open_table
from gemma4cli.inputs.names import DELIMITED_EXTENSIONS, JSONL_EXTENSIONS, PARQUET_EXTENSIONS, extension, is_shard
from gemma4cli.inputs.opened import file_at
from gemma4cli.inputs.options import InputOptions, Inputs
from gemma4cli.media.fetch import path_of
from gemma4cli.records import Item, Kind

__all__ = ["InputOptions", "Inputs", "open_inputs"]


def open_inputs(inputs: Sequence[str], options: InputOptions, stdin: TextIO | BinaryIO | None = None) -> Inputs:
    """Finds out what the arguments are, and checks all that can be checked without opening media.

    Args:
        inputs: files, folders, glob patterns, URIs; or manifests, tar shards or a data set; or `-` for a list of paths.
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
        return _without_columns(_listed(_read(stdin or sys.stdin), options), options)
    arguments = list(chain.from_iterable(_expanded(text) for text in inputs))
    table = _table(arguments, options)
    if table is not None:
        return open_table(table, options)
    manifest = next((argument for argument in arguments if argument.format not in {"file", "folder"}), None)
    if manifest is not None:
        other = next((argument for argument in arguments if argument.format != manifest.format), manifest)
        message = f"{_WORDS[manifest.format]} {printable(manifest.path)} cannot be mixed with {printable(other.path)}"
        raise UsageError(message, "give manifests of one format, or files and folders")
    return _without_columns(_found(arguments, options), options)


class _Argument(NamedTuple):
    path: str
    format: str  # folder, file, jsonl, parquet, shard or data set
    walk: files.Walk | None = None  # of a folder
    version: str | None = None


_WORDS = {
    "jsonl": "the manifest",
    "csv": "the manifest",
    "parquet": "the manifest",
    "shard": "the shard",
    "data set": "the data set",
}


def _expanded(text: str) -> list[_Argument]:
    """What one text of the command means."""
    if text.startswith(hub.PREFIX):
        return [_Argument(text.removeprefix(hub.PREFIX), "data set")]
    if files.has_braces(text):
        return list(chain.from_iterable(_expanded(each) for each in files.braces(text)))
    if storage.is_remote(text):
        if remote.is_pattern(text):
            found = remote.expand(text)
            if not found:
                raise UsageError(f"nothing matches {storage.shown(text)}")
            return [_Argument(each.shown, _format(each.shown), version=each.version) for each in found]
        if remote.kind_of(text) == "folder":
            return [_Argument(text, "folder", remote.walk(text))]
        return [_Argument(text, _format(text))]
    if text[:5].lower() == "file:":
        path = _path(text)
        if Path(path).is_dir() or files.is_pattern(path) or _format(path) != "file":
            return _expanded(path)
    if files.is_uri(text):
        return [_Argument(text, _format(text.partition("?")[0]) if text[:4].lower() == "http" else "file")]
    scheme = files.unsupported_scheme(text)
    if scheme is not None:
        message = f"{printable(text)}: {scheme}:// cannot be read"
        raise UsageError(message, "copy it here, or give an http(s) address or a store's")
    if files.is_pattern(text):
        paths = files.expand(text)
        if not paths:
            raise UsageError(f"nothing matches {printable(text)}")
        return [_Argument(path, _format(path)) for path in paths]
    try:
        os.lstat(text)
        if Path(text).is_dir():
            return [_Argument(text, "folder", partial(files.walk, text))]
        return [_Argument(text, _format(text))]
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"no such file or folder: {printable(text) or repr(text)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {printable(text)}: {reason}") from error


def _path(uri: str) -> str:
    try:
        return path_of(uri)
    except FetchError as error:
        raise UsageError(str(error), "name a folder or a file by its path") from error


def _format(path: str) -> str:
    if is_shard(path):
        return "shard"
    suffix = extension(path)
    if suffix in DELIMITED_EXTENSIONS:
        return "csv"
    return "jsonl" if suffix in JSONL_EXTENSIONS else "parquet" if suffix in PARQUET_EXTENSIONS else "file"


def _table(arguments: list[_Argument], options: InputOptions) -> Table | None:
    """The arguments as one table, where that is what they are."""
    formats = {argument.format for argument in arguments}
    if len(formats) > 1:
        return None
    (format_,) = formats
    first = arguments[0].path
    if format_ == "data set":
        if len(arguments) > 1:
            raise UsageError("one data set at a time", "run the command for each of them")
        return hub.open_named(first, options)
    if format_ == "folder":
        return _folder(arguments[0], options) if len(arguments) == 1 else None
    if format_ == "file":
        return None
    _refuse_flags_of_data_sets(options)
    paths = [argument.path for argument in arguments]
    return _of_format(format_, paths, options)


def _folder(argument: _Argument, options: InputOptions) -> Table | None:
    """A folder as a table, where it is a data set rather than a heap of media."""
    folder, walk = argument.path, argument.walk
    assert walk is not None
    if not storage.is_remote(folder) and hub.is_saved(folder):
        return hub.open_saved(folder, options)
    lists = folders.of_split(found, options.split, folder) if (found := folders.listing(walk)) else []
    table = folders.open_listing(folder, walk, lists, options) if lists else None
    if table is not None:
        return table
    parts = folders.parts(walk)
    if not parts:
        return None
    paths = [each.shown for each in folders.of_split(parts, options.split, folder)]
    return _of_format(_format(paths[0]), paths, options, folder)


def _of_format(format_: str, paths: list[str], options: InputOptions, folder: str | None = None) -> Table:
    at = partial(file_at, allow_private_hosts=options.allow_private_hosts)
    if format_ == "jsonl":
        return jsonl.open_lines([at(path, whole=True) for path in paths], None if options.where else options.limit)
    if format_ == "csv":
        return delimited.open_delimited(
            [at(path, whole=True) for path in paths], None if options.where else options.limit
        )
    sources = [at(path) for path in paths]
    if format_ == "shard":
        return tars.open_tars(sources, options.kinds, options.media_columns)
    return parquet.open_parquet(sources, None if folder is None else printable(folder), folder)


def _refuse_flags_of_data_sets(options: InputOptions) -> None:
    for flag, given in (("--split", options.split), ("--name", options.config_name), ("--revision", options.revision),
                        ("--streaming", options.streaming)):  # fmt: skip
        if given:
            raise UsageError(
                f"{flag} is about data sets, and the input is none", "leave it out, or give --dataset NAME"
            )


def _without_columns(inputs: Inputs, options: InputOptions) -> Inputs:
    """Refuses flags about columns where there are none."""
    _refuse_flags_of_data_sets(options)
    for flag, given in (("--where", options.where), ("--columns", options.columns)):
        if given:
            raise UsageError(f"{flag} is about columns of a manifest, and the inputs are files", "leave it out")
    return inputs


def _found(arguments: list[_Argument], options: InputOptions) -> Inputs:
    total = 0
    for argument in arguments:
        if argument.format != "folder":
            total += 1
            continue
        assert argument.walk is not None
        seen = files.scan(
            argument.path, argument.walk, options.kinds, None if options.limit is None else max(options.limit, 1)
        )
        if not seen.taken:
            raise _nothing_under(argument.path, seen, options.kinds)
        total += seen.taken
    alone = len(arguments) == 1

    def discover() -> Iterator[files.Found]:
        for argument in arguments:
            if argument.walk is None:
                yield files.Found(argument.path, argument.path, version=argument.version)
                continue
            for found in files.media_below(argument.walk, options.kinds):
                # One folder's ids are relative to it; those of several are told apart by the folder.
                yield found if alone else replace(found, name=found.shown)

    return _rows(discover, total, options)


def _nothing_under(folder: str, seen: files.Scan, kinds: frozenset[Kind]) -> UsageError:
    words = {Kind.IMAGE: "images", Kind.AUDIO: "audio files", Kind.VIDEO: "videos"}
    wanted = " or ".join(words[kind] for kind in Kind if kind in kinds) or "media"
    shown = storage.shown(folder).rstrip("/") + "/"
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
