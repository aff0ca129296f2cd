"""What is asked of the inputs, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import pyarrow as pa

from gemma4cli.records import Item, Kind


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How inputs are read.

    kinds: the kinds of media that the task can use; folders are searched for their extensions. Empty: rows without
        media.
    media_columns: columns of a manifest that name media, dotted into structs; empty takes the usual names.
    prompt_column: column with a prompt for each row.
    id_column: column with the rows' ids; None takes `id`, `custom_id` or `key` if there is one.
    limit: at most so many rows.
    kind: what every medium is to the task, whatever its column is called; None lets the input say. Columns called after
        it go before others.
    columns: those of a manifest that are carried to the output; None carries all.
    where: only rows that this expression is true of; see `where`.
    split, config_name, revision, streaming: of a data set; the last two and the name are of one on the hub.
    allow_private_hosts: manifests may be fetched from private addresses.
    """

    kinds: frozenset[Kind]
    media_columns: tuple[str, ...] = ()
    prompt_column: str | None = None
    id_column: str | None = None
    limit: int | None = None
    kind: Kind | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    split: str | None = None
    config_name: str | None = None
    revision: str | None = None
    streaming: bool = False
    allow_private_hosts: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """The rows of a job; iterating again reads them again.

    total: how many there are, as far as that is known beforehand.
    columns: types of the columns carried to the output, with the input's names; `huggingface` metadata if it had any.
    speaking: rows may bring what is to be asked of them, as texts among their media.
    tabular: rows have columns, whether or not any are carried.
    notes: what of the input is no row, for people.
    _since: the rows from a position on, where those before it can be passed over more cheaply than by reading them.
    """

    total: int | None
    columns: pa.Schema
    _rows: Callable[[], Iterator[Item]] = field(repr=False)
    speaking: bool = False
    tabular: bool = False
    notes: tuple[str, ...] = ()
    _since: Callable[[int], Iterator[Item]] | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[Item]:
        return self._rows()

    def changed(self, change: Callable[[Item], Item]) -> Inputs:
        """The same rows, each with something changed."""
        since = self._since
        return replace(
            self,
            _rows=lambda: map(change, self._rows()),
            _since=None if since is None else lambda first: map(change, since(first)),
        )

    def counted(self) -> int:
        """How many rows there are; reads them all where that is not known."""
        return self.total if self.total is not None else sum(1 for _ in self)

    def part(self, first: int, stop: int) -> Inputs:
        """The rows from position `first` to `stop`, without the latter; they keep their row_index."""

        def rows() -> Iterator[Item]:
            passed = islice(self._rows(), first, None) if self._since is None else self._since(first)
            return islice(passed, stop - first)

        return replace(self, total=stop - first, _rows=rows, _since=None)
