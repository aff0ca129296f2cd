"""What is left of each shard, and the rows of it: the first stage."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from gemma4cli import ledger, parts, pending, plan, reading, shards
from gemma4cli.cluster.work import Work, parts_folder
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.identity import Key, content_key, id_key
from gemma4cli.inputs import Inputs
from gemma4cli.ledger import Ledger
from gemma4cli.records import Item, Probe

BLOCK_ROWS = 32  # that travel together, as long as they are small
READ_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class Left:
    """What there is to do in a shard, and what stays. error: message and hint, where the run must not go on."""

    number: int
    rows: int
    ok: int = 0
    failed: int = 0
    finished: bool = False
    error: tuple[str, str] | None = None


def survey(work: Work, inputs: Inputs, number: int) -> Left:
    """Compares a shard's rows with what is committed of them. Reads them where anything is."""
    work.arrive()
    shard, place = work.shard(number), work.place_of(number)
    found = _committed(work, number)
    live, _ = found.live()
    if not len(live):
        return Left(number, shard.rows)
    shown = f"{printable(str(work.place.path))}, shard {number}/{work.of}"
    try:
        pending.refuse_settings(found.fingerprint, work.fingerprint, work.resume, shown)
        ids, contents = pending.read_keys(inputs.part(shard.first, shard.stop))
        known = pending.plan(live, ids, contents, work.resume, shard.first)

        def id_of(row_index: int) -> str:
            with contextlib.suppress(parts.DamagedPartError, KeyError):
                return str(reading.records(found.sources, [row_index], ["id"])[row_index]["id"])
            return f"row {row_index}"

        pending.refuse(known, work.resume, shown, id_of)
        if len(known.vanished) or np.any(known.row_index >= shard.stop):
            raise UsageError(
                f"{shown}: rows of the input have gone or moved, which --new-only does not follow on a cluster",
                "Run once without --on ray, or start again with --overwrite.",
            )
    except UsageError as error:
        return Left(number, 0, error=(str(error), error.hint))
    left = int(np.count_nonzero(known.row_index >= 0))
    stays = ledger.counts(pending.stay(known, live))
    whole = found.finished and not found.added and place.state.is_dir()
    return Left(number, left, stays["ok"], stays["failed"], whole and not left)


def rows(batch: dict[str, Any], work: Work, reference: list[Any]) -> Iterator[dict[str, Any]]:
    """The rows of shards that are to do, with their keys, like ones together as far as no file must be read for that.

    The same rows whenever it is asked in a run: what the run itself has committed does not count, for Ray may ask again
    for what was lost.

    reference: of the Inputs in Ray's object store, in a list.
    """
    import ray

    work.arrive()
    inputs: Inputs = ray.get(reference[0])
    planner = plan.Planner(work.config)

    def stated(items: list[Item]) -> list[tuple[Probe, ...]]:
        return [planner.known(item) or tuple(Probe() for _ in item.media) for item in items]

    for number in batch["number"].tolist():
        shard, place = work.shard(number), work.place_of(number)
        parts_folder(place)
        shards.note(place, shard)
        known: dict[int, Key] = {}
        arranged = plan.arranged(_left(work, inputs, number, known), planner, work.config.order, shard.rows, stated)
        found = (item for window in arranged for item in window)
        while held := list(islice(found, READ_AT_ONCE)):
            yield {
                "row_index": np.array([item.row_index for item in held]),
                "item": [pickle.dumps((item, known.pop(item.row_index)), 5) for item in held],
            }


def _left(work: Work, inputs: Inputs, number: int, known: dict[int, Key]) -> Iterator[Item]:
    live, _ = _committed(work, number).live()
    shard = work.shard(number)
    items = inputs.part(shard.first, shard.stop)
    if not len(live):
        for item in items:
            known[item.row_index] = Key(id_key(item.id), content_key(item))
            yield item
        return
    ids, contents = pending.read_keys(items)
    left = pending.plan(live, ids, contents, work.resume, shard.first)
    yield from pending.items(left, items, lambda item, key: known.__setitem__(item.row_index, key))


def _committed(work: Work, number: int) -> Ledger:
    found = ledger.read_whole(work.place_of(number), repair=False)
    found.sources = [each for each in found.sources if each.finished or ledger.number_of(each.path.name) < work.part]
    return found
