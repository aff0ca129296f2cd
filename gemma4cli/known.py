"""Inputs without those that another output has an answer to: what is new since yesterday, in an output of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from gemma4cli import inspection, keys
from gemma4cli.identity import content_key, id_key
from gemma4cli.inputs import Inputs
from gemma4cli.records import Item


def without_known(inputs: Inputs, outputs: Sequence[str]) -> Inputs:
    """The rows of the input whose id and content no row of these outputs has that is ok, numbered anew.

    Raises:
        UsageError: there is no such output.
    """
    known = frozenset(chain.from_iterable(map(_answered, outputs)))

    def rows() -> Iterator[Item]:
        row_index = 0
        for item in inputs:
            if (id_key(item.id), content_key(item)) not in known:
                yield replace(item, row_index=row_index)
                row_index += 1

    return replace(inputs, total=sum(1 for _ in rows()), _rows=rows, _since=None)


def _answered(output: str) -> Iterator[tuple[int, int]]:
    """Id and content of each row of an output that is ok, as keys."""
    live = inspection.keys_of(output)
    ok = ~(keys.column(live, "failed") | keys.column(live, "skipped"))
    return zip(keys.column(live, "id")[ok].tolist(), keys.column(live, "content")[ok].tolist(), strict=True)
