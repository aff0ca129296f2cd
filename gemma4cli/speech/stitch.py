"""One transcript from the texts of a sound's pieces.

Where pieces overlap, words are said twice. They are found as the longest run that both texts share at the seam, and
the seam is laid through its middle: there, both pieces have heard some of what comes before and after.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

_MOST_WORDS_PER_S = 6.0  # of fast speech; limits where the run is looked for
_SCRIPTS_WITHOUT_SPACES = (
    "\u2e80-\u30ff\u3130-\u318f\u31a0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}]|[^\s{_SCRIPTS_WITHOUT_SPACES}]+")
_UNSPACED = re.compile(rf"[{_SCRIPTS_WITHOUT_SPACES}\u3000-\u303f\uff00-\uff65]")


@dataclass(frozen=True, slots=True)
class Piece:
    """What was heard in one span. tokens: of the answer. overlaps_previous: the span begins before the last ends."""

    start_s: float
    end_s: float
    text: str
    tokens: int = 0
    overlaps_previous: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a transcript. Its times are those of the cuts, not of the words. `tokens` counts the whole answer."""

    start_s: float
    end_s: float
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Transcript:
    """A sound's text, and the segments that it was heard in; they do not overlap."""

    text: str
    segments: tuple[Segment, ...]


def join(pieces: Sequence[Piece]) -> Transcript:
    """Puts pieces, in order, together: with a space at pauses, and with words heard twice kept once at overlaps.

    Pieces that overlap meet in the middle of what they share. Pieces without text leave no segment.
    """
    texts = [" ".join(piece.text.split()) for piece in pieces]
    starts = [piece.start_s for piece in pieces]
    ends = [piece.end_s for piece in pieces]
    for index in range(1, len(pieces)):
        shared_s = ends[index - 1] - starts[index]
        if not pieces[index].overlaps_previous or shared_s <= 0:
            continue
        share = shared_s / max(pieces[index].end_s - pieces[index].start_s, shared_s)
        texts[index - 1], texts[index] = _seamed(texts[index - 1], texts[index], shared_s, share)
        starts[index] = ends[index - 1] = starts[index] + shared_s / 2
    segments = tuple(
        Segment(start, end, text, piece.tokens)
        for start, end, text, piece in zip(starts, ends, texts, pieces, strict=True)
        if text
    )
    return Transcript(spaced([segment.text for segment in segments]), segments)


def _seamed(before: str, after: str, shared_s: float, share: float) -> tuple[str, str]:
    """Both texts, cut at the middle of the words that they share; unchanged where there are none."""
    first, second = list(_WORD.finditer(before)), list(_WORD.finditer(after))
    reach = int(shared_s * _MOST_WORDS_PER_S) + 2
    expected = min(share * len(second), reach)
    offset = max(0, len(first) - reach)
    found = _shared_run(
        [_bare(word[0]) for word in first[offset:]], [_bare(word[0]) for word in second[:reach]], expected
    )
    if found is None:
        return before, after
    at, there, length = found
    keep = length - length // 2
    end = first[offset + at + keep - 1].end()
    begin = second[there + keep].start() if there + keep < len(second) else len(after)
    return before[:end].rstrip(), after[begin:]


def _shared_run(tail: Sequence[str], head: Sequence[str], expected: float) -> tuple[int, int, int] | None:
    """The run of words that `tail` and `head` share, one of which may differ: (place in tail, in head, length).

    A run counts for its words, and against it what it leaves over at the seam: words after it in `tail`, or before
    it in `head`, are at most fragments. Of repeated words, as many are shared as the overlap's length lets expect.
    """
    best: tuple[float, tuple[int, int, int]] | None = None
    for at in range(len(tail)):
        for there in range(len(head)):
            wrong = 0
            for length in range(1, min(len(tail) - at, len(head) - there) + 1):
                wrong += tail[at + length - 1] != head[there + length - 1]
                if wrong > 1:
                    break
                left_over = len(tail) - at - length + there
                right = length - wrong
                if right < 2 and (wrong or left_over):
                    continue
                if wrong and right < 3:
                    continue
                score = right - 2 * wrong - left_over - 0.5 * abs(length + left_over - expected)
                if best is None or score > best[0]:
                    best = score, (at, there, length)
    return best and best[1]


def _bare(word: str) -> str:
    """The word as it is compared: without case, punctuation and accents of its coding."""
    folded = unicodedata.normalize("NFKC", word).casefold()
    return "".join(char for char in folded if char.isalnum() or unicodedata.category(char).startswith("M")) or folded


def spaced(texts: Sequence[str]) -> str:
    """The texts with a space between them, but for scripts that are written without."""
    joined = ""
    for text in texts:
        unspaced = joined and _UNSPACED.match(joined[-1]) and _UNSPACED.match(text[0])
        joined += text if not joined or unspaced else f" {text}"
    return joined
