"""What a run would still do, found without touching its output: for plans."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import pyarrow as pa

from gemma4cli import inspection, ledger, mirror, outputs, parts, pending, reading, shards, storage
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs import Inputs
from gemma4cli.ledger import Ledger
from gemma4cli.outputs import Output
from gemma4cli.pending import Resume
from gemma4cli.records import Item
from gemma4cli.shards import Shard


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rows to do, and how many of earlier runs stay as they are."""

    items: Iterator[Item]
    kept_ok: int = 0
    kept_failed: int = 0


def remaining(
    output: str,
    inputs: Inputs,
    fingerprint: Mapping[str, Any],
    resume: Resume,
    overwrite: bool,
    shard: Shard | None = None,
) -> Remaining:
    """Compares the input, or a shard's part of it, with what an output holds, as a run would.

    Raises:
        UsageError: the run would refuse to go on from there.
        JobError: the output cannot be read.
    """
    if output == "-":
        return Remaining(iter(inputs))
    place = mirror.likeness(output) if storage.is_remote(output) else outputs.locate(output)
    shown = printable(str(place.path))
    try:
        outputs.refuse_foreign(place)
        if shard is not None:
            place = shards.place_of(place, shard.name)
        if overwrite or not place.state.is_dir():
            return Remaining(iter(inputs))
        found, live = inspection.unlocked(lambda: _committed(place))
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror or error}", "is it yours to read?") from error
    if not len(live):
        return Remaining(iter(inputs))
    pending.refuse_settings(found.fingerprint, fingerprint, resume, shown)

    def id_of(row_index: int) -> str:
        with contextlib.suppress(parts.DamagedPartError, KeyError):
            return str(reading.records(found.sources, [row_index], ["id"])[row_index]["id"])
        return f"row {row_index}"

    ids, contents = pending.read_keys(inputs)
    plan = pending.plan(live, ids, contents, resume, 0 if shard is None else shard.first)
    pending.refuse(plan, resume, shown, id_of)
    to_do = plan.row_index >= 0
    stays = ledger.counts(pending.stay(plan, live))
    return Remaining(compress(inputs, to_do.tolist()), stays["ok"], stays["failed"])


def _committed(place: Output) -> tuple[Ledger, pa.Table]:
    found = ledger.read(place, repair=False)
    return found, found.live()[0]
