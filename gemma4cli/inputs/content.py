"""Content in the form of OpenAI's chat messages -> media and texts in order: a list of parts, or whole messages.

    {"type": "text", "text": ...}
    {"type": "input_audio", "input_audio": {"data": <base64>, "format": ...}}
    {"type": "image_url" | "audio_url" | "video_url", <the same>: {"url": ...} or a URL}
    {"type": "image" | "audio" | "video", "url" | "path" | <the same>: ...}

A URL is a path relative to the manifest, or a file:, http:, https: or data: URI. A bare text is a text part.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma4cli.errors import ParseError
from gemma4cli.escaping import encodable, printable
from gemma4cli.inputs.cells import media_of
from gemma4cli.inputs.columns import MediaColumn
from gemma4cli.records import Kind, Media

_TEXTS = ("text", "input_text")
_SYSTEM = ("system", "developer")
_KINDS = {
    "image_url": Kind.IMAGE,
    "input_image": Kind.IMAGE,
    "image": Kind.IMAGE,
    "audio_url": Kind.AUDIO,
    "input_audio": Kind.AUDIO,
    "audio": Kind.AUDIO,
    "video_url": Kind.VIDEO,
    "input_video": Kind.VIDEO,
    "video": Kind.VIDEO,
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a row says: its user turn, and its system prompt if it has one."""

    parts: tuple[Media | str, ...]
    system: str | None = None


def messages_of(cell: Any, name: str, folder: str, kind: Kind | None) -> Conversation:
    """The messages in a cell: system messages, then one user's.

    Args:
        name: of the column, for messages to people.
        folder: what relative paths are relative to.
        kind: what every medium is to the task; None lets the parts say.

    Raises:
        ParseError: `no_messages`, `unsupported_messages`, and what `parts_of` raises.
    """
    name = printable(name)
    if not isinstance(cell, list) or not cell:
        raise ParseError("no_messages", f"{name} holds no list of messages")
    system: list[str] = []
    parts: tuple[Media | str, ...] | None = None
    for number, message in enumerate(cell, 1):
        role = message.get("role") if isinstance(message, Mapping) else None
        content = message.get("content") if isinstance(message, Mapping) else None
        place = f"message {number} of {name}"
        if role in _SYSTEM and parts is None:
            said = parts_of(content, place, folder, kind)
            if any(isinstance(part, Media) for part in said):
                raise ParseError("unsupported_messages", f"{place}: a system message holds text alone")
            system += [part for part in said if isinstance(part, str)]
        elif role == "user" and parts is None:
            parts = parts_of(content, place, folder, kind)
        else:
            raise ParseError(
                "unsupported_messages",
                f"{place} has the role {printable(str(role))}; a row is system messages and then one user's",
            )
    if parts is None:
        raise ParseError("no_messages", f"{name} holds no user's message")
    return Conversation(parts, "\n".join(system) or None)


def parts_of(cell: Any, name: str, folder: str, kind: Kind | None) -> tuple[Media | str, ...]:
    """The parts in a cell, in order: a text, or a list of texts and of parts with a type.

    Raises:
        ParseError: `no_content`, `unsupported_part`, and what `cells.media_of` raises.
    """
    if isinstance(cell, str) and cell.strip():
        return (encodable(cell),)
    if not isinstance(cell, list) or not cell:
        raise ParseError("no_content", f"{name} is empty")
    return tuple(_part(part, f"part {number} of {name}", folder, kind) for number, part in enumerate(cell, 1))


def _part(part: Any, place: str, folder: str, kind: Kind | None) -> Media | str:
    if isinstance(part, str):
        return encodable(part)
    type_ = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(type_, str):
        raise ParseError("unsupported_part", f"{place} has no type")
    if type_ in _TEXTS:
        text = part.get("text")
        if not isinstance(text, str):
            raise ParseError("unsupported_part", f"{place} is called text and has none")
        return encodable(text)
    if type_ not in _KINDS:
        shown = printable(type_[:40])
        raise ParseError(
            "unsupported_part",
            f"{place} is of the type {shown}; text, image_url, input_audio, audio_url and video_url work",
        )
    value = part.get(type_) or part.get(f"{_KINDS[type_]}_url")
    if value is None:
        value = {key: found for key, found in part.items() if key != "type"}
    column = MediaColumn(place, (place,), _KINDS[type_], False)
    found = kind or column.kind
    if isinstance(value, Mapping) and isinstance(value.get("data"), str):
        return Media("", _decoded(value["data"], place), found)
    (medium,) = media_of(value, column, folder, found)
    return medium


def _decoded(text: str, place: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParseError("bad_base64", f"the data of {place} are not base64: {error}") from None
    if not data:
        raise ParseError("no_media", f"{place} holds 0 bytes")
    return data
