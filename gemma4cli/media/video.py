"""Even frames of a video, by its own clock, without ever holding more than those.

Two passes. The first reads packets only and learns when each frame is shown and where decoding can start. The second
decodes towards the chosen frames and jumps over what lies between where the file allows it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import av.error
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import VIDEO_BUDGET, even_frames, image_size
from gemma4cli.media.decoded import Video
from gemma4cli.media.options import MediaOptions


@dataclass(frozen=True, slots=True)
class _Timeline:
    """When frames are shown, in units of `time_base`, ascending; `end` is where the last one ends.

    keys: the times among them at which decoding can start. timed: packets carry times of showing, else the times
    are those of decoding, and frames can only be counted.
    """

    times: tuple[int, ...]
    end: int
    keys: tuple[int, ...]
    time_base: Fraction
    timed: bool


def decode_video(container: Any, stream: Any, options: MediaOptions) -> Video:
    """Decodes at most `options.max_frames` frames of an open container's video stream.

    Raises DecodeError with a type of `unsupported_codec` or `no_frames`.
    """
    _prepare(stream)
    timeline = _timeline(container, stream)
    wanted = chosen_frames(timeline.times, options.max_frames)
    times = [timeline.times[index] for index in wanted]
    picture = _Picture(options)
    shown: dict[int, NDArray[np.uint8]] = {}
    for time, frame in _frames_at(container, stream, timeline, times):
        shown[time] = picture.upright_rgb(frame)
    if not shown:
        raise DecodeError("no_frames", "the video stream holds no frame that can be decoded")
    first = timeline.times[0]
    duration = float((timeline.end - first) * timeline.time_base)
    total = len(timeline.times)
    return Video(
        frames=np.stack(list(shown.values())),
        times_s=tuple(float((time - first) * timeline.time_base) for time in shown),
        frame_indices=tuple(bisect_right(timeline.times, time) - 1 for time in shown),
        duration_s=duration,
        width=picture.width,
        height=picture.height,
        fps=total / duration if duration > 0 else float(stream.average_rate or 0),
        total_frames=total,
    )


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


def _prepare(stream: Any) -> None:
    try:
        codec = stream.codec_context
    except ValueError:
        codec = None
    if codec is None:
        raise DecodeError("unsupported_codec", "the video stream's codec is not known here")
    # Many files are decoded at once, each by a process of its own: more threads would only add memory.
    codec.thread_count = 1


def _timeline(container: Any, stream: Any) -> _Timeline:
    """Reads all packets of the stream, decoding none."""
    shown: list[int] = []
    decoded: list[int] = []
    keys: list[int] = []
    end = 0
    for packet in _packets(container, stream):
        if packet.size == 0 or packet.is_discard:
            continue
        time = packet.pts if packet.pts is not None else packet.dts
        if time is None:
            continue
        (shown if packet.pts is not None else decoded).append(time)
        end = max(end, time + (packet.duration or 0))
        if packet.is_keyframe and packet.pts is not None:
            keys.append(time)
    times = tuple(sorted({*shown, *decoded}))
    if not times:
        raise DecodeError("no_frames", "the video stream holds no frames")
    if end <= times[-1]:
        end = times[-1] + _step(times, stream)
    return _Timeline(times, end, tuple(sorted(keys)), Fraction(stream.time_base), timed=not decoded)


def _step(times: Sequence[int], stream: Any) -> int:
    """How long a frame is shown that nothing says it of: as long as most, else one at the stream's rate."""
    if len(times) > 1:
        steps = sorted(b - a for a, b in pairwise(times))
        return steps[len(steps) // 2]
    rate = stream.average_rate or stream.guessed_rate
    return round(1 / (rate * stream.time_base)) if rate else 0


def _packets(container: Any, stream: Any) -> Iterator[Any]:
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError):
            return  # a file that breaks off ends there
        yield packet


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    for packet in _packets(container, stream):
        try:
            yield from packet.decode()
        except av.error.FFmpegError:
            continue  # a broken packet costs its own frame
    try:
        yield from stream.codec_context.decode(None)  # what the decoder still holds where the file broke off
    except av.error.FFmpegError:
        return


