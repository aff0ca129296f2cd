"""Rows of a run that was not on Ray -> shards, so that a run on Ray goes on from there.

Rows are dealt out by their row_index, with their keys. Parts go where their rows go; finished data stays as it is until
the run's own takes its place, and a note beside it says that its rows have been dealt out.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gemma4cli import keys, ledger, parts, shards
from gemma4cli.cluster.work import Work, parts_folder
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.ledger import Ledger, Source

_NOTE = ".dealt.json"  # among the shards, which it goes with


def dealt(work: Work) -> bool:
    """Whether the finished data's rows are in shards already."""
    return (work.place.state / shards.FOLDER / _NOTE).exists()


def deal(work: Work, whole: Ledger) -> None:
    """Writes all rows of a ledger of the whole into their shards, the latest last.

    Raises:
        UsageError: rows stand where the input has none, or are lines of JSON.
        OSError, DamagedPartError: they cannot be written or read.
    """
    sources = [source for source in whole.sources if not (source.finished and dealt(work))]
    for source in sources:
        _refuse(work, source)
    mark = 0
    for source in sources:
        for number, table, own in _by_shard(work, source):
            place = work.place_of(number)
            folder = parts_folder(place)
            shards.note(place, work.shard(number))
            metadata = {ledger.IN_PART.decode(): keys.encoded(own, source.header)}
            parts.write_part(folder, work.part - 1, table, metadata, f"{mark:08x}")
            mark += 1
    if whole.finished:
        names = [source.path.name for source in sources if source.finished]
        parts.write_document(work.place.state / shards.FOLDER / _NOTE, {"files": names})
    for source in sources:
        if not source.finished:
            source.path.unlink()


def _refuse(work: Work, source: Source) -> None:
    shown = printable(str(work.place.path))
    if source.path.suffix != ".parquet":
        message = f"{shown} is one of lines, which a run on Ray cannot add to"
        raise UsageError(message, "Run without --on ray, or choose another output.")
    if any(span.last >= work.total for span in source.spans):
        message = f"{shown} holds rows that the input has no longer, or has elsewhere"
        raise UsageError(message, "Run without --on ray, which finds them again, or choose another output.")


def _by_shard(work: Work, source: Source) -> Iterator[tuple[int, pa.Table, pa.Table]]:
    """The rows of a file and their keys, a row group at a time, in order, each with its shard."""
    at, all_keys = 0, source.keys
    for group in range(pq.read_metadata(source.path).num_row_groups):
        table = parts.read_group(source.path, group)
        own = all_keys.slice(at, len(table))
        at += len(table)
        order = pc.sort_indices(table["row_index"])
        table, own = table.take(order), own.take(order)
        numbers = work.numbers(table["row_index"].to_numpy())
        for number in np.unique(numbers).tolist():
            start, stop = np.searchsorted(numbers, [number, number + 1])
            yield number, table.slice(start, stop - start), own.slice(start, stop - start)
