"""Rows -> parts while the job runs, and one sorted data set or file at its end, in whichever run that comes."""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pyarrow as pa

from gemma4cli import assembly, ledger, outputs, parts, pending, reading
from gemma4cli.commits import Columns, asked_again, commit
from gemma4cli.duplicates import Duplicates
from gemma4cli.errors import JobError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.identity import UNKNOWN, Key, content_key, id_key
from gemma4cli.inputs import Inputs
from gemma4cli.mirror import Mirror
from gemma4cli.outputs import Output
from gemma4cli.pending import Pending, Resume
from gemma4cli.records import Item, Row, Status
from gemma4cli.schema import DUPLICATE_OF, ROW_FIELDS, carried_names
from gemma4cli.sink import Sink
from gemma4cli.tables import nbytes

PART_BYTES = 16 << 20
_AT_ONCE = 4096  # earlier rows that are read back together
# A crash may cost this share of the time that the job has run for; committing, that share at most. So parts grow with
# the job, up to PART_SECONDS.
_AT_RISK = 1 / 25
_COMMITTING = 1 / 25
_LEAST_SECONDS = 0.05
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class PartSink(Sink):
    """Writes parts, then the sorted data set or file from them and from what was there before.

    `ledger` knows the files whose rows count: what is not in it was never written.

    first: the row_index that the input's rows begin with.
    mirror: where the output is elsewhere and this is its likeness; then every change is sent there.
    """

    def __init__(
        self,
        place: Output,
        schema: pa.Schema,
        columns: pa.Schema,
        locks: Sequence[IO[str]],
        fingerprint: Mapping[str, Any],
        resume: Resume,
        *,
        first: int = 0,
        answers: Sequence[str] = (),
        mirror: Mirror | None = None,
        part_rows: int,
        part_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.state: Path = place.state
        self.path = place.path
        self._mirror = mirror
        self._place, self._schema, self._locks, self._first = place, schema, locks, first
        self._names, self._answers = carried_names(columns, answers), answers
        self._dedupe = DUPLICATE_OF in schema.names
        self._fingerprint, self._resume = fingerprint, resume
        try:
            self.ledger = ledger.read(place, repair=True)
            # Data that is finished stays whole and sorted until the new rows can be put in at once.
            self._folder = place.state / "parts" if self.ledger.finished else place.parts
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            message = f"cannot read what is in {self._shown}: {error.strerror or error}"
            raise UsageError(message, "choose another output") from error
        self.notices = self.ledger.notices if mirror is None else [mirror.named(each) for each in self.ledger.notices]
        pending.refuse_settings(self.ledger.fingerprint, fingerprint, resume, self._shown)
        try:
            assembly.united([source.path for source in self.ledger.sources], schema)
        except JobError as error:  # now, and not when all rows are computed
            raise UsageError(str(error), error.hint) from error
        self._part_rows, self._part_seconds, self._clock = part_rows, part_seconds, clock
        self._rows: list[Row] = []
        self._keys: list[Key] = []
        self._inputs: list[str | None] = []
        self._expected: dict[int, tuple[Key, Item]] = {}
        self._held = 0
        self._began: float | None = None
        self._since = clock()
        self._cost = 0.0  # seconds that the last commit took
        self._duplicates: Duplicates | None = None
        self._left: Callable[[], Iterator[Item]] = lambda: iter(())
        self._plan: pending.Plan | None = None

    @property
    def _shown(self) -> str:
        return printable(str(self._place.path))

    def pending(self, inputs: Inputs) -> Pending:
        live, replaced = self.ledger.live()
        total = inputs.total
        kept, kept_keys = ledger.counts(live), live
        if len(live):
            ids, contents = pending.read_keys(inputs)
            plan = self._plan = pending.plan(live, ids, contents, self._resume, self._first)
            pending.refuse(plan, self._resume, self._shown, self._id_of)
            total = int(np.count_nonzero(plan.row_index >= 0))
            kept_keys = pending.stay(plan, live)
            kept = ledger.counts(kept_keys)
            self._left = functools.partial(pending.items, plan, inputs, self._expect)
        else:
            self._left = functools.partial(self._first_time, inputs)
        if self._dedupe:
            self._duplicates = Duplicates(kept_keys, lambda: self.root, answers=self._answers)
        self._note(None if total is None else total + kept["ok"] + kept["failed"])
        # Rows are there twice where putting them in order broke off.
        settled = self.ledger.finished and not self.ledger.added and not any(len(rows) for rows in replaced)
        idle = total == 0 and settled
        del live, kept_keys
        pa.default_memory_pool().release_unused()
        self._send()
        return Pending(total, kept["ok"], kept["failed"], idle, self._to_compute)

    def duplicates(self) -> Iterator[Row]:
        if self._duplicates is not None and self._duplicates.waiting:
            self.flush()
            try:
                yield from self._duplicates.copies(self._left(), self._expected, self.ledger.sources)
            except parts.DamagedPartError as error:
                raise self._damaged(error) from error

    def item(self, row_index: int) -> Item | None:
        _, item = self._expected.get(row_index, (None, None))
        return item

    def kept(self, inputs: Inputs, wanted: Callable[[Item], bool]) -> Iterator[tuple[Item, Row]]:
        held: dict[int, Item] = {}
        for position, item in enumerate(inputs if self._plan is not None else ()):
            assert self._plan is not None
            row_index = int(self._plan.home[position]) if position < len(self._plan.home) else -1
            if row_index >= 0 and wanted(item := replace(item, row_index=row_index)):
                held[row_index] = item
            if len(held) >= _AT_ONCE:
                yield from self._read_back(held)
                held = {}
        yield from self._read_back(held)

    def write(self, row: Row) -> None:
        now = self._clock()
        if self._began is None:
            self._began = self._since = now
        key, item = self._expected.pop(row.row_index, (None, None))
        self._rows.append(row)
        self._keys.append(key or Key(id_key(row.id), UNKNOWN))
        self._inputs.append(None if item is None else asked_again(row, item))
        self._held += nbytes(row)
        wait = min(self._part_seconds, max(_LEAST_SECONDS, self._cost / _COMMITTING, _AT_RISK * (now - self._began)))
        if len(self._rows) >= self._part_rows or self._held >= PART_BYTES or now - self._since >= wait:
            self.flush()

    @property
    def held(self) -> int:
        return len(self._rows)

    def flush(self) -> None:
        if not self._rows:
            return
        began = self._clock()
        lines = list(zip(self._rows, self._keys, self._inputs, strict=True))
        form = Columns(self._schema, self._names, self._answers)
        try:
            source = commit(self._folder, self.ledger.next_part, lines, form, self._fingerprint)
        except OSError as error:
            raise self._failed(error) from error
        self.ledger.next_part += 1
        self.ledger.sources.append(source)
        self._rows, self._keys, self._inputs, self._held = [], [], [], 0
        del lines
        pa.default_memory_pool().release_unused()
        self._send()
        self._since = self._clock()
        self._cost = self._since - began

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.flush()
        try:
            assembly.assemble(self._place, self.ledger, self._schema, self._fingerprint)
            parts.write_document(self.state / "summary.json", summary, indent=2)
        except parts.DamagedPartError as error:
            raise self._damaged(error) from error
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        self._send()

    def close(self) -> None:
        try:
            self.flush()
            self._send(last=True)
        finally:
            for lock in self._locks:
                outputs.release(lock)
            if self._mirror is not None:
                self._mirror.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mirror is not None and isinstance(error, UsageError | JobError):
            self._mirror.name(error)
        super().__exit__(kind, error, trace)

    def _send(self, *, last: bool = False) -> None:
        if self._mirror is not None:
            self._mirror.send(last=last)

    def _to_compute(self) -> Iterator[Item]:
        items = self._left()
        return items if self._duplicates is None else self._duplicates.computed(items, self._digested)

    def _read_back(self, items: Mapping[int, Item]) -> Iterator[tuple[Item, Row]]:
        try:
            found = reading.records(self.ledger.sources, list(items), ROW_FIELDS)
        except parts.DamagedPartError as error:
            raise self._damaged(error) from error
        for row_index, record in found.items():
            if record["status"] == Status.OK:
                values: dict[str, Any] = {name: record.get(name) for name in ROW_FIELDS}
                yield items[row_index], Row(**(values | {"status": Status.OK}))

    def _first_time(self, inputs: Inputs) -> Iterator[Item]:
        seen = 0
        for item in inputs:
            seen += 1
            self._expect(item, Key(id_key(item.id), content_key(item)))
            yield item
        if inputs.total is not None and seen < inputs.total:
            raise pending.lost(inputs.total - seen)

    def _expect(self, item: Item, key: Key) -> None:
        self._expected[item.row_index] = key, item

    def _digested(self, item: Item, digest: tuple[int, int]) -> None:
        key, _ = self._expected[item.row_index]
        self._expected[item.row_index] = key._replace(digest=digest), item

    def _note(self, total: int | None) -> None:
        """Leaves word of how many rows there are, for whoever looks while the job runs or after it was stopped."""
        with contextlib.suppress(OSError):
            parts.write_document(self.state / "job.json", {"total": total})

    def _id_of(self, row_index: int) -> str:
        with contextlib.suppress(parts.DamagedPartError, KeyError):
            return str(reading.records(self.ledger.sources, [row_index], ["id"])[row_index]["id"])
        return f"row {row_index}"

    def _damaged(self, error: parts.DamagedPartError) -> JobError:
        message = f"{printable(str(error.path))} is damaged ({printable(str(error))})"
        try:
            target = ledger.set_aside(error.path, self._place)
        except OSError:
            return JobError(message, "move it away, and run the same command again to do its rows again")
        hint = f"it is set aside as {printable(str(target))}; run the same command again to do its rows again"
        return JobError(message, hint)

    def _failed(self, error: BaseException) -> JobError:
        rows = sum(source.rows for source in self.ledger.sources)
        kept = f"{rows} rows are kept in {len(self.ledger.sources)} parts in {printable(str(self._folder))}"
        reason = getattr(error, "strerror", None) or error
        hint = "make room" if getattr(error, "errno", None) in _NO_ROOM else "put that right"
        return JobError(f"cannot write to {self._shown}: {reason}", f"{kept}; {hint}, and run the same command again")
