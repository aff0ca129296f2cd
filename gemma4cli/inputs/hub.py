"""Data sets of the `datasets` library -> records: by name from the hub, or as `save_to_disk` left them.

Media columns come as they are stored, as bytes or a path: decoding them is our own business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import first_line, printable
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.options import InputOptions
from gemma4cli.inputs.plain import plain, values_of

PREFIX = "hf-dataset:"
_SAVED = ("dataset_info.json", "state.json")
_SAVED_SPLITS = "dataset_dict.json"
_BATCH_ROWS = 32  # each may carry its media


def is_saved(folder: str) -> bool:
    """Whether `save_to_disk` made a folder."""
    here = Path(folder)
    return (here / _SAVED_SPLITS).is_file() or all((here / name).is_file() for name in _SAVED)


def open_saved(folder: str, options: InputOptions) -> Table:
    """A folder that `save_to_disk` made. Raises UsageError."""
    shown = printable(folder)
    datasets = _library()
    _refuse_hub_flags(options)
    data = _loaded(shown, lambda: datasets.load_from_disk(folder), "was it saved in whole? save it again")
    if isinstance(data, datasets.DatasetDict):
        data = data[_split(shown, list(data), options.split)]
    elif options.split is not None:
        raise UsageError(f"{shown} has no splits", "leave out --split")
    return _table(data, shown, str(Path(folder).absolute()))


def open_named(name: str, options: InputOptions) -> Table:
    """A data set by the name that it has on the hub, or by its folder. Raises UsageError."""
    shown = printable(name)
    datasets = _library()
    where = (name, options.config_name)
    split = options.split
    if split is None:
        names = _loaded(shown, lambda: datasets.get_dataset_split_names(*where, revision=options.revision))
        split = _split(shown, list(names), None)
    load = lambda: datasets.load_dataset(  # noqa: E731
        *where, split=split, revision=options.revision, streaming=options.streaming
    )
    return _table(_loaded(shown, load), f"{shown} ({printable(split)})", os.getcwd())  # noqa: PTH109


def _library() -> Any:
    import datasets

    if sys.stderr is None or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    return datasets


_ON_HUB = "--split, --name and --revision say which part of it; HF_TOKEN opens what is private"


def _loaded(shown: str, load: Callable[[], Any], hint: str = _ON_HUB) -> Any:
    try:
        return load()
    except Exception as error:  # of its own, of the hub's client, and of whatever reads the files
        # What `datasets` saves of no rows it cannot load.
        reason = "it holds no rows" if isinstance(error, IndexError) else first_line(error, 300) or type(error).__name__
        raise UsageError(f"cannot load the data set {shown}: {reason}", hint) from error


def _refuse_hub_flags(options: InputOptions) -> None:
    for flag, given in (("--name", options.config_name), ("--revision", options.revision),
                        ("--streaming", options.streaming)):  # fmt: skip
        if given:
            raise UsageError(f"{flag} is about data sets on the hub", "name one with --dataset, or leave it out")


def _split(shown: str, names: list[str], wanted: str | None) -> str:
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted in names and wanted is not None:
        return wanted
    said = f"{shown} has several splits" if wanted is None else f"{shown} has no split {printable(wanted)}"
    raise UsageError(said, f"name one with --split: {', '.join(map(printable, names))}")


def _table(data: Any, shown: str, folder: str) -> Table:
    """A Dataset or IterableDataset, read as Arrow: so nothing is decoded."""
    total = len(data) if hasattr(data, "__len__") else None
    if data.features is None:
        data = _loaded(shown, data._resolve_features)
    described: pa.Schema = data.features.arrow_schema
    schema = pa.schema([field.with_type(plain(field.type)) for field in described], described.metadata)

    def read(wanted: Wanted) -> Iterator[Entry]:
        names = [name for name in schema.names if name in wanted.columns]
        chosen = data.select_columns(names or schema.names[:1]).with_format("arrow")
        number = 0
        try:
            for table in chosen.iter(batch_size=_BATCH_ROWS):
                columns = [values_of(table.column(name)) for name in table.column_names]
                for row in zip(*columns, strict=True):
                    record = dict(zip(table.column_names, row, strict=True))
                    yield Entry(number, f"{shown} row {number}", record, folder)
                    number += 1
        except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
            reason = first_line(error, 300)
            raise JobError(
                f"cannot read {shown} beyond row {number}: {reason}", "run the same command again"
            ) from error

    return Table(shown, schema, total, read)
