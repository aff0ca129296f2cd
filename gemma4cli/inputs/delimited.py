"""CSV and TSV with a head -> records, with the types that all values of a column have.

Whole numbers, numbers and truth values are taken for what they look like where all values of their column do; nothing
between two delimiters is null. Everything else is text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import pyarrow as pa

from gemma4cli.errors import JobError, ParseError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.names import extension
from gemma4cli.inputs.opened import InputFile

_LONGEST = 1 << 27  # characters of a field: pictures come in base64
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_TRUTHS = {"true": True, "false": False, "True": True, "False": False, "TRUE": True, "FALSE": False}
_KINDS: tuple[tuple[pa.DataType, Callable[[str], bool], Callable[[str], Any]], ...] = (
    (pa.int64(), lambda text: _WHOLE.fullmatch(text) is not None, int),
    (pa.float64(), lambda text: _NUMBER.fullmatch(text) is not None, float),
    (pa.bool_(), _TRUTHS.__contains__, _TRUTHS.__getitem__),
)


def open_delimited(sources: Sequence[InputFile], limit: int | None) -> Table:
    """Files with a head each as one table; read once for the columns' types. At most `limit` rows count, if not None.

    Raises:
        UsageError: a file cannot be read, has no head, or names a column twice.
    """
    fits: dict[str, list[bool]] = {}
    rows = 0
    for source in sources:
        head = _head(source)
        for name in head:
            fits.setdefault(name, [True] * len(_KINDS))
        for _, record in islice(_records(source, head), None if limit is None else limit - rows):
            rows += 1
            for name, text in () if isinstance(record, ParseError) else record.items():
                if text is not None:
                    fits[name] = [fit and looks(text) for fit, (_, looks, _) in zip(fits[name], _KINDS, strict=True)]
    kinds = {name: next((i for i, fit in enumerate(each) if fit), None) for name, each in fits.items()}
    schema = pa.schema({name: pa.string() if i is None else _KINDS[i][0] for name, i in kinds.items()})
    readers = {name: _KINDS[i][2] for name, i in kinds.items() if i is not None}

    def read(wanted: Wanted) -> Iterator[Entry]:
        numbers = count()
        for source in sources:
            for line, record in _records(source, _head(source)):
                number = next(numbers)
                if number >= rows:
                    return
                if not isinstance(record, ParseError):
                    record = {name: _typed(text, readers.get(name)) for name, text in record.items()}
                yield Entry(number, f"{source.name} line {line}", record, source.folder)

    name = sources[0].name if len(sources) == 1 else f"{sources[0].name} and {len(sources) - 1} more"
    return Table(name, schema, rows, read)


def _typed(text: str | None, reader: Callable[[str], Any] | None) -> Any:
    if text is None or reader is None:
        return text
    try:
        return reader(text)
    except (ValueError, KeyError) as error:
        raise JobError(
            f"{printable(text[:60])} is not what its column held before", "was the input changed?"
        ) from error


def _head(source: InputFile) -> list[str]:
    head = next(_lines(source), (1, []))[1]
    if isinstance(head, ParseError):
        way = "convert it first, such as with iconv -f UTF-16 -t UTF-8, or -f LATIN1"
        raise UsageError(f"{source.name} line 1: {head}", way)
    other = next((mark for mark in ("\t", ";", "|", ",") if len(head) == 1 and mark in head[0]), None)
    if other is not None:
        way = "a .csv has commas between its fields, a .tsv tabs"
        raise UsageError(f"{source.name} has {other!r} between the names of its columns", way)
    if not any(head):
        raise UsageError(f"{source.name} has no head", "its first line is to name the columns")
    twice = {name for name in head if head.count(name) > 1}
    if twice:
        raise UsageError(f"{source.name} has several columns of the name {printable(min(twice))}", "rename them")
    return head


def _records(source: InputFile, head: Sequence[str]) -> Iterator[tuple[int, dict[str, str | None] | ParseError]]:
    """Line numbers with records; blank lines are left out."""
    for line, fields in islice(_lines(source), 1, None):
        if isinstance(fields, ParseError):
            yield line, fields
        elif len(fields) > len(head):
            yield line, ParseError("wrong_fields", f"{len(fields)} fields where the head has {len(head)}")
        elif fields:
            values = [*fields, *[""] * (len(head) - len(fields))]
            yield line, {name: value or None for name, value in zip(head, values, strict=True)}


def _lines(source: InputFile) -> Iterator[tuple[int, list[str] | ParseError]]:
    csv.field_size_limit(_LONGEST)
    delimiter = "\t" if extension(source.shown.partition("?")[0]) == ".tsv" else ","
    try:
        with source.open() as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
            # Strict: a quote that nobody closes would make one field of all rows that follow.
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            while True:
                try:
                    fields = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    yield reader.line_num, ParseError("not_csv", f"not CSV ({error})")
                    continue
                bad = any("\udc80" <= c <= "\udcff" for field in fields for c in field if not field.isascii())
                yield reader.line_num, ParseError("not_utf8", "the line is not UTF-8") if bad else fields
    except OSError as error:
        raise JobError(f"cannot read {source.name}: {error.strerror or error}") from error
