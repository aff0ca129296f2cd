"""Folders that are data sets: Parquet parts, tar shards, media with a list of them, what `save_to_disk` left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gemma4cli import storage
from gemma4cli.errors import ParseError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs import delimited, jsonl, parquet
from gemma4cli.inputs.files import Found, Walk, media_below
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.names import EXTENSIONS, JSONL_EXTENSIONS, PARQUET_EXTENSIONS, extension, is_shard
from gemma4cli.inputs.opened import file_at
from gemma4cli.inputs.options import InputOptions

_FILE_NAME = "file_name"
_LISTS = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_DATA = frozenset[str]().union(PARQUET_EXTENSIONS, JSONL_EXTENSIONS - {".json"}, *EXTENSIONS.values())


def listing(walk: Walk) -> list[Found]:
    """The files that say what is in a folder of media, as `datasets` has them: at its top, or one for each split."""
    return [each for each in walk(lambda name: name in _LISTS) if each.unreadable is None]


def open_listing(folder: str, walk: Walk, lists: Sequence[Found], options: InputOptions) -> Table | None:
    """The rows of such lists, each with a file of the folder; None where they do not name any.

    Rows are called by their files' paths in the folder, as they would be without a list.
    """
    formats = {extension(each.name) for each in lists}
    if len(formats) > 1:
        return None
    if formats == {".parquet"}:
        table = parquet.open_parquet([file_at(each.shown) for each in lists], printable(folder))
    else:
        open_lines = delimited.open_delimited if formats == {".csv"} else jsonl.open_lines
        table = open_lines([file_at(each.shown, whole=True) for each in lists], None)
    if _FILE_NAME not in table.schema.names:
        return None
    root = folder if storage.is_remote(folder) else str(Path(folder).absolute())

    def read(wanted: Wanted) -> Iterator[Entry]:
        for entry in table.read(wanted):
            below = entry.folder.removeprefix(root).strip("/")
            name = None if isinstance(entry.record, ParseError) else entry.record.get(_FILE_NAME)
            if below and isinstance(name, str) and not isinstance(entry.record, ParseError):
                entry = entry._replace(record={**entry.record, _FILE_NAME: f"{below}/{name}"})
            yield entry._replace(folder=root)

    notes: tuple[str, ...] = ()
    files = sum(1 for _ in media_below(walk, options.kinds)) if options.split is None else 0
    if files > (table.total or 0):
        named = printable(lists[0].shown) + (" and its like" if len(lists) > 1 else "")
        notes = (
            f"{named} lists {table.total:,} of the {files:,} files in {printable(folder)}; the others are no rows",
        )
    return replace(table, read=read, name=printable(folder), id_column=_FILE_NAME, notes=notes)


def parts(walk: Walk) -> list[Found]:
    """The Parquet files, or the tar shards, of a folder that holds no other data; empty if it is one of others."""
    found: list[Found] = []
    for each in walk(lambda name: extension(name) in _DATA or is_shard(name)):
        if each.unreadable is not None:
            return []
        found.append(each)
        of_parquet = extension(each.name) in PARQUET_EXTENSIONS
        if not (of_parquet or is_shard(each.name)) or of_parquet is not (
            extension(found[0].name) in PARQUET_EXTENSIONS
        ):
            return []
    return found


def of_split(found: Sequence[Found], split: str | None, folder: str) -> list[Found]:
    """Those of a split: by `data_files` in the README's configuration, else by their names, as the hub does.

    A file is of the split whose name is one of the words in its own, or in its folders' (`data/train-00000.parquet`).

    Raises:
        UsageError: none is.
    """
    if split is None:
        return list(found)
    patterns = _configured(folder).get(split)
    if patterns is not None:
        chosen = [each for each in found if any(_matches(each.name, pattern) for pattern in patterns)]
    else:
        word = re.compile(rf"(?:^|[^0-9a-zA-Z]){re.escape(split)}(?:[^0-9a-zA-Z]|$)")
        chosen = [each for each in found if word.search(each.name)]
    if not chosen:
        names = ", ".join(printable(each.name) for each in found[:5])
        raise UsageError(f"{printable(folder)} has no split {printable(split)}", f"its files are: {names}")
    return chosen


def _configured(folder: str) -> dict[str, list[str]]:
    """What the head of a README says of splits and their files; empty where it says nothing."""
    import yaml

    try:
        text = (Path(folder) / "README.md").read_text(encoding="utf-8")
        head = text.split("---\n", 2)[1] if text.startswith("---\n") else ""
        configs = (yaml.safe_load(head) or {}).get("configs") or []
        files = configs[0].get("data_files") or []
        files = [{"split": "train", "path": files}] if isinstance(files, str) else files
        return {each["split"]: [each["path"]] if isinstance(each["path"], str) else each["path"] for each in files}
    except (OSError, ValueError, yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError):
        return {}


def _matches(name: str, pattern: str) -> bool:
    """Whether a glob takes a name; `**` crosses folders."""
    parts = (re.escape(part).replace(r"\*", "[^/]*").replace(r"\?", "[^/]") for part in pattern.split("**"))
    return re.fullmatch(".*".join(parts), name) is not None
