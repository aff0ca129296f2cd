"""What an output holds, whether its job is running, was interrupted or is done: rows, failures, tokens, slow rows."""

from __future__ import annotations

import heapq
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gemma4cli import ledger, mirror, outputs, reading, shards, storage
from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.ledger import Ledger
from gemma4cli.outputs import Format, Output
from gemma4cli.parts import DamagedPartError
from gemma4cli.shards import Shard

T = TypeVar("T")
TOKENS = ("prompt", "image", "audio", "video", "output")
TIMES = ("decode", "render", "queue", "generate")
SLOWEST = 5
_ATTEMPTS = 3
_MEDIA = ("image", "audio", "video", "path")
_COLUMNS = (
    "row_index", "id", "status", "error_stage", "error_type", "error_message", "finish_reason", "bucket", "attempts",
    *(f"{name}_tokens" for name in TOKENS), *(f"{name}_ms" for name in TIMES),
)  # fmt: skip


@dataclass(slots=True)
class FailureGroup:
    """Failed rows of one stage and type, with one of them as an example."""

    stage: str
    type: str
    rows: int
    id: str
    message: str


@dataclass(slots=True)
class Report:
    """What `gemma4 inspect` tells; `as_dict` is its JSON.

    state: running, interrupted or finished.  owner: the process that is at it.  left: rows still to do, if known.
    mean_ms: over the rows that have the figure.  last_run: rates of the last run that came to its end.
    made_with, earlier: the settings of the latest rows, and those of others that were kept.
    shards: of an output in shards, how many there will be, and the names of those that are done, running, interrupted
        or not begun; empty for others.
    """

    output: str
    state: str
    owner: str
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    left: int | None = None
    failures: list[FailureGroup] = field(default_factory=list)
    finish_reasons: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    mean_ms: dict[str, float] = field(default_factory=dict)
    last_run: dict[str, float] = field(default_factory=dict)
    slowest: list[dict[str, Any]] = field(default_factory=list)
    made_with: Mapping[str, Any] = field(default_factory=dict)
    earlier: list[Mapping[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    shards: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def inspect(output: str) -> Report:
    """Reads an output, without touching it.

    Raises:
        UsageError: there is no output of ours.
        JobError: it cannot be read.
    """
    place = place_of(output)
    return replace(unlocked(lambda: report_at(place)), output=output)


def unlocked(look: Callable[[], T]) -> T:
    """What a look at an output says, without its lock.

    Raises:
        JobError: a file cannot be read.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return look()
        except DamagedPartError as error:
            # The job may have put its parts together just now, so that what was there a moment ago is not.
            if attempt + 1 == _ATTEMPTS:
                message = f"{printable(str(error.path))} cannot be read: {printable(str(error))}"
                raise JobError(message, "run its command again: damaged parts are set aside and done again") from error
    raise AssertionError


def failed_inputs(output: str) -> tuple[Iterator[dict[str, Any]], int]:
    """The inputs of failed rows as records of a manifest, and how many have none that could be given.

    Those are rows whose manifest line could not be read, and rows whose bytes were in the manifest.

    Raises:
        UsageError: there is no output of ours.
        JobError: it cannot be read.
    """
    live = keys_of(output)
    failed = live.filter(live["failed"])["input"]
    given = [text for text in failed.drop_null().to_pylist() if _has_media(json.loads(text))]
    # A manifest's column is of one kind: if one row has several images, all rows list theirs.
    plural = {name for name in _MEDIA if any(f'"{name}s": ' in text for text in given)}

    def records() -> Iterator[dict[str, Any]]:
        for text in given:
            record = json.loads(text)
            for name in plural & record.keys():
                record[f"{name}s"] = [record.pop(name)]
            yield record

    return records(), len(failed) - len(given)


def _has_media(record: Mapping[str, Any]) -> bool:
    said = record.get("messages") or record.get("content")
    if isinstance(said, list):
        return '"url": null' not in json.dumps(said)
    cells = [record.get(name) for name in _MEDIA] + [record.get(f"{name}s") for name in _MEDIA]
    found = [cell for cell in cells if cell is not None]
    return bool(found) and not any(isinstance(cell, list) and None in cell for cell in found)


def keys_of(output: str) -> pa.Table:
    """The keys of the rows that count in an output.

    Raises:
        UsageError: there is no output of ours.
        JobError: it cannot be read.
    """
    place = place_of(output)
    return unlocked(lambda: _read(place).live()[0])


def place_of(output: str) -> Output:
    """Where an output lies, or its likeness where it is elsewhere. Raises UsageError where there is none of ours."""
    shown = printable(output)
    if output == "-":
        raise UsageError("standard output cannot be inspected", "name a folder, a .parquet or a .jsonl file")
    place = mirror.likeness(output) if storage.is_remote(output) else outputs.locate(output)
    if not os.path.lexists(place.path) and not place.state.is_dir():
        raise UsageError(f"no such output: {shown}", "name what -o named: a folder, a .parquet or a .jsonl file")
    marks = place.state.is_dir() if place.format is Format.FOLDER else place.state.is_dir() or outputs.is_ours(place)
    if not marks:
        raise UsageError(f"{shown} was not written by gemma4", "name what -o named")
    return place


def _read(place: Output) -> Ledger:
    try:
        return ledger.read(place, repair=False)
    except OSError as error:
        message = f"cannot read {printable(str(place.path))}: {error.strerror or error}"
        raise UsageError(message, "is it yours to read?") from error


def report_at(place: Output) -> Report:
    """What an output holds. Raises UsageError, and DamagedPartError where a file cannot be read."""
    return _report(place, _read(place))


def _report(place: Output, found: Ledger) -> Report:
    owner = outputs.owner(place)
    count: Counter[str] = sum(map(ledger.counts, found.in_order()), Counter())
    rows = count.total()
    begun = shards.begun(place)
    total = begun[0].total if begun else outputs.document(place, "job.json").get("total")
    left = max(0, total - rows) if isinstance(total, int) else None
    done = found.finished and not found.added and not left
    report = Report(str(place.path), "running" if owner else "finished" if done else "interrupted", owner)
    report.ok, report.failed, report.skipped = count["ok"], count["failed"], count["skipped"]
    report.left = 0 if done else left
    report.notices, report.made_with = found.notices, found.fingerprint or {}
    report.earlier = found.earlier(report.made_with)
    if begun:
        report.shards = _shards(place, begun)
        if report.shards["running"]:
            report.state = "running"
    rates = outputs.document(place, "summary.json").get("rates")
    report.last_run = rates if isinstance(rates, dict) else {}
    tally = _Tally()
    # Where rows are there twice it takes the keys of all to tell which one counts.
    replaced = found.live()[1] if rows < sum(source.rows for source in found.sources) else None
    for i, source in enumerate(found.sources):
        without = None if replaced is None else pa.array(replaced[i])
        for table in reading.tables(source.path, _COLUMNS):
            tally.add(table if without is None else table.filter(pc.invert(pc.is_in(table["row_index"], without))))
    report.finish_reasons = dict(tally.finish.most_common())
    report.tokens = {name: tally.tokens[name] for name in TOKENS}
    report.mean_ms = {name: tally.ms[name] / tally.timed[name] for name in TIMES if tally.timed[name]}
    report.failures = sorted(tally.failures.values(), key=lambda group: -group.rows)
    report.slowest = [record for _, _, record in sorted(tally.slowest, reverse=True)]
    return report


def _shards(place: Output, begun: list[Shard]) -> dict[str, Any]:
    states: dict[str, list[str]] = {name: [] for name in ("done", "running", "interrupted", "not_begun")}
    for shard in begun:
        own = shards.place_of(place, shard.name)
        done = any(own.state.glob("keys-*.parquet"))
        states["running" if outputs.owner(own) else "done" if done else "interrupted"].append(shards.words([shard]))
    have = {shard.number for shard in begun}
    states["not_begun"] = [f"{number}/{begun[0].of}" for number in range(begun[0].of) if number not in have]
    return {"of": begun[0].of, **states}


class _Tally:
    """Sums over tables of rows; what it holds does not grow with the rows."""

    def __init__(self) -> None:
        self.finish: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.ms: defaultdict[str, float] = defaultdict(float)
        self.timed: Counter[str] = Counter()
        self.failures: dict[tuple[str, str], FailureGroup] = {}
        self.slowest: list[tuple[float, int, dict[str, Any]]] = []

    def add(self, table: pa.Table) -> None:
        names = set(table.column_names)
        for name in TOKENS:
            if f"{name}_tokens" in names:
                self.tokens[name] += pc.sum(table[f"{name}_tokens"]).as_py() or 0
        for name in TIMES:
            if f"{name}_ms" in names:
                self.ms[name] += pc.sum(table[f"{name}_ms"]).as_py() or 0.0
                self.timed[name] += pc.count(table[f"{name}_ms"]).as_py()
        ok = table.filter(pc.equal(table["status"], "ok"))
        if "finish_reason" in names:
            for pair in ok["finish_reason"].drop_null().value_counts().to_pylist():
                self.finish[pair["values"]] += pair["counts"]
        self._add_failures(table.filter(pc.equal(table["status"], "failed")))
        self._add_slow(table, [f"{name}_ms" for name in TIMES if name != "queue" and f"{name}_ms" in names])

    def _add_failures(self, failed: pa.Table) -> None:
        columns = [failed[name].to_pylist() for name in ("error_stage", "error_type", "id", "error_message")]
        for stage, type, id, message in zip(*columns, strict=True):
            group = self.failures.get((stage, type))
            if group is None:
                self.failures[stage, type] = FailureGroup(stage, type, 1, id, message)
            else:
                group.rows += 1

    def _add_slow(self, table: pa.Table, names: list[str]) -> None:
        if not len(table) or not names:
            return
        columns = [np.nan_to_num(table[name].cast(pa.float64()).to_numpy()) for name in names]
        total = np.sum(columns, axis=0)
        for i in np.argsort(-total)[:SLOWEST]:
            if total[i] > 0:
                record = table.slice(int(i), 1).to_pylist()[0]
                kept = {name: record.get(name) for name in ("row_index", "id", "bucket", "attempts", *names)}
                entry = float(total[i]), -int(record["row_index"]), {"ms": float(total[i]), **kept}
                heapq.heappush(self.slowest, entry)
                if len(self.slowest) > SLOWEST:
                    heapq.heappop(self.slowest)
