"""Shards -> the output that one run would have made. Rows are not read where names will do.

Each shard's rows are a run of their own, in order, so that their files follow one another. What is held in memory is
the keys of one shard; of all of them where the output is a single file. A crash leaves the shards as they are or the
output whole, and the same command does what is missing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gemma4cli import assembly, card, identity, keys, ledger, outputs, parts, shards, storage
from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.ledger import Source
from gemma4cli.mirror import Mirror
from gemma4cli.outputs import Format, Output
from gemma4cli.shards import Shard

_SHOWN = 8
_SUMS = ("rows", "finish_reasons", "tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Merged:
    """What was put together; no shards where that had been done before."""

    shards: int
    ok: int
    failed: int
    skipped: int


def merge(output: str) -> Merged:
    """Puts the shards of an output together, here or elsewhere. Raises as `merge_at` does."""
    if not storage.is_remote(output):
        return merge_at(outputs.locate(output), output)
    mirror = Mirror(output)
    try:
        mirror.claim()
        with mirror.told():
            merged = merge_at(mirror.place, output)
        with contextlib.suppress(OSError):  # the rows are what counts
            card.write(mirror.place)
        mirror.send(last=True)
        return merged
    finally:
        mirror.close()


def merge_at(place: Output, output: str) -> Merged:
    """Checks that all shards of an output are there and done, and puts them together in its place.

    Raises:
        UsageError: there are no shards, one is being written, or they do not belong together.
        JobError: shards or rows are missing, with their names; or the output cannot be written.
    """
    shown = printable(str(place.path))
    if output == "-" or not place.state.is_dir():
        raise UsageError(f"no output of gemma4: {shown}", "name what -o named, as it was for --shard")
    lock = outputs.claim(place, overwrite=False)
    try:
        return put_together(place) if shards.begun(place) else _merged_before(place, shown)
    finally:
        outputs.release(lock)


def put_together(place: Output) -> Merged:
    """The same of an output whose lock is held. Raises as `merge` does."""
    shown = printable(str(place.path))
    try:
        there = shards.begun(place)
        _refuse_gaps(there, place, shown)
        sources, counts = _whole(there, place, shown)
        _assemble(place, there, sources)
        shards.clear(place)
        return Merged(len(there), counts["ok"], counts["failed"], counts["skipped"])
    except parts.DamagedPartError as error:
        message = f"{printable(str(error.path))} is damaged ({printable(str(error))})"
        raise JobError(message, "move it away, run its shard again, and merge then") from error
    except (OSError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "the shards are kept; put that right, and merge again"
        raise JobError(f"cannot write to {shown}: {reason}", hint) from error


def _merged_before(place: Output, shown: str) -> Merged:
    found = ledger.read(place, repair=False)
    if not found.finished:
        raise UsageError(f"{shown} has no shards", "they are made by --shard I/N, with the same -o")
    counts = ledger.counts(found.live()[0])
    return Merged(0, counts["ok"], counts["failed"], counts["skipped"])


def _refuse_gaps(there: Sequence[Shard], place: Output, shown: str) -> None:
    """Raises JobError where shards were never begun, UsageError where they are of several divisions."""
    if len({(shard.of, shard.total) for shard in there}) > 1:
        kinds = sorted({f"{shard.of} shards of {shard.total:,} rows" for shard in there})
        hint = f"delete those that do not belong there, in {printable(str(place.state / shards.FOLDER))}"
        raise UsageError(f"{shown} holds shards of several divisions: {'; '.join(kinds)}", hint)
    have = {shard.number for shard in there}
    missing = [
        shard
        for number in range(there[0].of)
        if number not in have and (shard := shards.cut(number, there[0].of, there[0].total)).rows
    ]
    if missing:
        count = "1 shard was" if len(missing) == 1 else f"{len(missing):,} shards were"
        raise JobError(
            f"{shown}: {count} not begun: {shards.words(missing)}", "run them with --shard, then merge again"
        )


def _whole(there: Sequence[Shard], place: Output, shown: str) -> tuple[list[list[Source]], Counter[str]]:
    """The files of each shard, without their keys, and how many rows they have.

    Raises:
        JobError: a shard is not done; it is named with the rows that it lacks.
        UsageError: shards were made with different settings.
    """
    files, counts = list[list[Source]](), Counter[str]()
    undone = list[str]()
    made: tuple[Shard, Mapping[str, Any]] | None = None
    for shard in there:
        found = ledger.read(shards.place_of(place, shard.name), repair=False)
        live, _ = found.live()
        index = keys.column(live, "row_index")
        lacking = np.setdiff1d(np.arange(shard.first, shard.stop), index)
        if len(lacking) or not found.finished or found.added:
            rows = f"{len(lacking):,} of {shard.rows:,} rows are missing, from row_index {lacking[0]} on"
            undone.append(f"{shards.words([shard])} ({rows if len(lacking) else 'it has not come to its end'})")
            continue
        if len(index) != shard.rows:
            strange = int(np.setdiff1d(index, np.arange(shard.first, shard.stop))[0])
            message = f"shard {shards.words([shard])} of {shown} holds a row that is not its own, row_index {strange}"
            raise JobError(
                message, f"delete {printable(str(shards.place_of(place, shard.name).path))} and run it again"
            )
        fingerprint = found.fingerprint or {}
        if made is None:
            made = shard, fingerprint
        elif differing := identity.differences(made[1], fingerprint):
            pair = f"{shards.words([made[0]])} and {shards.words([shard])}"
            message = f"{shown}: shards {pair} were made with different settings: {'; '.join(differing[:4])}"
            raise UsageError(message, "run one of them again, with the settings of the others and --overwrite")
        counts += ledger.counts(live)
        files.append(found.sources)
    if undone:
        more = f"; and {len(undone) - _SHOWN:,} more" if len(undone) > _SHOWN else ""
        what = "1 shard is" if len(undone) == 1 else f"{len(undone):,} shards are"
        message = f"{shown}: {what} not done: {'; '.join(undone[:_SHOWN])}{more}"
        raise JobError(message, "run their commands again, which go on where they stopped, then merge again")
    return files, counts


def _assemble(place: Output, there: Sequence[Shard], files: Sequence[Sequence[Source]]) -> None:
    ordered = place.state / "sorted"
    before = list(place.state.glob("keys-*.parquet"))
    paths = [source.path for shard in files for source in shard]
    schema = pq.read_schema(paths[0])
    alike = all(pq.read_schema(path).equals(schema, check_metadata=True) for path in paths[1:])
    if not alike:
        schema = assembly.united(paths, schema)
    groups = parts.row_groups(parts.in_order(paths, schema))
    if place.format is Format.FOLDER:
        shutil.rmtree(ordered, ignore_errors=True)
        try:
            _fill(ordered, place, there, files, None if alike else groups, schema)
        except (OSError, pa.ArrowException):
            shutil.rmtree(ordered, ignore_errors=True)
            raise
        parts.swap(ordered, place.parts)
        parts.clear(ordered, place.parts)
    else:
        with parts.whole_file(place.path, ordered) as temporary:
            if place.format is Format.PARQUET:
                rows = parts.write_parquet(temporary, groups, schema)
            else:
                rows = assembly.write_new_lines(temporary, groups)
            _write_keys(place, there, [keys.seal(temporary, rows, place.path.name)])
    for path in before:
        path.unlink()
    summary = _summary(place, there)
    for name, document in (("summary.json", summary), ("job.json", {"total": there[0].total})):
        parts.write_document(place.state / name, document, indent=2)


def _fill(
    folder: Path,
    place: Output,
    there: Sequence[Shard],
    files: Sequence[Sequence[Source]],
    groups: Iterator[pa.Table] | None,
    schema: pa.Schema,
) -> None:
    """A folder with the rows of all shards, by other names for their files where no rows have to be written anew."""
    if groups is not None:
        written = parts.write_folder(folder, groups, schema)
        _write_keys(place, there, [keys.seal(path, rows) for path, rows in written])
        return
    folder.mkdir()
    number = 0
    for shard, sources in zip(there, files, strict=True):
        seals = []
        for source in sources:
            rows = pq.read_metadata(source.path).num_rows
            if not rows and (
                number or shard is not there[-1]
            ):  # of an empty shard: its columns are those of the others
                continue
            path = folder / parts.part_name(number)
            _link(source.path, path)
            seals.append(keys.seal(path, rows))
            number += 1
        if seals:
            _write_keys(place, [shard], seals)
    parts.sync(folder)


def _link(source: Path, path: Path) -> None:
    try:
        os.link(source, path)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, path)
        parts.sync(path)


def _write_keys(place: Output, there: Sequence[Shard], seals: Sequence[keys.Seal]) -> None:
    tables, header = list[pa.Table](), dict[str, Any]()
    for shard in there:
        found = ledger.read(shards.place_of(place, shard.name), repair=False)
        tables.append(found.live()[0])
        fingerprint = found.fingerprint or {}
        header = {"fingerprint": fingerprint, "earlier": found.earlier(fingerprint)}
    path = place.state / f"keys-{secrets.token_hex(8)}.parquet"
    with parts.whole_file(path) as temporary:
        keys.write(temporary, parts.row_groups(tables), {**header, "files": [list(each) for each in seals]})


def _summary(place: Output, there: Sequence[Shard]) -> dict[str, Any]:
    """The shards' summaries as one: sums of what can be summed, and how each of them ran."""
    found = {shard.name: outputs.document(shards.place_of(place, shard.name), "summary.json") for shard in there}
    sums: dict[str, Counter[str]] = {name: Counter() for name in _SUMS}
    failures: Counter[tuple[str, str]] = Counter()
    for summary in found.values():
        for name, total in sums.items():
            total.update(summary.get(name, {}))
        for failure in summary.get("failures", []):
            failures[failure["stage"], failure["type"]] += failure["rows"]
    last = next(iter(found.values()), {})
    return {
        **{name: dict(total) for name, total in sums.items()},
        "failures": [{"stage": stage, "type": type, "rows": rows} for (stage, type), rows in failures.most_common()],
        "shards": {
            name: {key: summary.get(key) for key in ("rows", "seconds", "rates", "started")}
            for name, summary in found.items()
        },
        **{key: last[key] for key in ("versions", "engine", "config") if key in last},
    }
