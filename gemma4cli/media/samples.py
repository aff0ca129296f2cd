"""The decoded frames of a sound track -> 16 kHz mono samples, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import av.error
import numpy as np
import soxr
from numpy.typing import NDArray

from gemma4cli.errors import DecodeError
from gemma4cli.flag_values import MIX
from gemma4cli.gemma import AUDIO_RATE
from gemma4cli.media.timeline import packets

_CHUNK = 1 << 16  # source samples that are mixed and resampled at once
_LOUDEST = 1e6
_SAMPLES = {"u8p": "u1", "s16p": "i2", "s32p": "i4", "s64p": "i8", "fltp": "f4", "dblp": "f8"}
_FULL_SCALE = {"u1": 128.0, "i2": 32768.0, "i4": 2147483648.0, "i8": 9223372036854775808.0}
GAP_S, MOST_SILENCE_S = 0.01, 3600.0  # a jump in the timestamps is silence; past an hour of it, a mistake

# Containers whose timestamps are exact after a jump. In the others, a span is reached by decoding up to it.
_EXACT = frozenset({"flac", "mp3", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "ogg"})
_EXACT_PCM = frozenset({"wav", "w64", "aiff", "caf"})  # with blocks of ADPCM they are not

Sound = Iterator[tuple[int, NDArray[np.float32]]]  # (rate, samples) piece by piece


def has_exact_times(container: Any, stream: Any) -> bool:
    """Whether timestamps say to the sample where a frame belongs."""
    if not stream.time_base:
        return False
    name = container.format.name
    return name in _EXACT or (name in _EXACT_PCM and str(stream.codec_context.name).startswith("pcm_"))


def mono(frames: Iterator[Any], container: Any, stream: Any, channel: str) -> Sound:
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
            if not np.isfinite(samples).all():
                samples = np.nan_to_num(samples, nan=0.0, posinf=0.0, neginf=0.0)
            mono = samples.mean(axis=0, dtype=np.float64)
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
    timed = has_exact_times(container, stream)
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
            if gap_s > GAP_S and silence_s + gap_s <= MOST_SILENCE_S:
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
    samples = np.empty((frame.layout.nb_channels, frame.samples), dtype)
    for row, plane in zip(samples, frame.planes, strict=False):
        row[:] = np.frombuffer(plane, dtype, frame.samples)
    return samples


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


def frames_of(container: Any, stream: Any) -> Iterator[Any]:
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


def resampled(sound: Sound) -> Iterator[NDArray[np.float32]]:
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
