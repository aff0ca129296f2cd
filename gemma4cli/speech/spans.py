"""Spans that the model can hear, laid over the speech of a sound. Pure arithmetic on windows of 32 ms.

A span ends in a pause wherever one is in reach: among the pauses of its last third the longest, else of its middle
third, else of its first. Speech without a pause is cut where it is quietest, and the next span goes back over the
end of it, so that a word which the cut breaks is whole in one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING

from gemma4cli.gemma import AUDIO_RATE, MAX_AUDIO_SECONDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gemma4cli.speech.activity import Activity

WINDOW = 512
"""Samples that are judged at once, which is what the detector is made for."""
WINDOW_S = WINDOW / AUDIO_RATE

SHORTEST_S = 4.0
"""What the longest span of a sound may be set to, at least."""

_SECOND = 31  # windows
_OVERLAP_S = 3.0
_SETTLED = 2  # windows at the ends of a pause in which a word may still die away

Run = tuple[int, int]  # windows from, to


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a sound, in seconds. `overlaps_previous`: it begins before the last one ends, in running speech."""

    start_s: float
    end_s: float
    overlaps_previous: bool = False


@dataclass(frozen=True, slots=True)
class CutOptions:
    """What counts as speech and how long spans are; all in seconds but for the probabilities.

    max_s: length of a span, at most. margin_s: kept around speech. min_pause_s: shorter ones are part of a word.
    long_pause_s: never within a span, unless the whole sound fits in one. overlap_s: what two spans share where
    there is no pause, and up to 1 s more. begins, goes_on: the probability at which speech begins, and below which
    it ends. min_speech_s: shorter sounds are clicks. sure, sure_speech_s: between long pauses, speech counts only
    if some of it is as probable and long as this.

    Raises ValueError where spans are too short for their overlaps, or longer than the model hears.
    """

    max_s: float = float(MAX_AUDIO_SECONDS)
    margin_s: float = 0.5
    min_pause_s: float = 0.16
    long_pause_s: float = 3.0
    overlap_s: float = _OVERLAP_S
    begins: float = 0.3
    goes_on: float = 0.2
    min_speech_s: float = 0.09
    sure: float = 0.8
    sure_speech_s: float = 0.15

    def __post_init__(self) -> None:
        if not self.least_s <= self.max_s <= MAX_AUDIO_SECONDS:
            raise ValueError(f"the longest span is {self.least_s:g} to {MAX_AUDIO_SECONDS} s, not {self.max_s:g} s")

    @classmethod
    def up_to(cls, max_s: float) -> CutOptions:
        """Spans of at most so many seconds, from SHORTEST_S on; short ones have less to share."""
        return cls(max_s=max_s, overlap_s=min(_OVERLAP_S, 0.375 * max_s))

    @property
    def least_s(self) -> float:
        """What `max_s` is at least: a span that shares both its ends with others has some of its own too."""
        return self.overlap_s + 2.5


def arrange(activity: Activity, options: CutOptions) -> tuple[Span, ...]:
    """Spans in order that cover all speech of a sound; none where nobody speaks."""
    runs = speech_runs(activity.speech, options)
    total = len(activity.speech)
    margin = ceil(options.margin_s / WINDOW_S)
    chapters = _chapters(runs, max(ceil(options.long_pause_s / WINDOW_S), 2 * margin))
    chapters = [runs for runs in chapters if _is_sure(runs, activity.speech, options)]
    if chapters and activity.duration_s <= options.max_s:
        found = [(max(0, chapters[0][0][0] - margin), min(total, chapters[-1][-1][1] + margin), False)]
    else:
        found = [part for runs in chapters for part in _filled(runs, activity.level_db, options, margin, total)]
    return tuple(
        Span(round(start * WINDOW_S, 6), round(min(end * WINDOW_S, activity.duration_s), 6), overlaps)
        for start, end, overlaps in found
    )


