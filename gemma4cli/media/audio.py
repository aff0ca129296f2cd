"""The sound of a file as 16 kHz mono samples: all of it, a span, or piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from math import ceil, gcd
from typing import Any

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import AUDIO_RATE, MIN_AUDIO_SAMPLES
from gemma4cli.media.container import open_container, refuse_endless, video_stream
from gemma4cli.media.decoded import Audio
from gemma4cli.media.fetch import fetch
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.samples import GAP_S, MOST_SILENCE_S, Sound, frames_of, has_exact_times, mono, resampled
from gemma4cli.media.sniff import sniff
from gemma4cli.records import Kind, Media

_EXTRA_S = 1.0  # decoded past the limit, so that the caller sees that the sound goes on
_PREROLL_S = 1.5  # decoded before a span: codecs build on what came before
_SETTLE_S = 0.25  # resampled before a span: the filter needs a past
_SEEK_FROM_S = 5.0  # a span that begins sooner is reached without a jump
_ROUNDING_S = 0.0011  # Matroska rounds times to the millisecond


def decode_audio(
    container: Any, options: MediaOptions, start_s: float | None = None, end_s: float | None = None
) -> Audio:
    """Decodes the sound track of an open container: channels averaged, then resampled.

    Of a video, it begins with its pictures: there is silence where they are shown first.

    Broken packets are passed over; a header's length is never believed. Samples that are not finite become 0.
    With a span, the samples are those that a whole decode has there, and `duration_s` is their length.
    Raises DecodeError with a type of `no_audio_stream`, `unsupported_codec`, `no_samples` or `too_short`.
    """
    stream = audio_stream(container)
    limit = None if options.max_audio_s is None else int((options.max_audio_s + _EXTRA_S) * AUDIO_RATE)
    parts: list[NDArray[np.float32]] = []
    count = 0
    for part in _span(container, stream, start_s, end_s, options.channel):
        parts.append(part)
        count += len(part)
        if limit is not None and count > limit:
            break
    _refuse_short(count, start_s)
    duration_s = count / AUDIO_RATE
    if limit is not None and count > limit and start_s is None and end_s is None:
        duration_s = max(duration_s, declared_s(container, stream))
    return Audio(np.concatenate(parts)[:limit], duration_s)


def stream_audio(media: Media, options: MediaOptions) -> Iterator[NDArray[np.float32]]:
    """The samples of a medium's sound, or of its span, piece by piece: however long it is, little is in memory.

    `options.max_audio_s` does not count here. Raises FetchError, and what `load` and `decode_audio` raise.
    """
    with fetch(media, options) as file:
        content = sniff(file)
        if content.kind is Kind.IMAGE:
            raise DecodeError("wrong_kind", f"this is {content.name}, an image, where a sound is needed")
        with open_container(file, content.name) as container:
            count = 0
            for part in _span(container, audio_stream(container), media.start_s, media.end_s, options.channel):
                count += len(part)
                refuse_endless(count / AUDIO_RATE, options)
                yield part
            _refuse_short(count, media.start_s)


def _refuse_short(count: int, start_s: float | None) -> None:
    if not count and start_s:
        raise DecodeError("no_samples", f"the sound track ends before {start_s:g} s")
    if not count:
        raise DecodeError("no_samples", "the sound track holds no samples that can be decoded")
    if count < MIN_AUDIO_SAMPLES:
        raise DecodeError(
            "too_short", f"{count / AUDIO_RATE * 1000:.1f} ms of sound; the model hears nothing under 10.1 ms"
        )


def audio_stream(container: Any) -> Any:
    """The sound track that players take: of those with a known codec the one marked as default, else the first.

    Raises DecodeError with a type of `no_audio_stream` or `unsupported_codec`.
    """
    tracks = container.streams.audio
    if not tracks:
        raise DecodeError("no_audio_stream", "the file has no sound track")
    known = [track for track in tracks if _has_known_codec(track)]
    if not known:
        raise DecodeError("unsupported_codec", "the sound track's codec is not known here")
    return next((track for track in known if track.disposition & av.stream.Disposition.default), known[0])


def _has_known_codec(stream: Any) -> bool:
    try:
        return stream.codec_context is not None
    except ValueError:
        return False


def _span(
    container: Any, stream: Any, start_s: float | None, end_s: float | None, channel: str
) -> Iterator[NDArray[np.float32]]:
    """16 kHz samples of the span in pieces; decoding stops where the span does."""
    start = max(0, round((start_s or 0) * AUDIO_RATE))
    end = None if end_s is None else round(end_s * AUDIO_RATE)
    frames = frames_of(container, stream)
    first = next(frames, None)
    if first is None:
        return
    late = round(_late_s(container, stream, first) * AUDIO_RATE)
    for at in range(start, late if end is None else min(late, end), AUDIO_RATE):
        yield np.zeros(min(AUDIO_RATE, late - at, *([] if end is None else [end - at])), np.float32)
    start, end = max(0, start - late), None if end is None else end - late
    at, sound = _near(container, stream, first, frames, start / AUDIO_RATE, channel)
    for part in resampled(sound):
        if end is not None and at >= end:
            return
        kept = part[max(0, start - at) : None if end is None else end - at]
        at += len(part)
        if len(kept):
            yield kept


def _late_s(container: Any, stream: Any, first: Any) -> float:
    """How long the pictures of a video are shown before its sound begins, so that both have the same times."""
    video = video_stream(container)
    if video is None or video.start_time is None or first.pts is None:
        return 0.0
    late = float(first.pts * stream.time_base - video.start_time * video.time_base)
    return late if GAP_S < late <= MOST_SILENCE_S else 0.0


def _near(
    container: Any, stream: Any, first: Any, others: Iterator[Any], start_s: float, channel: str
) -> tuple[int, Sound]:
    """Sound from a point before `start_s` on, and that point in samples of 16 kHz.

    `first` and `others` are all of its frames.
    """
    rate = first.sample_rate
    if start_s < _SEEK_FROM_S or not has_exact_times(container, stream) or first.pts is None or rate <= 0:
        return 0, mono(chain([first], others), container, stream, channel)
    container.seek(first.pts + int((start_s - _PREROLL_S) / stream.time_base), stream=stream, backward=True)
    frames = frames_of(container, stream)
    frame = next(frames, None)
    if frame is not None and frame.pts is not None and frame.sample_rate == rate:
        position = _position(frame, first, stream)
        # Resampling starts where a source sample and a 16 kHz sample coincide.
        step = rate // gcd(rate, AUDIO_RATE)
        begin = ceil((start_s - _SETTLE_S) * rate / step) * step
        if 0 <= position <= begin:
            sound = _after(mono(chain([frame], frames), container, stream, channel), begin - position)
            return begin * AUDIO_RATE // rate, sound
    container.seek(first.pts, stream=stream, backward=True)
    return 0, mono(frames_of(container, stream), container, stream, channel)


def _position(frame: Any, first: Any, stream: Any) -> int:
    """How many samples the stream holds before `frame`.

    Frames of one length stand on a grid, which makes up for timestamps that are coarser than samples.
    """
    exact: Fraction = Fraction(stream.time_base) * (frame.pts - first.pts) * frame.sample_rate
    length: int = stream.codec_context.frame_size or frame.samples
    gridded = first.samples + round((exact - first.samples) / length) * length
    return gridded if abs(gridded - exact) <= _ROUNDING_S * frame.sample_rate else round(exact)


def _after(sound: Sound, skipped: int) -> Sound:
    """The sound without its first samples."""
    for rate, samples in sound:
        kept = samples[skipped:]
        skipped = max(0, skipped - len(samples))
        if len(kept):
            yield rate, kept


def declared_s(container: Any, stream: Any) -> float:
    """Seconds that the header promises, as far as the file's size bears it out; 0 where it says nothing."""
    declared = 0.0
    if stream.duration and stream.time_base:
        declared = float(stream.duration * stream.time_base)
    elif container.duration:
        declared = container.duration / av.time_base
    if stream.bit_rate and container.size > 0:
        declared = min(declared, container.size * 8 / stream.bit_rate)
    return declared
