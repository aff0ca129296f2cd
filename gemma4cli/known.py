"""Inputs without those that another output has an answer to: what is new since yesterday, in an output of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4cli import inspection, keys
from gemma4cli.identity import content_key, id_key
from gemma4cli.inputs import Inputs
from gemma4cli.records import Item


def without_known(inputs: Inputs, output: str) -> Inputs:
    """The rows of the input whose id and content no row of an output has that is ok, numbered anew.

    Raises:
        UsageError: there is no such output.
    """
    live = inspection.keys_of(output)
    ok = ~(keys.column(live, "failed") | keys.column(live, "skipped"))
    known = frozenset(zip(keys.column(live, "id")[ok].tolist(), keys.column(live, "content")[ok].tolist(), strict=True))

    def rows() -> Iterator[Item]:
        row_index = 0
        for item in inputs:
            if (id_key(item.id), content_key(item)) not in known:
                yield replace(item, row_index=row_index)
                row_index += 1

    return replace(inputs, total=sum(1 for _ in rows()), _rows=rows, _since=None)
