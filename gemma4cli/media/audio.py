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
import soxr
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.flag_values import MIX
from gemma4cli.gemma import AUDIO_RATE, MIN_AUDIO_SAMPLES
from gemma4cli.media.container import open_container, refuse_endless
from gemma4cli.media.decoded import Audio
from gemma4cli.media.fetch import fetch
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.sniff import sniff
from gemma4cli.media.timeline import packets
from gemma4cli.records import Kind, Media

_EXTRA_S = 1.0  # decoded past the limit, so that the caller sees that the sound goes on
_CHUNK = 1 << 16  # source samples that are mixed and resampled at once
_LOUDEST = 1e6
_SAMPLES = {"u8p": "u1", "s16p": "i2", "s32p": "i4", "s64p": "i8", "fltp": "f4", "dblp": "f8"}
_FULL_SCALE = {"u1": 128.0, "i2": 32768.0, "i4": 2147483648.0, "i8": 9223372036854775808.0}

# Containers whose timestamps are exact after a jump. In the others, a span is reached by decoding up to it.
_EXACT = frozenset({"flac", "mp3", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "ogg"})
_EXACT_PCM = frozenset({"wav", "w64", "aiff", "caf"})  # with blocks of ADPCM they are not
_PREROLL_S = 1.5  # decoded before a span: codecs build on what came before
_SETTLE_S = 0.25  # resampled before a span: the filter needs a past
_SEEK_FROM_S = 5.0  # a span that begins sooner is reached without a jump
_ROUNDING_S = 0.0011  # Matroska rounds times to the millisecond
_GAP_S, _MOST_SILENCE_S = 0.01, 3600.0  # a jump in the timestamps is silence; past an hour of it, a mistake

Sound = Iterator[tuple[int, NDArray[np.float32]]]  # (rate, samples) piece by piece


