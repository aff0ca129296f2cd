"""Manifests -> Items: their records, read with the columns that were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from gemma4cli.errors import ParseError
from gemma4cli.escaping import printable
from gemma4cli.inputs import jsonl, parquet
from gemma4cli.inputs.columns import Choice, choose
from gemma4cli.inputs.options import InputOptions, Inputs
from gemma4cli.inputs.rows import Reading, failed_item, item_of
from gemma4cli.records import Item


def open_jsonl(paths: list[Path], options: InputOptions) -> Inputs:
    """Reads the files once for their columns' types; at most `limit` rows of them count.

    Raises:
        UsageError: a file is not lines of JSON, or a column is not there.
    """
    schema, as_json, counts = jsonl.describe(paths, options.limit)
    choice = _choose(schema, _name(paths), options, as_json)
    reading = Reading(choice, options.kind, as_json & frozenset(choice.carried.names), bool(options.kinds))

    def rows(first: int = 0) -> Iterator[Item]:
        row_index = 0
        for path, count in zip(paths, counts, strict=True):
            shown, folder = printable(str(path)), str(path.absolute().parent)
            passed = max(0, min(count, first - row_index))
            row_index += passed
            # Not more than were counted: the file may have grown, and the types are those of the rows that were seen.
            for line, record, _ in islice(jsonl.records(path, passed), count - passed):
                place = f"{shown} line {line}"
                if isinstance(record, ParseError):
                    yield failed_item(row_index, place, record)
                else:
                    yield item_of(record, row_index, place, folder, reading)
                row_index += 1

    return Inputs(sum(counts), choice.carried, rows, choice.content is not None, rows)


def open_parquet(paths: list[Path], options: InputOptions, name: str | None = None) -> Inputs:
    """Reads the files' footers: types and row counts. `name` is the folder they are parts of.

    Raises:
        UsageError: a file cannot be read, or a column is not there.
    """
    schema, counts = parquet.describe(paths)
    choice = _choose(schema, name or _name(paths), options, frozenset())
    reading = Reading(choice, options.kind, frozenset(), bool(options.kinds))
    total = sum(counts) if options.limit is None else min(sum(counts), options.limit)

    def rows(first: int = 0) -> Iterator[Item]:
        row_index = 0
        for path, count in zip(paths, counts, strict=True):
            shown, folder = printable(str(path)), str(path.absolute().parent)
            passed = max(0, min(count, first - row_index))
            row_index += passed
            for record in parquet.records(path, schema, passed):
                place = f"{shown} row {row_index}"
                if isinstance(record, ParseError):
                    yield failed_item(row_index, place, record)
                else:
                    yield item_of(record, row_index, place, folder, reading)
                row_index += 1

    def since(first: int) -> Iterator[Item]:
        return islice(rows(first), max(0, total - first))

    return Inputs(total, choice.carried, lambda: since(0), choice.content is not None, since)


def _choose(schema: pa.Schema, name: str, options: InputOptions, as_json: frozenset[str]) -> Choice:
    return choose(
        schema,
        name,
        kinds=options.kinds,
        kind=options.kind,
        media_columns=options.media_columns,
        id_column=options.id_column,
        prompt_column=options.prompt_column,
        as_json=as_json,
    )


def _name(paths: list[Path]) -> str:
    first = printable(str(paths[0]))
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"
