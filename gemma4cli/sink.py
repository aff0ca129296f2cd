"""Rows -> the output, whatever its form: `Sink` is what the pipeline sees of it."""

from __future__ import annotations

import contextlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import pyarrow as pa

from gemma4cli import outputs, shards, storage
from gemma4cli.errors import JobError, UsageError
from gemma4cli.inputs import Inputs
from gemma4cli.mirror import Mirror
from gemma4cli.outputs import Output
from gemma4cli.pending import Pending, Resume
from gemma4cli.records import Item, Row
from gemma4cli.schema import output_schema
from gemma4cli.shards import Shard

PART_ROWS = 8192
PART_SECONDS = 10.0
_NAME_ONE = "write to a file or a folder"


class OutputClosedError(JobError):
    """Whoever read standard output has gone (`gemma4 ... -o - | head`): stop, there is nothing left to do."""


class Sink(ABC):
    """Takes the rows of a job in any order. Rows that were flushed outlive a crash; `finish` puts all in order.

    path: where the output, or its likeness here, lies; None when the output is a stream.
    state: the folder for logs and summary.json; None when the output is a stream.
    notices: what was found damaged, for people.
    root: the folder outside of which no file is read to find duplicates; None allows all. Set it before the first row.
    """

    path: Path | None = None
    state: Path | None = None
    root: str | None = None
    notices: Sequence[str] = ()

    @staticmethod
    def open(
        output: str,
        task: str,
        columns: pa.Schema,
        metadata: Mapping[str, Any],
        overwrite: bool = False,
        *,
        fingerprint: Mapping[str, Any] | None = None,
        resume: Resume = Resume(),  # noqa: B008  frozen
        dedupe: bool = False,
        part_rows: int = PART_ROWS,
        part_seconds: float = PART_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        stdout: BinaryIO | None = None,
        line_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        answers: Sequence[pa.Field] = (),
        shard: Shard | None = None,
    ) -> Sink:
        """Opens an output, having tried that it can be written to.

        Args:
            output: a folder, `X.parquet`, `X.jsonl`, or `-` for lines of JSON on standard output.
            columns: columns carried from the input, with its names.
            metadata: what made the output; stored in it as JSON.
            overwrite: start again, in the place of an earlier run's output.
            fingerprint: what decides the answers; an output made with another one is refused unless `resume` allows.
            resume: how to go on where rows are there already.
            dedupe: rows of equal content get the answer of the first of them.
            part_rows, part_seconds: rows are kept in memory no longer than either of them says.
            stdout: where `-` writes; the process's standard output if None.
            line_of: makes the object of a line on standard output from a row's columns; None leaves them as they are.
            answers: the columns of typed answers.
            shard: the share of the output that is written, beside other processes with theirs; None is all of it.

        Raises:
            UsageError: what lies there is not ours, is in use, or was made otherwise; or it cannot be written to.
        """
        from gemma4cli.part_sink import PartSink
        from gemma4cli.stream_sink import StreamSink

        if output == "-":
            if shard is not None:
                raise UsageError("shards are put together later, which standard output does not allow", _NAME_ONE)
            if dedupe:
                message = "--dedupe looks answers up in the output, which standard output does not allow"
                raise UsageError(message, _NAME_ONE)
            return StreamSink(stdout or sys.stdout.buffer, columns, line_of, [field.name for field in answers])
        made = dict(fingerprint or {})
        document = {"task": task, **metadata, **({"fingerprint": made} if made else {})}

        def at(place: Output, mirror: Mirror | None) -> Sink:
            if shard is None:
                locks = [outputs.claim(place, overwrite)]
            else:
                place, locks = shards.claim(place, shard, overwrite)
            try:
                return PartSink(
                    place,
                    output_schema(columns, document, dedupe, answers),
                    columns,
                    locks,
                    made,
                    resume,
                    first=0 if shard is None else shard.first,
                    answers=[field.name for field in answers],
                    mirror=mirror,
                    part_rows=part_rows,
                    part_seconds=part_seconds,
                    clock=clock,
                )
            except BaseException:
                for lock in locks:
                    outputs.release(lock)
                raise

        if not storage.is_remote(output):
            return at(outputs.locate(output), None)
        mirror = Mirror(output, "" if shard is None else shard.name)
        try:
            with mirror.told():
                notices = mirror.claim()
                sink = at(mirror.place, mirror)
        except BaseException:
            mirror.close()
            raise
        sink.notices = [*notices, *sink.notices]
        return sink

    @abstractmethod
    def pending(self, inputs: Inputs) -> Pending:
        """The rows that are still to do. Raises UsageError when rows that are there are not what the input says."""

    def duplicates(self) -> Iterator[Row]:
        """Rows held back because others have their content, with the answers of those; ask when those are written."""
        return iter(())

    def item(self, row_index: int) -> Item | None:
        """What a row that was not yet written is made of."""
        return None

    def kept(self, inputs: Inputs, wanted: Callable[[Item], bool]) -> Iterator[tuple[Item, Row]]:
        """Rows of earlier runs that are ok and stay, with what they are made of; ask after `pending`.

        Args:
            wanted: which of them; only these are read back, without carried columns.
        """
        return iter(())

    @abstractmethod
    def write(self, row: Row) -> None:
        """Takes a row. Raises JobError when the output cannot be written."""

    @property
    def held(self) -> int:
        """How many of the rows taken a crash would lose: the latest ones."""
        return 0

    @abstractmethod
    def flush(self) -> None:
        """Makes all rows taken so far outlive a crash, or be seen by the reader of the stream."""

    @abstractmethod
    def finish(self, summary: Mapping[str, Any]) -> None:
        """Puts the rows in order, which ends the job. Raises JobError when that cannot be written."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of the output. Rows taken are kept, finished or not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with contextlib.suppress(JobError):  # the first error is the one to report
            self.close()
