"""When the frames of a video are shown, read from its packets, and which of them stand for the clip."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice, pairwise
from math import ceil
from typing import Any

import av.error

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import even_frames
from gemma4cli.media.options import MediaOptions

_INDEXED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
_OPENING = 64  # packets at the start of a stream, among which the frame that is shown first is
_REORDERED = 32  # twice as many frames as codecs store ahead of one that is shown sooner
_UNTIMED = ("avi",)  # stores no times of showing; those that ffmpeg makes up are wrong where frames are reordered


@dataclass(frozen=True, slots=True)
class Timeline:
    """When frames are shown, in units of `time_base`, ascending; `end` is where the last one ends.

    keys: the times among them at which decoding can start. timed: packets carry times of showing, else the times
    are those of decoding, and frames can only be counted.
    """

    times: tuple[int, ...]
    end: int
    keys: tuple[int, ...]
    time_base: Fraction
    timed: bool


def read_timeline(container: Any, stream: Any) -> Timeline:
    """Reads all packets of the stream, decoding none. Raises DecodeError `no_frames`."""
    shown: list[int] = []
    decoded: list[int] = []
    keys: list[int] = []
    end = 0
    for packet in packets(container, stream):
        if packet.size == 0 or packet.is_discard:
            continue
        timed = packet.pts is not None and container.format.name not in _UNTIMED
        time = packet.pts if timed else packet.dts
        if time is None:
            continue
        (shown if timed else decoded).append(time)
        end = max(end, time + (packet.duration or 0))
        if packet.is_keyframe and timed:
            keys.append(time)
    times = tuple(sorted({*shown, *decoded}))
    if not times:
        raise DecodeError("no_frames", "the video stream holds no frames")
    if end <= times[-1]:
        end = times[-1] + _step(times, stream)
    return Timeline(times, end, tuple(sorted(keys)), Fraction(stream.time_base), timed=not decoded)


def read_part(container: Any, stream: Any, start_s: float, end_s: float) -> Timeline | None:
    """The timeline of a part, with the clip's first frame before it, by a jump to where the part begins.

    None where the file has no index to jump by, or the jump does not lead there: then only the whole can be read.
    """
    if container.format.name not in _INDEXED or not stream.time_base:
        return None
    opening = [
        packet.pts
        for packet in islice(packets(container, stream), _OPENING)
        if packet.size and packet.pts is not None and not packet.is_discard
    ]
    if not opening:
        return None
    first, second = min(opening), 1 / Fraction(stream.time_base)
    start, stop = first + Fraction(start_s) * second, first + Fraction(end_s) * second
    container.seek(int(start), stream=stream, backward=True)
    shown: list[int] = []
    keys: list[int] = []
    end = past = 0
    for packet in packets(container, stream):
        if packet.size == 0 or packet.is_discard:
            continue
        if packet.pts is None:
            return None
        past = past + 1 if packet.pts >= stop else 0
        if past > _REORDERED:  # none that follows is shown sooner
            end = ceil(stop)
            break
        shown.append(packet.pts)
        end = max(end, packet.pts + (packet.duration or 0))
        if packet.is_keyframe:
            keys.append(packet.pts)
    if not keys or keys[0] > start:
        return None
    # What is shown before the first of these keys leans on frames that were not read.
    times = tuple(sorted({first, *(time for time in shown if time >= keys[0])}))
    container.seek(first, stream=stream, backward=True)
    return Timeline(times, max(end, times[-1] + 1), tuple(sorted({*keys})), Fraction(stream.time_base), timed=True)


def packets(container: Any, stream: Any) -> Iterator[Any]:
    """The stream's packets from where the container stands; a file that breaks off ends there."""
    demuxed = container.demux(stream)
    while True:
        try:
            packet = next(demuxed)
        except (StopIteration, av.error.FFmpegError, IndexError):  # the last where a damaged file brings a stream late
            return
        yield packet


def chosen_frames(times: Sequence[int], count: int) -> tuple[int, ...]:
    """Which frames are on show at `count` even moments, from the first frame's start on.

    times: when frames are shown, ascending, in any unit; the last is taken to last as long as the mean. At a constant
    rate these are the frames that the model's processor picks by index; at a variable rate a frame counts for as
    long as it is shown, and one that covers several moments is taken once. Up to `count` frames are all taken.
    """
    total = len(times)
    if total <= count:
        return even_frames(total, count)
    first, span = times[0], times[-1] - times[0]
    moments = (first + i * span * total // ((total - 1) * count) for i in range(count))
    return tuple(dict.fromkeys(bisect_right(times, moment) - 1 for moment in moments))


def frames_between(times: Sequence[int], end: int, second: Fraction | int, options: MediaOptions) -> tuple[int, ...]:
    """Which frames of a clip are taken: those of its part, evenly, or `options.fps` of them a second.

    Args:
        times: when frames are shown, ascending; `end` is where the last one ends; `second` is how many units one has.

    Where `fps` would come to more than `max_frames`, they are even ones after all, as the clip is to be seen whole.
    Raises DecodeError `no_frames` where nothing is shown in the part.
    """
    first = times[0]
    start = first if options.start_s is None else first + Fraction(options.start_s) * second
    stop = end if options.end_s is None else min(Fraction(end), first + Fraction(options.end_s) * second)
    low = max(0, bisect_right(times, start) - 1)  # on show when the part begins
    high = bisect_left(times, stop)
    if start >= end or low >= high:
        length = float((end - first) / Fraction(second))
        raise DecodeError("no_frames", f"the video is {length:.2f} s long; --start and --end leave nothing of it")
    part = times[low:high]
    if options.fps is not None:
        begin = max(Fraction(start), Fraction(part[0]))
        step = Fraction(second) / Fraction(options.fps)
        count = -(-(stop - begin) // step)
        if count <= options.max_frames:
            shown = (low + bisect_right(part, begin + i * step) - 1 for i in range(int(count)))
            return tuple(dict.fromkeys(shown))
    return tuple(low + index for index in chosen_frames(part, options.max_frames))


def _step(times: Sequence[int], stream: Any) -> int:
    """How long a frame is shown that nothing says it of: as long as most, else one at the stream's rate."""
    if len(times) > 1:
        steps = sorted(b - a for a, b in pairwise(times))
        return steps[len(steps) // 2]
    rate = stream.average_rate or stream.guessed_rate
    return round(1 / (rate * stream.time_base)) if rate else 0