def speech_runs(speech: NDArray[np.float32], options: CutOptions) -> list[Run]:
    """Where someone speaks, from the probability of it in each window."""
    pause, least = (ceil(s / WINDOW_S) for s in (options.min_pause_s, options.min_speech_s))
    runs: list[Run] = []
    start, quiet = -1, 0
    for index, probability in enumerate(speech.tolist()):
        if start < 0:
            if probability >= options.begins:
                start, quiet = index, 0
        elif probability >= options.goes_on:
            quiet = 0
        else:
            quiet += 1
            if quiet == pause:
                runs.append((start, index + 1 - quiet))
                start = -1
    if start >= 0:
        runs.append((start, len(speech) - quiet))
    return [run for run in runs if run[1] - run[0] >= least]


def _chapters(runs: Sequence[Run], long_pause: int) -> list[list[Run]]:
    """Runs of speech between pauses of at least `long_pause` windows."""
    chapters: list[list[Run]] = []
    for run in runs:
        if not chapters or run[0] - chapters[-1][-1][1] >= long_pause:
            chapters.append([])
        chapters[-1].append(run)
    return chapters


def _is_sure(runs: Sequence[Run], speech: NDArray[np.float32], options: CutOptions) -> bool:
    """Whether one run at least is beyond doubt. Music gives short faint runs now and then, and they stand alone."""
    least = ceil(options.sure_speech_s / WINDOW_S)
    return any(end - start >= least and speech[start:end].max() >= options.sure for start, end in runs)


def _filled(
    runs: Sequence[Run], level_db: NDArray[np.float32], options: CutOptions, margin: int, total: int
) -> Iterator[tuple[int, int, bool]]:
    """Spans over speech that no long pause interrupts, as windows from, to, and whether the span overlaps."""
    longest = int(options.max_s / WINDOW_S)
    overlap = ceil(options.overlap_s / WINDOW_S)
    start, stop = max(0, runs[0][0] - margin), min(total, runs[-1][1] + margin)
    pauses = [(a, b) for (_, a), (b, _) in pairwise(runs)]
    overlaps = False
    while stop - start > longest:
        pause = _best_pause(pauses, start, longest)
        if pause is None:
            end = _quietest(level_db, start + longest - _SECOND, start + longest)
            yield start, end, overlaps
            start, overlaps = _quietest(level_db, end - overlap - _SECOND, end - overlap), True
            continue
        begin, over = pause
        if over - begin >= 2 * margin:
            yield start, min(begin + margin, start + longest), overlaps
            start = over - margin
        else:
            end = _quietest(level_db, *_settled(begin, min(over, start + longest)))
            yield start, end, overlaps
            start = end
        overlaps = False
    yield start, stop, overlaps


def _best_pause(pauses: Sequence[Run], start: int, longest: int) -> Run | None:
    """The longest pause in the last third that has one; of a pause at the limit, what is before it counts."""
    limit = start + longest
    for third in (2, 1, 0):
        low, high = start + third * longest // 3, start + (third + 1) * longest // 3
        found = [
            (min(over, limit) - begin, begin, over)
            for begin, over in pauses
            if low <= begin < high and begin > start and min(over, limit) - begin > _SETTLED
        ]
        if found:
            _, begin, over = max(found)
            return begin, over
    return None


def _settled(begin: int, end: int) -> Run:
    """The inside of a pause, as far as it has one."""
    inset = min(_SETTLED, (end - begin - 1) // 2)
    return begin + inset, end - inset


def _quietest(level_db: NDArray[np.float32], low: int, high: int) -> int:
    """The border between windows, from `low` to `high`, around which it is quietest; of equals the middle one."""
    borders = range(max(1, low), min(high, len(level_db) - 1) + 1)
    around = [max(float(level_db[at - 1]), float(level_db[at])) for at in borders]
    least = min(around)
    quiet = [at for at, level in zip(borders, around, strict=True) if level <= least + 1.0]
    return quiet[len(quiet) // 2]
