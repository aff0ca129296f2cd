"""Even frames of a video, by its own clock, without ever holding more than those.

Two passes. The first reads packets only and learns when each frame is shown and where decoding can start. The second
decodes towards the chosen frames and jumps over what lies between where the file allows it. On the way it leaves out
frames that no other is made from, which are half of all where there are B frames, and costs no pixel.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from typing import Any

import av.error
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import VIDEO_BUDGET, image_size
from gemma4cli.media.container import refuse_endless
from gemma4cli.media.decoded import Video
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.timeline import Timeline, frames_between, packets, read_part, read_timeline

_SPARED = ("h264", "hevc")
_STREAMED = ("mpegts", "mpeg")  # no index: a jump lands about where it should, even a jump to the start


def decode_video(container: Any, stream: Any, options: MediaOptions) -> Video:
    """Decodes at most `options.max_frames` frames of an open container's video stream.

    Raises DecodeError with a type of `unsupported_codec`, `too_large` or `no_frames`.
    """
    prepare(stream, options)
    timeline = None
    if options.part_only and options.start_s is not None and options.end_s is not None:
        timeline = read_part(container, stream, options.start_s, options.end_s)
    timeline = timeline or read_timeline(container, stream)
    first = timeline.times[0]
    duration = float((timeline.end - first) * timeline.time_base)
    refuse_endless(duration, options)
    wanted = frames_between(timeline.times, timeline.end, 1 / timeline.time_base, options)
    times = [timeline.times[index] for index in wanted]
    picture = _Picture(options)
    try:
        shown = _shown(container, stream, timeline, times, picture, spare=_can_spare(stream, timeline))
    except _MissedError:
        shown = _shown(container, stream, timeline, times, picture, spare=False)
    if not shown:
        raise DecodeError("no_frames", "the video stream holds no frame that can be decoded")
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


def video_length(container: Any, stream: Any, options: MediaOptions) -> float:
    """Seconds from the first frame to the end of the last, without decoding any. Raises as `decode_video` does."""
    prepare(stream, options)
    timeline = read_timeline(container, stream)
    duration = float((timeline.end - timeline.times[0]) * timeline.time_base)
    refuse_endless(duration, options)
    return duration


def prepare(stream: Any, options: MediaOptions) -> None:
    """Raises DecodeError with a type of `unsupported_codec` or `too_large`, by the header."""
    try:
        codec = stream.codec_context
    except ValueError:
        codec = None
    if codec is None:
        raise DecodeError("unsupported_codec", "the video stream's codec is not known here")
    _refuse_large(codec.width, codec.height, options)
    # Many files are decoded at once, each by a process of its own: more threads would only add memory.
    codec.thread_count = 1


def _refuse_large(width: int, height: int, options: MediaOptions) -> None:
    if width * height > options.max_pixels:
        raise DecodeError(
            "too_large",
            f"frames of {width}x{height}, over the limit of {options.max_pixels / 1e6:,.0f} megapixels; "
            "--max-pixels raises it",
        )


class _MissedError(Exception):
    """A frame did not come out as it would have, had all been decoded."""


def _can_spare(stream: Any, timeline: Timeline) -> bool:
    """Whether a decoder can be told to leave out what nothing refers to, and tells it rightly.

    Where a file is damaged all is decoded, for what is made up in place of a frame may depend on any before it. Not all
    damage to HEVC is noticed, and what is made up may then be other than it would have been.
    """
    codec = stream.codec_context
    if not timeline.timed or codec.name not in _SPARED:
        return False
    if codec.name == "h264":
        return True
    # With several temporal layers, HEVC calls frames unreferred to that higher layers refer to. The header of MP4 and
    # Matroska says how many layers there are.
    header = codec.extradata or b""
    return len(header) > 22 and header[0] == 1 and header[21] >> 3 & 7 == 1


def _shown(
    container: Any, stream: Any, timeline: Timeline, times: Sequence[int], picture: _Picture, *, spare: bool
) -> dict[int, NDArray[np.uint8]]:
    shown: dict[int, NDArray[np.uint8]] = {}
    for time, frame in _frames_at(container, stream, timeline, times, spare):
        if time not in shown:  # a frame that could not be decoded leaves the one before it on show
            shown[time] = picture.upright_rgb(frame)
    return shown


def _decoded(container: Any, stream: Any, wanted: Set[int] | None = None) -> Iterator[Any]:
    """Frames in the order of showing. wanted: times of those that must be among them, with what they are made from."""
    codec = stream.codec_context
    near = True
    for packet in packets(container, stream):
        due = wanted is None or packet.pts is None or packet.pts in wanted
        # The second field of a picture may come in a packet of its own.
        codec.skip_frame = "DEFAULT" if due or near else "NONREF"
        near = due
        try:
            for frame in packet.decode():
                if wanted is not None and frame.is_corrupt:
                    raise _MissedError
                yield frame
        except av.error.FFmpegError as error:
            if wanted is not None:  # what is made up for it may depend on any frame before
                raise _MissedError from error
            continue  # a broken packet costs its own frame
    try:
        yield from codec.decode(None)  # what the decoder still holds where the file broke off
    except av.error.FFmpegError:
        return


def _frames_at(
    container: Any, stream: Any, timeline: Timeline, wanted: Sequence[int], spare: bool
) -> Iterator[tuple[int, Any]]:
    """For each wanted time, ascending, the frame on show then, with its own time.

    spare: decode what these frames take and no more. Raises _MissedError where one of them does not come.
    """
    if not timeline.timed:
        yield from _frames_counted(container, stream, timeline, frozenset(wanted))
        return
    jumps = container.format.name not in _STREAMED
    needed = frozenset(wanted) if spare else None
    frames = _from_start(container, stream, timeline, needed)
    shown: Any = None
    ahead: Any = next(frames, None)
    for time in wanted:
        key = timeline.keys[at - 1] if (at := bisect_right(timeline.keys, time)) else None
        if jumps and ahead is not None and key is not None and key > ahead.pts:
            frames = _from(container, stream, timeline, key, needed)
            shown, ahead = None, next(frames, None)
            if ahead is None or ahead.pts > time:  # the file cannot jump: from its start, and never again
                jumps = False
                frames = _from_start(container, stream, timeline, needed)
                ahead = next(frames, None)
        while ahead is not None and ahead.pts <= time:
            shown, ahead = ahead, next(frames, None)
        if spare and (shown is None or shown.pts != time):
            raise _MissedError
        if shown is not None:
            yield shown.pts, shown


def _frames_counted(
    container: Any, stream: Any, timeline: Timeline, wanted: frozenset[int]
) -> Iterator[tuple[int, Any]]:
    container.seek(0, unsupported_byte_offset=container.format.name in _STREAMED)
    last = max(wanted)
    for time, frame in zip(timeline.times, _decoded(container, stream), strict=False):
        if time in wanted:
            yield time, frame
        if time >= last:
            return


def _from_start(container: Any, stream: Any, timeline: Timeline, wanted: Set[int] | None) -> Iterator[Any]:
    if container.format.name not in _STREAMED:
        return _from(container, stream, timeline, timeline.times[0], wanted)
    container.seek(0, unsupported_byte_offset=True)
    return _with_times(container, stream, timeline, wanted)


def _from(container: Any, stream: Any, timeline: Timeline, time: int, wanted: Set[int] | None) -> Iterator[Any]:
    container.seek(time, stream=stream, backward=True)
    return _with_times(container, stream, timeline, wanted)


def _with_times(container: Any, stream: Any, timeline: Timeline, wanted: Set[int] | None) -> Iterator[Any]:
    first = timeline.times[0]
    return (frame for frame in _decoded(container, stream, wanted) if frame.pts is not None and frame.pts >= first)


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
            _refuse_large(self.width, self.height, self._options)
            self._size = self._kept_size()
        width, height = self._size
        if transposed:
            width, height = height, width
        rgb = self._reformatter.reformat(
            frame, width, height, "rgb24", interpolation=Interpolation.BICUBIC, threads=1
        ).to_ndarray()
        if transposed:
            rgb = rgb.transpose(1, 0, 2)
        upright: NDArray[np.uint8] = np.ascontiguousarray(rgb[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1])
        return shrunk(upright, self.width, self.height) if self._options.exact_frames else upright

    def _kept_size(self) -> tuple[int, int]:
        if self._options.exact_frames:
            return self.width, self.height
        return kept_size(self.width, self.height, self._options.frame_scale)


def shrunk(frame: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """A frame of a video of this size as the model sees it, where that is smaller."""
    from gemma4cli.media.resize import resized

    model = image_size(width, height, VIDEO_BUDGET)
    return resized(frame, *model) if model[0] * model[1] < width * height else frame


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
