"""Sound longer than the model hears at a time: where speech is, where to cut, and how the pieces' texts join.

    samples -> activity.measure -> spans.arrange -> spans -> (a model's answer each) -> stitch.join -> one transcript

`cut` and `hear` are the first half, `join` the second. Importing this package costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from gemma4cli.gemma import AUDIO_RATE
from gemma4cli.media.decoded import Audio
from gemma4cli.speech.spans import CutOptions, Span
from gemma4cli.speech.stitch import Piece, Segment, Transcript, join

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Samples = NDArray[np.float32]

__all__ = ["Cut", "CutOptions", "Piece", "Segment", "Span", "Transcript", "cut", "hear", "join"]


@dataclass(frozen=True, slots=True)
class Cut:
    """A sound as spans that the model can hear, which hold all speech in it; without speech there are none."""

    spans: tuple[Span, ...]
    duration_s: float


def cut(sound: Iterable[Samples], begins_s: float = 0.0, cutting: CutOptions | None = None) -> Cut:
    """Where to cut a sound so that each span is short enough for the model and all speech is in one.

    Args:
        sound: 16 kHz mono samples in pieces of any length. They are read once, in memory that does not grow with the
            sound's length but for 8 bytes each 32 ms.
        begins_s: the time of the first sample, from which spans count.
    """
    from gemma4cli.speech.activity import measure
    from gemma4cli.speech.spans import arrange

    activity = measure(sound)
    spans = arrange(activity, cutting or CutOptions())
    return Cut(
        tuple(replace(span, start_s=begins_s + span.start_s, end_s=begins_s + span.end_s) for span in spans),
        activity.duration_s,
    )


def hear(
    sound: Iterable[Samples], begins_s: float = 0.0, cutting: CutOptions | None = None, *, vad: bool = True
) -> Audio | Cut:
    """The sound itself where one span can hold it and somebody speaks in it, else how it is cut.

    `sound` is read once, and no more of it is held than a span can have. Without `vad`, silence is a sound too.
    """
    import numpy as np

    rest = iter(sound)
    longest = (cutting or CutOptions()).max_s
    begun: list[Samples] = []
    count = 0
    for part in rest:
        begun.append(part)
        count += len(part)
        if count > longest * AUDIO_RATE:
            return cut(chain(_taken(begun), rest), begins_s, cutting)
    samples = np.concatenate([np.zeros(0, np.float32), *begun])
    found = cut([samples], begins_s, cutting) if vad else None
    return Audio(samples, count / AUDIO_RATE) if found is None or found.spans else found


def _taken(parts: list[Samples]) -> Iterable[Samples]:
    """The parts in order, each let go as it is taken."""
    parts.reverse()
    while parts:
        yield parts.pop()
