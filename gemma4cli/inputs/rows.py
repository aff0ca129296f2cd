"""A manifest's record -> Item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemma4cli import strict_json
from gemma4cli.errors import ParseError
from gemma4cli.escaping import encodable, printable
from gemma4cli.inputs import content
from gemma4cli.inputs.cells import blank_reason, cell_at, id_of, is_blank, media_of, prompt_of, source_of
from gemma4cli.inputs.columns import Choice, ContentColumn
from gemma4cli.inputs.files import shorten_data
from gemma4cli.records import Failure, Item, Kind, Media


@dataclass(frozen=True, slots=True)
class Reading:
    """How the records of a manifest are read: its columns, and what the task says about all of them.

    as_json: carried columns that hold values of several types, and go to the output as JSON text.
    wants_media: the task needs media, so a row without any has failed even where no column could name some.
    """

    choice: Choice
    kind: Kind | None
    as_json: frozenset[str]
    wants_media: bool = False


def item_of(record: Mapping[str, Any], row_index: int, number: int, place: str, folder: str, reading: Reading) -> Item:
    """One record as a row; what is wrong with it becomes the row's failure.

    Args:
        number: its place among all records, by which it is called where it has no id.
        place: where it stands, such as "rows.jsonl line 3".
        folder: absolute; relative paths in the record are relative to it.
    """
    choice = reading.choice
    identity = id_of(record.get(choice.id) if choice.id is not None else None, f"row {number}")
    extra = _carried(record, reading)
    source = place
    try:
        prompt = None if choice.prompt is None else prompt_of(record.get(choice.prompt), choice.prompt)
        if choice.content is not None:
            return _spoken(record, choice.content, Item(row_index, identity, place, (), prompt, extra), folder, reading)
        media: list[Media] = []
        for column in choice.media:
            cell = cell_at(record, column.steps)
            if is_blank(cell):
                continue
            if not media:
                source = source_of(cell, place)
            media += media_of(cell, column, folder, reading.kind or column.kind)
        if not media and (choice.media or reading.wants_media):
            reasons = "; ".join(blank_reason(record, column) for column in choice.media)
            raise ParseError("no_media", reasons or "the row names no medium")
    except ParseError as error:
        return Item(row_index, identity, source, extra=extra, failure=_at(place, error))
    return Item(row_index, identity, source, tuple(media), prompt, extra)


def _spoken(record: Mapping[str, Any], column: ContentColumn, item: Item, folder: str, reading: Reading) -> Item:
    """The row with media and texts in order. Whole messages ask for themselves: the prompt that follows is empty."""
    name, cell = ".".join(column.steps), cell_at(record, column.steps)
    if column.messages:
        said = content.messages_of(cell, name, folder, reading.kind)
        item = replace(item, prompt=item.prompt or "")
    else:
        said = content.Conversation(content.parts_of(cell, name, folder, reading.kind))
    item = replace(item, content=said.parts, system=said.system)
    locations = [medium.location for medium in item.media if medium.location]
    return replace(item, source=printable(shorten_data(locations[0]))) if locations else item


def _without(value: Any, steps: Sequence[str]) -> Any:
    """A struct without the media in it, and without bytes beside their path."""
    if not isinstance(value, Mapping):
        return value
    dropped = (steps[0], "bytes") if len(steps) == 1 else ()
    return {k: _without(v, steps[1:]) if k == steps[0] else v for k, v in value.items() if k not in dropped}


def failed_item(row_index: int, number: int, place: str, error: ParseError) -> Item:
    """A record that could not be read at all, as a row."""
    return Item(row_index, f"row {number}", place, failure=_at(place, error))


def _at(place: str, error: ParseError) -> Failure:
    return Failure(error.stage, error.type, f"{place}: {error}")


def _carried(record: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    carried = {name: record.get(name) for name in reading.choice.carried.names}
    for column in reading.choice.media:
        if len(column.steps) > 1 and column.steps[0] in carried:
            carried[column.steps[0]] = _without(carried[column.steps[0]], column.steps[1:])
    for name in reading.as_json:
        if carried.get(name) is not None:
            carried[name] = encodable(strict_json.dumps(carried[name]))
    return carried
