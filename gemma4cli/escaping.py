"""Texts made fit to be printed, or to be written as UTF-8."""

from __future__ import annotations

import re
from typing import Any

# Control characters, line separators, bidirectional overrides and lone surrogates: whatever could break a line or
# a terminal. Joiners, which emoji are made of, stay.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8 (PEP 383)
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode("ascii")


def printable(text: str) -> str:
    """The text with everything escaped that could upset a terminal, a log line or UTF-8."""
    return text if text.isascii() and text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def first_line(error: BaseException, most: int | None = None) -> str:
    """The first line of what an error says, printable, of no more than `most` characters."""
    return printable(str(error).strip().split("\n")[0])[:most]


def encodable(text: str) -> str:
    """The text with lone surrogates escaped, so that it can be written as UTF-8; else unchanged."""
    return text if text.isascii() else _SURROGATES.sub(_escape, text)


def without_surrogates(value: Any) -> Any:
    """The value with the lone surrogates of all its texts escaped; JSON may name them, UTF-8 cannot."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(key): without_surrogates(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_surrogates(part) for part in value]
    return value
