"""Rows -> one part that is there for good, with the keys of its rows in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from gemma4cli import keys, ledger, parts, strict_json
from gemma4cli.identity import Key
from gemma4cli.ledger import Source
from gemma4cli.records import Item, Row, Status
from gemma4cli.tables import manifest_record, table_of


class Columns(NamedTuple):
    """How rows become a table: its schema, what carried columns are called there, and those of typed answers."""

    schema: pa.Schema
    names: Mapping[str, str]
    answers: Sequence[str]


def asked_again(row: Row, item: Item) -> str | None:
    """Of a failed row, the manifest's record that would ask for it again."""
    return strict_json.encode(manifest_record(item)).decode() if row.status is Status.FAILED else None


def commit(
    folder: Path,
    number: int,
    lines: Sequence[tuple[Row, Key, str | None]],
    columns: Columns,
    fingerprint: Mapping[str, Any],
    mark: str = "",
) -> Source:
    """Writes rows, in any order, as a part with their keys in it. `mark` is that of `parts.write_part`.

    Raises:
        OSError: it cannot be written.
        JobError: a carried value does not fit its column's type.
    """
    lines = sorted(lines, key=lambda line: line[0].row_index)
    rows = [row for row, _, _ in lines]
    table = table_of(rows, columns.schema, columns.names, columns.answers)
    own = keys.table(
        [row.row_index for row in rows],
        [key for _, key, _ in lines],
        [row.status for row in rows],
        [record for _, _, record in lines],
    )
    header = {"fingerprint": fingerprint}
    metadata = {ledger.IN_PART.decode(): keys.encoded(own, header)}
    return ledger.part(parts.write_part(folder, number, table, metadata, mark), own, header)
