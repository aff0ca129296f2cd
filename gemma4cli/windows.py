"""A long video as windows, each of which is shown to the model by itself."""

from __future__ import annotations

from math import ceil, floor

from gemma4cli.speech.spans import Span

_LEAST = 0.25  # of a window: what is left at the end and is shorter belongs to the last whole one


def windows(start_s: float, end_s: float, length_s: float) -> tuple[Span, ...]:
    """Spans of `length_s` seconds from one time to another, in order and without gaps; the last may differ.

    It is at least a quarter as long, or up to a quarter longer.
    """
    count = (end_s - start_s) / length_s
    whole = floor(count) if count - floor(count) < _LEAST else ceil(count)
    starts = [start_s + i * length_s for i in range(max(1, whole))]
    return tuple(Span(a, b, False) for a, b in zip(starts, [*starts[1:], end_s], strict=True))
