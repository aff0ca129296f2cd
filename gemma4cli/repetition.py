"""Finds answers that go round in circles, which is how a language model that lost its thread runs to its limit."""

from __future__ import annotations

LEAST_REPEATS = 4
LEAST_SHARE = 0.5  # of the text, taken by the repeats at its end
LONGEST_UNIT = 400  # characters


def loops(text: str) -> bool:
    """Whether the text ends in one piece said over and over: at least four times, over half of the text.

    The last repeat may be cut short, as it is where the limit came.
    """
    reversed_text = text.rstrip()[::-1]
    for unit in range(1, min(LONGEST_UNIT, len(reversed_text) // LEAST_REPEATS) + 1):
        same = _run(reversed_text, unit)
        if same >= unit * LEAST_REPEATS and same >= LEAST_SHARE * len(reversed_text) and same >= 24:
            return True
    return False


def _run(text: str, period: int) -> int:
    """Length of the longest start of `text` that repeats with this period."""
    length = period
    while length < len(text) and text[length] == text[length - period]:
        length += 1
    return length
