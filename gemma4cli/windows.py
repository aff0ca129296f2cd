"""A long video as windows, each of which is shown to the model by itself, and what they come to together."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor

from gemma4cli.speech.spans import Span
from gemma4cli.speech.stitch import Segment, spaced

_LEAST = 0.25  # of a window: what is left at the end and is shorter belongs to the last whole one
_AT_ONCE = 12_000  # bytes of text that are summed up in one go: up to 4,000 tokens, half the context of the engine


def windows(start_s: float, end_s: float, length_s: float) -> tuple[Span, ...]:
    """Spans of `length_s` seconds from one time to another, in order and without gaps; the last may differ.

    It is at least a quarter as long, or up to a quarter longer.
    """
    count = (end_s - start_s) / length_s
    whole = floor(count) if count - floor(count) < _LEAST else ceil(count)
    starts = [start_s + i * length_s for i in range(max(1, whole))]
    return tuple(Span(a, b, False) for a, b in zip(starts, [*starts[1:], end_s], strict=True))


def said_in(said: Sequence[Segment], spans: Sequence[Span]) -> list[Segment]:
    """What was said in each window. Sound is cut where speakers pause: a part belongs to where most of it lies."""
    texts: list[list[str]] = [[] for _ in spans]
    for segment in said:
        middle = (segment.start_s + segment.end_s) / 2
        place = next((i for i, span in enumerate(spans) if middle < span.end_s), len(spans) - 1)
        texts[place].append(segment.text)
    return [Segment(span.start_s, span.end_s, spaced(text), 0) for span, text in zip(spans, texts, strict=True)]


def listed(texts: Sequence[str], spans: Sequence[Span], said: Sequence[Segment] | None) -> list[str]:
    """A line for each window: its times, what was seen in it, and what was said."""
    lines = []
    for i, (text, span) in enumerate(zip(texts, spans, strict=True)):
        words = f' What is said: "{said[i].text}"' if said is not None and said[i].text else ""
        lines.append(f"{_clock(span.start_s)} to {_clock(span.end_s)}: {' '.join(text.split())}{words}")
    return lines


def groups(lines: Sequence[str], most: int = _AT_ONCE) -> list[list[int]]:
    """Which lines are summed up together, in order: of `most` bytes where that leaves two lines to each group."""
    found: list[list[int]] = [[]]
    size = 0
    for i, line in enumerate(lines):
        length = len(line.encode(errors="surrogatepass"))
        if len(found[-1]) >= 2 and size + length > most and len(lines) - i >= 2:
            found.append([])
            size = 0
        found[-1].append(i)
        size += length
    return found


def _clock(seconds: float) -> str:
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60:02}:{rest % 60:02}"
