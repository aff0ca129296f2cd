"""One row from the answers to several prompts, which the engine gets side by side and which share the row's media."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from gemma4cli.config import RunConfig
from gemma4cli.joining import Ready, counted, worst
from gemma4cli.recipes import OUTPUT
from gemma4cli.records import Item, Rendered, Row, Status
from gemma4cli.schema import output_fields
from gemma4cli.transport import parts


@dataclass(slots=True)
class Outputs:
    """The outputs of one row, and what came of each."""

    config: RunConfig
    item: Item
    rows: list[Row | None] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [None] * len(self.config.outputs)

    def first(self, rendered: Rendered) -> Iterator[tuple[Item, Rendered]]:
        """An item for each output, and its share of what was made of the row: all that was spent is the first's."""
        names = list(self.config.outputs)
        payloads = parts(rendered.payload, len(names))
        for place, (name, tokens, payload) in enumerate(zip(names, rendered.asked, payloads, strict=True)):
            spent: dict[str, Any] = {} if place == 0 else {"decode_ms": 0.0, "render_ms": 0.0, "nbytes": 0}
            item = replace(self.item, task=f"{OUTPUT}{name}", extra={})
            yield item, replace(rendered, payload=payload, tokens=tokens, asked=(), **spent)

    def land(self, place: int, row: Row) -> Ready:
        """Takes what came of an output, for which no other waits."""
        self.rows[place] = row
        return []

    @property
    def complete(self) -> bool:
        return None not in self.rows

    def joined(self) -> Row:
        """The whole row. It fails if an output did; the others' answers are kept."""
        rows = [row for row in self.rows if row is not None]
        named = dict(zip(self.config.outputs, rows, strict=True))
        whole = replace(counted(self.item, rows), outputs={name: self._told(name, row) for name, row in named.items()})
        failed = {name: row for name, row in named.items() if row.status is Status.FAILED}
        if not failed:
            return replace(whole, finish_reason=worst(row.finish_reason for row in rows))
        first = next(iter(failed.values()))
        return replace(
            whole,
            status=Status.FAILED,
            error_stage=first.error_stage,
            error_type=first.error_type,
            error_message="; ".join(f"{OUTPUT}{name}: {row.error_message}" for name, row in failed.items()),
            finish_reason=first.finish_reason,
        )

    def _told(self, name: str, row: Row) -> dict[str, Any]:
        return {column.name: getattr(row, column.name) for column in output_fields(self.config.outputs[name])}
