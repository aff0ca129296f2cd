"""Rows -> lines of JSON on standard output, in the order of the input."""

from __future__ import annotations

import contextlib
import functools
import heapq
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from gemma4cli import assembly
from gemma4cli.errors import JobError
from gemma4cli.inputs import Inputs
from gemma4cli.pending import Pending, lost
from gemma4cli.records import Item, Row
from gemma4cli.schema import carried_names
from gemma4cli.sink import OutputClosedError, Sink
from gemma4cli.tables import has_times, record_of


class StreamSink(Sink):
    """Writes each row as a line as soon as all rows before it are written; later rows wait in a heap."""

    def __init__(
        self,
        stream: BinaryIO,
        columns: pa.Schema,
        line_of: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        answers: Sequence[str] = (),
    ) -> None:
        self._stream, self._line_of, self._answers = stream, line_of, answers
        self._names = carried_names(columns, answers)
        self._times = {self._names[field.name]: field.type for field in columns if has_times(field.type)}
        self._waiting: list[tuple[int, bytes]] = []
        self._expected: dict[int, Item] = {}
        self._next = 0

    def pending(self, inputs: Inputs) -> Pending:
        return Pending(inputs.total, 0, 0, False, functools.partial(self._read, inputs))

    def item(self, row_index: int) -> Item | None:
        return self._expected.get(row_index)

    def write(self, row: Row) -> None:
        self._expected.pop(row.row_index, None)
        record = record_of(row, self._names, self._answers)
        for name, kind in self._times.items():
            record[name] = pa.scalar(record[name], kind)  # times may come as integers
        shown = record if self._line_of is None else self._line_of(record)
        heapq.heappush(self._waiting, (row.row_index, assembly.line(shown)))
        if row.row_index == self._next:
            self._emit(in_order=True)

    def flush(self) -> None:
        self._emit(in_order=True)

    def finish(self, summary: Mapping[str, Any]) -> None:
        self.close()

    def close(self) -> None:
        """Rows that wait for one that never came are written as well, in order."""
        self._emit(in_order=False)

    def _read(self, inputs: Inputs) -> Iterator[Item]:
        seen = 0
        for item in inputs:
            seen += 1
            self._expected[item.row_index] = item
            yield item
        if inputs.total is not None and seen < inputs.total:
            raise lost(inputs.total - seen)

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


def _discard(stream: BinaryIO) -> None:
    """Sends what is still buffered nowhere, lest the interpreter complain when it closes the stream."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
