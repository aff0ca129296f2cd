"""Tables of rows, wherever they come from -> Items: their records, read with the columns that were chosen."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from gemma4cli.errors import JobError, ParseError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs.columns import Choice, choose
from gemma4cli.inputs.options import InputOptions, Inputs
from gemma4cli.inputs.rows import Reading, failed_item, item_of
from gemma4cli.inputs.where import Where
from gemma4cli.records import Item

_AT_ONCE = 64  # records that --where looks at together; each may carry its media


class Entry(NamedTuple):
    """A record where it stands.

    number: its place among all records of the source, from 0.  place: in words, such as "rows.jsonl line 3".
    record: its columns, or what is wrong with it.  folder: what relative paths in it are relative to.
    """

    number: int
    place: str
    record: dict[str, Any] | ParseError
    folder: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is read of a table: these columns, and no row that `where` is known not to take.

    A source need not heed `where`: whoever asked looks at all records that it gives, unless it says that it has.
    first: the number of the first record to give, where the source can pass over those before it.
    """

    columns: frozenset[str]
    where: Where | None = None
    first: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with columns.

    name: for messages.  as_json: columns that hold values of several types.  total: rows, where that is known.
    id_column: names the rows where no column is called as ids are.
    selects: its `read` gives the rows that `where` takes, and no others.  skips: it begins with the first wanted one.
    notes: what of the source is no row, for people.
    """

    name: str
    schema: pa.Schema
    total: int | None
    read: Callable[[Wanted], Iterator[Entry]] = field(repr=False)
    as_json: frozenset[str] = frozenset()
    id_column: str | None = None
    selects: bool = False
    skips: bool = False
    notes: tuple[str, ...] = ()


def open_table(table: Table, options: InputOptions) -> Inputs:
    """The rows of a table as the options want them.

    Rows are numbered by their place among those that --where takes; one without an id is called by its place among
    all, so that it stays the same row when the condition changes.

    Raises:
        UsageError: a column is not there, or the condition makes no sense.
    """
    choice = choose(
        table.schema,
        table.name,
        kinds=options.kinds,
        kind=options.kind,
        media_columns=options.media_columns,
        id_column=options.id_column,
        prompt_column=options.prompt_column,
        as_json=table.as_json,
    )
    if choice.id is None and table.id_column in table.schema.names:
        choice = replace(choice, id=table.id_column)
    if options.columns is not None:
        choice = _narrowed(choice, table, options.columns)
    reading = Reading(choice, options.kind, table.as_json & frozenset(choice.carried.names), bool(options.kinds))
    where = None if options.where is None else Where(options.where, table.schema, table.as_json)
    wanted = Wanted(_needed(choice) | (frozenset() if where is None else where.columns), where)

    def entries(wanted: Wanted) -> Iterator[Entry]:
        found = table.read(wanted)
        return found if wanted.where is None or table.selects else _selected(found, wanted.where)

    total = table.total
    if where is not None and total is not None:
        total = sum(1 for _ in entries(replace(wanted, columns=where.columns)))
    if options.limit is not None:
        total = options.limit if total is None else min(total, options.limit)
    most = None if table.total is None and options.limit is None else total

    def rows(first: int = 0) -> Iterator[Item]:
        left = None if most is None else max(0, most - first)
        for row_index, entry in enumerate(islice(entries(replace(wanted, first=first)), left), first):
            if isinstance(entry.record, ParseError):
                yield failed_item(row_index, entry.number, entry.place, entry.record)
            else:
                yield item_of(entry.record, row_index, entry.number, entry.place, entry.folder, reading)

    known = total if table.total is not None else None
    return Inputs(
        known,
        choice.carried,
        rows,
        choice.content is not None,
        True,
        table.notes,
        rows if table.skips and where is None else None,
    )


def _selected(entries: Iterator[Entry], where: Where) -> Iterator[Entry]:
    """The entries that a condition takes. Records that cannot be read are among them: nobody knows what they hold."""
    while held := list(islice(entries, _AT_ONCE)):
        records = [entry.record for entry in held if not isinstance(entry.record, ParseError)]
        try:
            kept = iter(where.keeps(records))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise JobError(f"--where cannot be told of rows from {held[0].place} on: {error}") from error
        yield from (entry for entry in held if isinstance(entry.record, ParseError) or next(kept))


def _narrowed(choice: Choice, table: Table, columns: tuple[str, ...]) -> Choice:
    """The choice with no more carried than these columns."""
    for name in columns:
        if name not in table.schema.names:
            near = difflib.get_close_matches(name, table.schema.names, n=1, cutoff=0.5)
            did = f"did you mean {printable(near[0])}? " if near else ""
            names = ", ".join(map(printable, table.schema.names[:40]))
            raise UsageError(
                f"--columns: {table.name} has no column {printable(name)}", f"{did}the columns are: {names}"
            )
    carried = pa.schema([each for each in choice.carried if each.name in columns], choice.carried.metadata)
    return replace(choice, carried=carried)


def _needed(choice: Choice) -> frozenset[str]:
    """The columns that rows are made of."""
    names = {column.steps[0] for column in choice.media} | set(choice.carried.names)
    names |= {name for name in (choice.id, choice.prompt) if name is not None}
    return frozenset(names if choice.content is None else {*names, choice.content.steps[0]})
