"""What a manifest's cell says: a medium, an id, a prompt."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4cli.errors import ParseError
from gemma4cli.escaping import encodable, printable
from gemma4cli.inputs.columns import MediaColumn
from gemma4cli.inputs.files import is_uri, joined, shorten_data, unsupported_scheme
from gemma4cli.records import Kind, Media

_ADDRESS_KEYS = ("path", "url", "uri", "file", "file_name", "src")


def cell_at(record: Mapping[str, Any], steps: Sequence[str]) -> Any:
    """The value of a column or of a field inside it; None where it, or what holds it, is missing or null."""
    value: Any = record
    for step in steps:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def is_blank(cell: Any) -> bool:
    """Whether a cell names nothing at all: null, no text, no element, or a struct of nulls."""
    if isinstance(cell, Mapping):
        return all(cell.get(key) in (None, "") for key in ("bytes", *_ADDRESS_KEYS)) and cell.get("array") is None
    return cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, list) and not cell)


def blank_reason(record: Mapping[str, Any], column: MediaColumn) -> str:
    """Why a column gives no medium, in words."""
    cell = cell_at(record, column.steps)
    name = printable(column.name)
    if cell is None:
        return f"{name} is null" if column.steps[0] in record else f"there is no {name}"
    return f"{name} has neither bytes nor a path" if isinstance(cell, Mapping) else f"{name} is empty"


def media_of(cell: Any, column: MediaColumn, folder: str, kind: Kind | None) -> list[Media]:
    """The media that a cell names, in order.

    Args:
        cell: a path, a URI, bytes, a {bytes, path} struct, a medium as it is, or under a column of lists several of
            them.
        column: where it stands, for messages and for whether lists are allowed.
        folder: what relative paths are relative to.
        kind: what the media are, when that is known.

    Raises:
        ParseError: `wrong_type`, `bad_base64`, `unsupported_scheme`, or `no_media` for a gap in a list.
    """
    if isinstance(cell, list):
        if not column.many:
            raise ParseError("wrong_type", f"{printable(column.name)} holds a list, not one path")
        return [_medium(part, column, folder, kind) for part in cell]
    return [_medium(cell, column, folder, kind)]


def _medium(cell: Any, column: MediaColumn, folder: str, kind: Kind | None) -> Media:
    name = printable(column.name)
    if isinstance(cell, Media):
        return replace(cell, kind=kind)
    if isinstance(cell, bytes):
        return Media("", _not_empty(cell, name), kind)
    if isinstance(cell, Mapping):
        address = next((cell[key] for key in _ADDRESS_KEYS if cell.get(key) not in (None, "")), None)
        data = cell.get("bytes")
        if data is not None:
            # The bytes win; the path beside them is a name that may be wrong in any way.
            location = _location(address, folder) if isinstance(address, str) and "\0" not in address else ""
            return Media(location, _not_empty(_bytes(data, name), name), kind)
        if address is None and cell.get("array") is not None:
            raise ParseError("wrong_type", f"{name} holds decoded samples; it takes the file's bytes, or its path")
        cell = address
    if isinstance(cell, str) and cell.strip():
        scheme = unsupported_scheme(cell)
        if scheme is not None:
            message = f"{printable(cell)}: {scheme}:// cannot be read; use a path, http, https, data or a store's URI"
            raise ParseError("unsupported_scheme", message)
        return Media(_location(cell, folder), kind=kind)
    if is_blank(cell):
        raise ParseError("no_media", f"{name} has an empty element")
    raise ParseError("wrong_type", f"{name} holds {_worded(cell)}, not a path")


def _location(address: str, folder: str) -> str:
    return address if is_uri(address) or unsupported_scheme(address) else joined(folder, address)


def _bytes(data: Any, name: str) -> bytes:
    if isinstance(data, bytes):
        return data
    if not isinstance(data, str):
        raise ParseError("wrong_type", f"{name}.bytes holds {_worded(data)}, not bytes in base64")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParseError("bad_base64", f"{name}.bytes is not base64: {error}") from None


def _not_empty(data: bytes, name: str) -> bytes:
    if not data:
        raise ParseError("no_media", f"{name} holds 0 bytes")
    return data


def source_of(cell: Any, place: str) -> str:
    """What the user wrote for a medium, for people to read; the place in the manifest when that is bytes."""
    if isinstance(cell, list) and cell:
        cell = cell[0]
    if isinstance(cell, Mapping):
        cell = next((cell[key] for key in _ADDRESS_KEYS if cell.get(key) not in (None, "")), None)
    return printable(shorten_data(cell)) if isinstance(cell, str) and cell.strip() else place


def id_of(cell: Any, fallback: str) -> str:
    """An id as text: numbers as they are written, other values as JSON; the fallback for null and empty."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return fallback
    if isinstance(cell, str):
        return encodable(cell)
    if isinstance(cell, bytes):
        return encodable(cell.decode("utf-8", "surrogateescape"))
    if isinstance(cell, (bool, dict, list)):
        return json.dumps(cell, default=str)
    return str(cell)


def prompt_of(cell: Any, column: str) -> str | None:
    """A row's own prompt; None, which means the job's prompt, for null and empty.

    Raises:
        ParseError: the cell is not text.
    """
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return None
    if not isinstance(cell, str):
        raise ParseError("wrong_type", f"the prompt in {printable(column)} is {_worded(cell)}, not text")
    return encodable(cell)


def _worded(cell: Any) -> str:
    words = {bool: "a truth value", int: "a number", float: "a number", list: "a list", dict: "an object"}
    word = words.get(type(cell), f"a {type(cell).__name__}")
    shown = f" ({cell})" if isinstance(cell, (int, float)) and len(str(cell)) < 40 else ""
    return word + shown