def _frames_at(container: Any, stream: Any, timeline: _Timeline, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """For each wanted time, ascending, the frame on show then, with its own time."""
    if not timeline.timed:
        yield from _frames_counted(container, stream, timeline, frozenset(wanted))
        return
    jumps = True
    frames = _from(container, stream, timeline.times[0])
    shown: Any = None
    ahead: Any = next(frames, None)
    for time in wanted:
        key = timeline.keys[at - 1] if (at := bisect_right(timeline.keys, time)) else None
        if jumps and ahead is not None and key is not None and key > ahead.pts:
            frames = _from(container, stream, key)
            shown, ahead = None, next(frames, None)
            if ahead is None or ahead.pts > time:  # the file cannot jump: from its start, and never again
                jumps = False
                frames = _from(container, stream, timeline.times[0])
                ahead = next(frames, None)
        while ahead is not None and ahead.pts <= time:
            shown, ahead = ahead, next(frames, None)
        if shown is not None:
            yield shown.pts, shown


def _frames_counted(
    container: Any, stream: Any, timeline: _Timeline, wanted: frozenset[int]
) -> Iterator[tuple[int, Any]]:
    container.seek(0)
    last = max(wanted)
    for time, frame in zip(timeline.times, _decoded(container, stream), strict=False):
        if time in wanted:
            yield time, frame
        if time >= last:
            return


def _from(container: Any, stream: Any, time: int) -> Iterator[Any]:
    container.seek(time, stream=stream, backward=True)
    return (frame for frame in _decoded(container, stream) if frame.pts is not None)


class _Picture:
    """Turns decoded frames into upright RGB of one size, that of the first frame, scaled down where that is large."""

    def __init__(self, options: MediaOptions) -> None:
        self.width = 0
        self.height = 0
        self._options = options
        self._size = (0, 0)
        self._reformatter = VideoReformatter()

    def upright_rgb(self, frame: Any) -> NDArray[np.uint8]:
        transposed, flip_rows, flip_columns = _turns(frame)
        if not self.width:
            self.width, self.height = (frame.height, frame.width) if transposed else (frame.width, frame.height)
            if self.width * self.height > self._options.max_pixels:
                raise DecodeError("too_large", f"frames of {self.width}x{self.height}; --max-pixels raises the limit")
            self._size = kept_size(self.width, self.height, self._options.frame_scale)
        width, height = self._size
        if transposed:
            width, height = height, width
        rgb = self._reformatter.reformat(
            frame, width, height, "rgb24", interpolation=Interpolation.BICUBIC, threads=1
        ).to_ndarray()
        if transposed:
            rgb = rgb.transpose(1, 0, 2)
        return np.ascontiguousarray(rgb[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1])


def kept_size(width: int, height: int, scale: float) -> tuple[int, int]:
    """The size to keep upright frames at: no more than `scale` times the model's, and of as many tokens."""
    model = image_size(width, height, VIDEO_BUDGET)
    factor = max(model[0] * scale / width, model[1] * scale / height)
    for margin in (1.0, 1.02, 1.05, 1.1):
        size = (round(width * factor * margin), round(height * factor * margin))
        if size[0] >= width or size[1] >= height or min(size) < 1:
            break
        if image_size(*size, VIDEO_BUDGET) == model:
            return size
    return width, height


def _turns(frame: Any) -> tuple[bool, bool, bool]:
    """What makes a frame upright, from its display matrix: exchange rows and columns, then reverse either.

    The matrix maps stored x, y to shown x, y; whole quarter turns and mirrors are all that cameras write.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return False, False, False
    a, b, _, c, d = struct.unpack("=9i", bytes(data))[:5]
    if abs(b) + abs(c) > abs(a) + abs(d):
        return True, b < 0, c < 0
    return False, d < 0, a < 0
