"""The sound of a file as 16 kHz mono samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av
import av.error
import numpy as np
import soxr
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.gemma import AUDIO_RATE, MIN_AUDIO_SAMPLES
from gemma4cli.media.decoded import Audio
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.timeline import packets

_EXTRA_S = 1.0  # decoded past the limit, so that the caller sees that the sound goes on
_CHUNK = 1 << 16  # source samples that are resampled at once
_LOUDEST = 1e6
_FULL_SCALE = {"u1": 128.0, "i2": 32768.0, "i4": 2147483648.0, "i8": 9223372036854775808.0}


def decode_audio(container: Any, options: MediaOptions) -> Audio:
    """Decodes the first audio stream of an open container: channels averaged, then resampled.

    Broken packets are passed over; a header's length is never believed. Samples that are not finite become 0.
    Raises DecodeError with a type of `no_audio_stream`, `unsupported_codec`, `no_samples` or `too_short`.
    """
    stream = next(iter(container.streams.audio), None)
    if stream is None:
        raise DecodeError("no_audio_stream", "the file has no sound track")
    limit = None if options.max_audio_s is None else int((options.max_audio_s + _EXTRA_S) * AUDIO_RATE)
    parts: list[NDArray[np.float32]] = []
    count = 0
    for part in _resampled(_mono(container, stream)):
        parts.append(part)
        count += len(part)
        if limit is not None and count > limit:
            break
    samples = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    if not len(samples):
        raise DecodeError("no_samples", "the sound track holds no samples that can be decoded")
    if len(samples) < MIN_AUDIO_SAMPLES:
        raise DecodeError(
            "too_short", f"{len(samples) / AUDIO_RATE * 1000:.1f} ms of sound; the model hears nothing under 10.1 ms"
        )
    duration_s = len(samples) / AUDIO_RATE
    if limit is not None and len(samples) > limit:
        return Audio(samples[:limit], max(duration_s, _declared_s(container, stream)))
    return Audio(samples, duration_s)


def _mono(container: Any, stream: Any) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Decoded sound as (rate, samples), the mean of the channels."""
    for frame in _frames(container, stream):
        samples = frame.to_ndarray()
        if not frame.format.is_planar:
            samples = samples.reshape(-1, frame.layout.nb_channels).T
        scale = _FULL_SCALE.get(samples.dtype.str[1:])
        if scale is not None:
            mono = samples.mean(axis=0, dtype=np.float64) / scale
            if samples.dtype == np.uint8:
                mono -= 1.0
        else:
            finite = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
            mono = finite.mean(axis=0, dtype=np.float64)
        if mono.size and frame.sample_rate > 0:
            # Float files may hold anything; past this, sums in the resampler would overflow.
            yield frame.sample_rate, np.clip(mono, -_LOUDEST, _LOUDEST).astype(np.float32)


def _frames(container: Any, stream: Any) -> Iterator[Any]:
    """Decoded frames; a broken packet is left out, and a file that breaks off ends."""
    try:
        codec = stream.codec_context
        if codec is None:
            raise ValueError
    except ValueError as error:
        raise DecodeError("unsupported_codec", "the sound track's codec is not known here") from error
    for packet in packets(container, stream):
        try:
            yield from packet.decode()
        except av.error.FFmpegError:
            continue
    try:
        yield from codec.decode(None)  # what the decoder still holds where the file broke off
    except av.error.FFmpegError:
        return


def _resampled(sound: Iterator[tuple[int, NDArray[np.float32]]]) -> Iterator[NDArray[np.float32]]:
    """16 kHz in pieces; a stream whose rate changes on the way gets a new resampler there."""
    rate = 0
    resampler: soxr.ResampleStream | None = None
    for chunk_rate, chunk in _gathered(sound):
        if chunk_rate != rate:
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
            rate = chunk_rate
            resampler = None if rate == AUDIO_RATE else soxr.ResampleStream(rate, AUDIO_RATE, 1, dtype="float32")
        yield chunk if resampler is None else resampler.resample_chunk(chunk)
    if resampler is not None:
        yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)


def _gathered(sound: Iterator[tuple[int, NDArray[np.float32]]]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """The same sound in larger pieces: a codec's frame is some thousand samples."""
    rate, parts, count = 0, list[NDArray[np.float32]](), 0
    for chunk_rate, chunk in sound:
        if parts and (chunk_rate != rate or count >= _CHUNK):
            yield rate, np.concatenate(parts)
            parts, count = [], 0
        rate = chunk_rate
        parts.append(chunk)
        count += len(chunk)
    if parts:
        yield rate, np.concatenate(parts)


def _declared_s(container: Any, stream: Any) -> float:
    """Seconds that the header promises, as far as the file's size bears it out; 0 where it says nothing."""
    declared = 0.0
    if stream.duration and stream.time_base:
        declared = float(stream.duration * stream.time_base)
    elif container.duration:
        declared = container.duration / av.time_base
    if stream.bit_rate and container.size > 0:
        declared = min(declared, container.size * 8 / stream.bit_rate)
    return declared
