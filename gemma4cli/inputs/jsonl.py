"""JSON Lines -> records, and the Arrow types of their columns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from gemma4cli.errors import JobError, ParseError, UsageError
from gemma4cli.escaping import without_surrogates
from gemma4cli.inputs.json_types import ColumnTypes
from gemma4cli.inputs.manifests import Entry, Table, Wanted
from gemma4cli.inputs.opened import InputFile

_BOM = b"\xef\xbb\xbf"
_FOREIGN = {
    b"\x1f\x8b": ("is compressed with gzip", "unpack it first: gunzip -k"),
    b"\x28\xb5\x2f\xfd": ("is compressed with zstd", "unpack it first: zstd -d"),
    b"PAR1": ("is a Parquet file", "give it the extension .parquet"),
    b"\xff\xfe": ("is UTF-16 text", "convert it first: iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("is UTF-16 text", "convert it first: iconv -f UTF-16 -t UTF-8"),
}
_MOST_LEVELS = 200  # what handles values calls itself for each, and Python allows it a thousand calls
# A chunk's values are held as Python objects, some ten times its bytes.
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 16 << 20


def check(source: InputFile) -> None:
    """Refuses a file that is not lines of JSON at all.

    Raises:
        UsageError: it cannot be opened, or is compressed, UTF-16, Parquet or one JSON array.
    """
    try:
        if source.path is not None and not Path(source.path).is_file():
            raise UsageError(f"{source.name} is not a regular file", "a manifest is read more than once")
        with source.open() as file:
            head = file.read(4096)
    except OSError as error:
        raise UsageError(f"cannot read {source.name}: {error.strerror or error}") from error
    for magic, (what, hint) in _FOREIGN.items():
        if head.startswith(magic):
            raise UsageError(f"{source.name} {what}, not lines of JSON", hint)
    if head.removeprefix(_BOM).lstrip().startswith(b"["):
        message = f"{source.name} is one JSON array, not one object a line"
        raise UsageError(message, "convert it first: jq -c '.[]'")


def records(source: InputFile, passed: int = 0) -> Iterator[tuple[int, dict[str, Any] | ParseError, int]]:
    """Line number from 1, the line's object or what is wrong with it, and its bytes; blank lines are left out.

    NaN, Infinity, numbers beyond a double and integers of any length are taken, as Python's json takes them. `passed`
    rows are passed over at the beginning, unread.

    Raises:
        JobError: the file cannot be read any further.
    """
    try:
        with source.open() as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(_BOM)
                if line.isspace() or not line:
                    continue
                if passed > 0:
                    passed -= 1
                    continue
                try:
                    yield number, _record(line), len(line)
                except ParseError as error:
                    yield number, error, len(line)
    except OSError as error:
        raise JobError(f"cannot read {source.name}: {error.strerror or error}") from error


def _record(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ParseError("not_utf8", f"byte {error.start + 1} of the line is not UTF-8") from None
    except json.JSONDecodeError as error:
        if line.endswith(b"\n"):
            raise ParseError("not_json", f"not JSON ({error.msg}, character {error.pos + 1})") from None
        message = f"the last line is cut off ({error.msg}, character {error.pos + 1})"
        raise ParseError("truncated", message) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; nesting of thousands of levels
        raise ParseError("not_json", f"JSON that cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ParseError("not_an_object", "JSON, but not an object with columns in it")
    if line.count(b"[") + line.count(b"{") > _MOST_LEVELS and _levels(value) > _MOST_LEVELS:
        raise ParseError("too_deep", f"JSON with more than {_MOST_LEVELS} lists and objects in each other")
    if b"\\ud" in line or b"\\uD" in line:
        cleaned: dict[str, Any] = without_surrogates(value)
        return cleaned
    return value


def _levels(value: Any) -> int:
    """How deep lists and objects lie in each other."""
    depth, nested = 0, [value]
    while nested := [part for part in nested if isinstance(part, (list, dict))]:  # not by recursion, which has an end
        depth += 1
        nested = [part for each in nested for part in (each.values() if isinstance(each, dict) else each)]
    return depth


def open_lines(sources: Sequence[InputFile], limit: int | None) -> Table:
    """The lines of some files as one table. At most `limit` rows count, where that is not None.

    Raises:
        UsageError: a file is not lines of JSON, or has no end of different columns.
    """
    schema, as_json, counts = _described(sources, limit)

    def read(wanted: Wanted) -> Iterator[Entry]:
        start = 0
        for source, count in zip(sources, counts, strict=True):
            passed = max(0, min(count, wanted.first - start))
            numbers = itertools.count(start + passed)
            start += count
            # Not more than were counted: the file may have grown, and the types are those of the rows that were seen.
            for line, record, _ in islice(records(source, passed), count - passed):
                yield Entry(next(numbers), f"{source.name} line {line}", record, source.folder)

    name = sources[0].name if len(sources) == 1 else f"{sources[0].name} and {len(sources) - 1} more"
    return Table(name, schema, sum(counts), read, as_json, skips=True)


def _described(sources: Sequence[InputFile], limit: int | None) -> tuple[pa.Schema, frozenset[str], list[int]]:
    """Reads the files once: the columns' types, those that go as JSON text, and the rows of each file.

    Memory is bounded by a chunk of lines.
    """
    types = ColumnTypes()
    counts: list[int] = []
    for source in sources:
        check(source)
        left = None if limit is None else limit - sum(counts)
        rows = 0
        chunk: list[dict[str, Any]] = []
        held = 0
        for _, record, size in islice(records(source), left):
            rows += 1
            if isinstance(record, ParseError):
                continue
            chunk.append(record)
            held += size
            if len(chunk) >= _CHUNK_ROWS or held >= _CHUNK_BYTES:
                types.add(chunk)
                chunk, held = [], 0
        types.add(chunk)
        counts.append(rows)
    schema, as_json = types.schema()
    return schema, as_json, counts