def decode_audio(
    container: Any, options: MediaOptions, start_s: float | None = None, end_s: float | None = None
) -> Audio:
    """Decodes the first audio stream of an open container: channels averaged, then resampled.

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
    """The first audio stream. Raises DecodeError with a type of `no_audio_stream` or `unsupported_codec`."""
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        raise DecodeError("no_audio_stream", "the file has no sound track")
    try:
        if stream.codec_context is None:
            raise ValueError
    except ValueError as error:
        raise DecodeError("unsupported_codec", "the sound track's codec is not known here") from error
    return stream


def _span(
    container: Any, stream: Any, start_s: float | None, end_s: float | None, channel: str
) -> Iterator[NDArray[np.float32]]:
    """16 kHz samples of the span in pieces; decoding stops where the span does."""
    start = max(0, round((start_s or 0) * AUDIO_RATE))
    end = None if end_s is None else round(end_s * AUDIO_RATE)
    at, sound = _near(container, stream, start / AUDIO_RATE, channel)
    for part in _resampled(sound):
        if end is not None and at >= end:
            return
        kept = part[max(0, start - at) : None if end is None else end - at]
        at += len(part)
        if len(kept):
            yield kept


def _near(container: Any, stream: Any, start_s: float, channel: str) -> tuple[int, Sound]:
    """Sound from a point before `start_s` on, and that point in samples of 16 kHz."""
    frames = _frames(container, stream)
    if start_s < _SEEK_FROM_S or not _has_exact_times(container, stream):
        return 0, _mono(frames, container, stream, channel)
    first = next(frames, None)
    if first is None or first.pts is None or first.sample_rate <= 0:
        return 0, _mono(chain([first] if first else [], frames), container, stream, channel)
    rate = first.sample_rate
    container.seek(first.pts + int((start_s - _PREROLL_S) / stream.time_base), stream=stream, backward=True)
    frames = _frames(container, stream)
    frame = next(frames, None)
    if frame is not None and frame.pts is not None and frame.sample_rate == rate:
        position = _position(frame, first, stream)
        # Resampling starts where a source sample and a 16 kHz sample coincide.
        step = rate // gcd(rate, AUDIO_RATE)
        begin = ceil((start_s - _SETTLE_S) * rate / step) * step
        if 0 <= position <= begin:
            sound = _after(_mono(chain([frame], frames), container, stream, channel), begin - position)
            return begin * AUDIO_RATE // rate, sound
    container.seek(first.pts, stream=stream, backward=True)
    return 0, _mono(_frames(container, stream), container, stream, channel)


def _has_exact_times(container: Any, stream: Any) -> bool:
    if not stream.time_base:
        return False
    name = container.format.name
    return name in _EXACT or (name in _EXACT_PCM and str(stream.codec_context.name).startswith("pcm_"))


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


def _mono(frames: Iterator[Any], container: Any, stream: Any, channel: str) -> Sound:
    """Decoded sound as (rate, samples): the mean of the channels, or one of them."""
    for rate, samples in _gathered(_planes(frames, container, stream)):
        if channel != MIX:
            samples = samples[_chosen(channel, len(samples))]
        scale = _FULL_SCALE.get(samples.dtype.str[1:])
        if scale is not None:
            mono = samples.mean(axis=0, dtype=np.float64) / scale
            if samples.dtype == np.uint8:
                mono -= 1.0
        else:
            finite = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
            mono = finite.mean(axis=0, dtype=np.float64)
        # Float files may hold anything; past this, sums in the resampler would overflow.
        yield rate, np.clip(mono, -_LOUDEST, _LOUDEST).astype(np.float32)


def _chosen(channel: str, there: int) -> slice:
    """One channel of those that are there. What is on both sides of a mono sound is on the left and on the right."""
    number = {"left": 1, "right": min(2, there)}.get(channel) or int(channel)
    if number > there:
        what = "1 channel" if there == 1 else f"{there} channels"
        raise DecodeError("no_channel", f"the sound has {what}; --channel {channel} is not there")
    return slice(number - 1, number)


def _planes(frames: Iterator[Any], container: Any, stream: Any) -> Iterator[tuple[int, NDArray[Any]]]:
    """Samples as (rate, (channels, n)), as they are stored; where timestamps leave a gap, it is silent."""
    timed = _has_exact_times(container, stream)
    time_base = float(stream.time_base or 0)
    ends, silence_s = None, 0.0
    for frame in frames:
        rate, length = frame.sample_rate, frame.samples
        if rate <= 0 or not length:
            continue
        samples = _array(frame)
        if timed and frame.pts is not None:
            starts = frame.pts * time_base
            gap_s = starts - ends if ends is not None else 0.0
            if gap_s > _GAP_S and silence_s + gap_s <= _MOST_SILENCE_S:
                silence_s += gap_s
                gap = round(gap_s * rate)
                for at in range(0, gap, _CHUNK):
                    yield rate, np.zeros((len(samples), min(_CHUNK, gap - at)), np.float32)
            ends = starts + length / rate
        yield rate, samples


def _array(frame: Any) -> NDArray[Any]:
    """A frame's samples, (channels, n).

    PyAV takes whatever follows the pointers of more than eight planes for further planes, and reading them crashes.
    """
    if not frame.format.is_planar:
        return frame.to_ndarray().reshape(frame.samples, -1).T  # type: ignore[no-any-return]
    dtype = np.dtype(_SAMPLES[frame.format.name])
    planes = frame.planes[: frame.layout.nb_channels]
    return np.stack([np.frombuffer(plane, dtype, frame.samples) for plane in planes])


def _gathered(planes: Iterator[tuple[int, NDArray[Any]]]) -> Iterator[tuple[int, NDArray[Any]]]:
    """The same in larger pieces: a codec's frame is some thousand samples, and each piece costs the same."""
    held: list[NDArray[Any]] = []
    count, kind = 0, (0, 0, np.dtype(np.float32))
    for rate, samples in planes:
        if held and (count >= _CHUNK or kind != (rate, len(samples), samples.dtype)):
            yield kind[0], np.concatenate(held, axis=1)
            held, count = [], 0
        kind = (rate, len(samples), samples.dtype)
        held.append(samples)
        count += samples.shape[1]
    if held:
        yield kind[0], np.concatenate(held, axis=1)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Decoded frames; a broken packet is left out, and a file that breaks off ends."""
    for packet in packets(container, stream):
        try:
            yield from packet.decode()
        except av.error.FFmpegError:
            continue
    try:
        yield from stream.codec_context.decode(None)  # what the decoder still holds where the file broke off
    except av.error.FFmpegError:
        return


def _resampled(sound: Sound) -> Iterator[NDArray[np.float32]]:
    """16 kHz in pieces; a stream whose rate changes on the way gets a new resampler there."""
    rate = 0
    resampler: soxr.ResampleStream | None = None
    for chunk_rate, chunk in sound:
        if chunk_rate != rate:
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
            rate = chunk_rate
            resampler = None if rate == AUDIO_RATE else soxr.ResampleStream(rate, AUDIO_RATE, 1, dtype="float32")
        yield chunk if resampler is None else resampler.resample_chunk(chunk)
    if resampler is not None:
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


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
