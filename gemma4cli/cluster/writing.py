"""The last stage: rows -> parts in their shards; and a shard's parts -> its data, when all of them are there."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gemma4cli import assembly, ledger
from gemma4cli.cluster.work import Work, parts_folder
from gemma4cli.commits import Columns, commit
from gemma4cli.identity import Key
from gemma4cli.records import Row
from gemma4cli.schema import carried_names
from gemma4cli.stats import Stats


def write(batch: pa.Table, work: Work) -> dict[str, Any]:
    """Commits rows, a part for each shard among them, and returns a tally of them, and since when an engine was ready.

    A part is called after the rows in it: one that is written again takes its own place. Where Ray puts rows together
    in another way the second time, the ledger takes each of them once.
    """
    work.arrive()
    stats = Stats(None)
    columns = Columns(work.schema, carried_names(work.columns, work.answers), work.answers)
    index = batch["row_index"].to_numpy()
    numbers = work.numbers(index)
    for number in np.unique(numbers).tolist():
        here = np.flatnonzero(numbers == number)
        lines: list[tuple[Row, Key, str | None]] = [pickle.loads(batch["row"][int(i)].as_buffer()) for i in here]
        mark = blake2b(np.sort(index[here]).tobytes(), digest_size=8).hexdigest()
        commit(parts_folder(work.place_of(number)), work.part, lines, columns, work.fingerprint, mark)
        for row, _, _ in lines:
            stats.count(row)
    return {"tally": [pickle.dumps(stats.tally(), 5)], "ready": [pc.min(batch["ready"]).as_py()]}


def finish(work: Work, number: int) -> None:
    """Puts the rows of a shard in order.

    Raises:
        JobError, OSError: it cannot be written, or a part cannot be read.
    """
    work.arrive()
    place = work.place_of(number)
    found = ledger.read_whole(place, repair=True)
    assembly.assemble(place, found, work.schema, work.fingerprint)
