"""A pattern of --regex as vLLM's grammars have to be told it, for they read some of it otherwise than Python does.

xgrammar takes `\\A` and `\\Z` for the letters, and lets `.` be the end of a line. An answer is matched as a whole, so
the former are left out; the latter is written out.
"""

from __future__ import annotations

import re

_ANCHORS = (r"\A", r"\Z")
_OTHER_DOT = re.compile(r"\(\?[a-zA-Z]*[sx]")  # flags that make . something else, or blanks nothing
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)  # an escape, a class, or a character


def for_grammar(regex: str) -> str:
    """The pattern that takes the same whole texts."""
    if _OTHER_DOT.search(regex):
        return regex
    return "".join("" if each in _ANCHORS else r"[^\n]" if each == "." else each for each in _PIECE.findall(regex))
