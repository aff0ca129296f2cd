"""Rows -> the output: parts while the job runs, one sorted data set or file at its end, or lines on standard output."""

from __future__ import annotations

import contextlib
import heapq
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self

import pyarrow as pa

from gemma4cli import outputs, parts, strict_json
from gemma4cli.errors import JobError
from gemma4cli.escaping import printable
from gemma4cli.outputs import Format, Output
from gemma4cli.parts import Part
from gemma4cli.records import Row
from gemma4cli.schema import carried_names, output_schema
from gemma4cli.tables import has_times, nbytes, python_values, record_of, table_of

PART_ROWS = 5_000
PART_BYTES = 64 << 20
PART_SECONDS = 60.0


class OutputClosedError(JobError):
    """Whoever read standard output has gone (`gemma4 ... -o - | head`): stop, there is nothing left to do."""


class Sink(ABC):
    """Takes the rows of a job in any order. Rows that were flushed outlive a crash; `finish` puts all in order.

    state: the folder for logs and summary.json; None when the output is a stream.
    """

    state: Path | None = None

    @staticmethod
    def open(
        output: str,
        task: str,
        columns: pa.Schema,
        metadata: Mapping[str, Any],
        overwrite: bool = False,
        *,
        part_rows: int = PART_ROWS,
        part_seconds: float = PART_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        stdout: BinaryIO | None = None,
    ) -> Sink:
        """Opens an output, having tried that it can be written to.

        Args:
            output: a folder, `X.parquet`, `X.jsonl`, or `-` for lines of JSON on standard output.
            columns: columns carried from the input, with its names.
            metadata: what made the output; stored in it as JSON.
            overwrite: replace output of an earlier run; anything else is left alone and refused.
            part_rows, part_seconds: rows are kept in memory no longer than either of them says.
            stdout: where `-` writes; the process's standard output if None.

        Raises:
            UsageError: something lies there already, or it cannot be written to.
        """
        if output == "-":
            return StreamSink(stdout or sys.stdout.buffer, columns)
        place = outputs.locate(output)
        lock = outputs.claim(place, overwrite)
        schema = output_schema(columns, {"task": task, **metadata})
        return PartSink(place, schema, columns, lock, part_rows, part_seconds, clock)

    @abstractmethod
    def write(self, row: Row) -> None:
        """Takes a row. Raises JobError when the output cannot be written."""

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


class PartSink(Sink):
    """Writes parts, then the sorted data set or file from them.

    `committed` lists the parts that count: what is not in it was never written.
    """

    def __init__(
        self,
        place: Output,
        schema: pa.Schema,
        columns: pa.Schema,
        lock: IO[str],
        part_rows: int,
        part_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.state: Path = place.state
        self.committed: list[Part] = []
        self._place, self._schema, self._lock = place, schema, lock
        self._names = carried_names(columns)
        self._part_rows, self._part_seconds, self._clock = part_rows, part_seconds, clock
        self._rows: list[Row] = []
        self._held = 0
        self._since = clock()

    def write(self, row: Row) -> None:
        if not self._rows:
            self._since = self._clock()
        self._rows.append(row)
        self._held += nbytes(row)
        if (
            len(self._rows) >= self._part_rows
            or self._held >= PART_BYTES
            or self._clock() - self._since >= self._part_seconds
        ):
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        table = table_of(self._rows, self._schema, self._names)
        try:
            self.committed.append(parts.write_part(self._place.parts, len(self.committed), table))
        except OSError as error:
            raise self._failed(error) from error
        self._rows, self._held = [], 0

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.flush()
        try:
            groups = parts.row_groups(parts.merged(self._place.parts, self.committed, self._schema))
            if self._place.format is Format.FOLDER:
                self._finish_folder(groups)
            else:
                self._finish_file(groups)
            with parts.whole_file(self.state / "summary.json") as temporary:
                temporary.write_bytes(strict_json.encode(summary, indent=2) + b"\n")
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._lock.close()

    def _finish_folder(self, groups: Iterable[pa.Table]) -> None:
        data, ordered = self._place.parts, self.state / "sorted"
        shutil.rmtree(ordered, ignore_errors=True)
        parts.write_folder(ordered, groups, self._schema)
        parts.swap(ordered, data)
        for path in ordered.iterdir():
            if not outputs.is_part(path.name):  # not ours: it was put there while the job ran
                path.rename(data / path.name)
        shutil.rmtree(ordered)

    def _finish_file(self, groups: Iterable[pa.Table]) -> None:
        with parts.whole_file(self._place.path, self.state / "sorted") as temporary:
            if self._place.format is Format.PARQUET:
                parts.write_parquet(temporary, groups, self._schema)
            else:
                with temporary.open("wb") as file:
                    file.writelines(line for group in groups for line in _lines(group))
        shutil.rmtree(self._place.parts)

    def _failed(self, error: BaseException) -> JobError:
        rows = sum(part.rows for part in self.committed)
        kept = f"{rows} rows are kept in {len(self.committed)} parts in {printable(str(self._place.parts))}"
        reason = getattr(error, "strerror", None) or error
        return JobError(f"cannot write to {printable(str(self._place.path))}: {reason}", f"{kept}; make room for more")


class StreamSink(Sink):
    """Writes each row as a line as soon as all rows before it are written; later rows wait in a heap."""

    def __init__(self, stream: BinaryIO, columns: pa.Schema) -> None:
        self._stream = stream
        self._names = carried_names(columns)
        self._times = {self._names[field.name]: field.type for field in columns if has_times(field.type)}
        self._waiting: list[tuple[int, bytes]] = []
        self._next = 0

    def write(self, row: Row) -> None:
        record = record_of(row, self._names)
        for name, kind in self._times.items():
            record[name] = pa.scalar(record[name], kind)  # times may come as integers
        heapq.heappush(self._waiting, (row.row_index, _line(record)))
        if row.row_index == self._next:
            self._emit(in_order=True)

    def flush(self) -> None:
        self._emit(in_order=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Rows that wait for one that never came are written as well, in order."""
        self._emit(in_order=False)

    def _emit(self, in_order: bool) -> None:
        try:
            while self._waiting and not (in_order and self._waiting[0][0] > self._next):
                row_index, line = heapq.heappop(self._waiting)
                self._stream.write(line)
                self._next = row_index + 1
            self._stream.flush()
        except BrokenPipeError as error:
            self._waiting = []
            _discard(self._stream)
            raise OutputClosedError("the reader of standard output has gone") from error
        except OSError as error:
            raise JobError(f"cannot write to standard output: {error.strerror or error}") from error


def _line(record: Mapping[str, Any]) -> bytes:
    return strict_json.encode(record) + b"\n"


def _lines(group: pa.Table) -> Iterator[bytes]:
    columns = [python_values(column) for column in group.columns]
    for values in zip(*columns, strict=True):
        yield _line(dict(zip(group.column_names, values, strict=True)))


def _discard(stream: BinaryIO) -> None:
    """Sends what is still buffered nowhere, lest the interpreter complain when it closes the stream."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
