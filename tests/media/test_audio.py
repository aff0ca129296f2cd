"""Sounds come out as one channel of finite samples at 16 kHz, as long as what really decodes."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.errors import DecodeError
from gemma4cli.media import Audio, MediaOptions, load
from gemma4cli.media.audio import stream_audio
from gemma4cli.records import Kind, Media

SOUNDS = frozenset({Kind.AUDIO})


def decoded(data: bytes, kind: Kind | None = None, **options: Any) -> Audio:
    audio = load(Media("", data, kind), SOUNDS, MediaOptions(**options))
    assert isinstance(audio, Audio)
    assert audio.samples.dtype == np.float32
    assert audio.samples.ndim == 1
    assert np.isfinite(audio.samples).all()
    return audio


def failure(data: bytes, kind: Kind | None = None) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decoded(data, kind)
    return caught.value


def tone(rate: int, seconds: float, hertz: float = 440.0, level: float = 0.5) -> np.ndarray:
    return (level * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.float32)


def saved(samples: np.ndarray, rate: int, format_: str = "WAV", subtype: str | None = None) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=format_, subtype=subtype)
    return buffer.getvalue()


def encoded(samples: np.ndarray, rate: int, format_: str, codec: str, sample_format: str = "fltp") -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=format_) as container:
        stream = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples[None], "fltp", "mono")
        frame.rate = rate
        resampler = av.AudioResampler(sample_format, "mono", rate, frame_size=stream.codec_context.frame_size or 1024)
        for piece in [*resampler.resample(frame), *resampler.resample(None)]:
            container.mux(stream.encode(piece))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def strongest_hertz(audio: Audio) -> float:
    spectrum = np.abs(np.fft.rfft(audio.samples * np.hanning(len(audio.samples))))
    return float(spectrum.argmax() * 16000 / len(audio.samples))


@pytest.mark.parametrize(
    ("format_", "subtype"),
    [("WAV", "PCM_U8"), ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_32"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
     ("WAV", "ULAW"), ("WAV", "ALAW"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_16"), ("RF64", "PCM_16"), ("W64", "PCM_16"),
     ("AIFF", "PCM_16"), ("AU", "PCM_16"), ("CAF", "PCM_16"), ("FLAC", "PCM_16"), ("FLAC", "PCM_24"),
     ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
     ("NIST", "PCM_16"), ("VOC", "PCM_16"), ("IRCAM", "PCM_16"), ("SVX", "PCM_16"), ("PAF", "PCM_16"),
     ("PVF", "PCM_16"), ("AVR", "PCM_16")],
)  # fmt: skip
def test_formats(format_: str, subtype: str) -> None:
    audio = decoded(saved(tone(16_000, 0.5), 16_000, format_, subtype))
    assert audio.duration_s == pytest.approx(0.5, abs=0.08)
    assert len(audio.samples) == round(audio.duration_s * 16_000)
    assert strongest_hertz(audio) == pytest.approx(440, abs=5)
    assert np.abs(audio.samples).max() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("format_", "codec"), [("mp4", "aac"), ("adts", "aac"), ("matroska", "aac"), ("mpegts", "aac")]
)
def test_aac_in_its_containers(format_: str, codec: str) -> None:
    audio = decoded(encoded(tone(48_000, 0.5), 48_000, format_, codec))
    assert audio.duration_s == pytest.approx(0.5, abs=0.08)
    assert strongest_hertz(audio) == pytest.approx(440, abs=5)


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000, 96_000, 192_000])
def test_rates_are_brought_to_16_khz(rate: int) -> None:
    audio = decoded(saved(tone(rate, 0.5, 1000.0), rate))
    assert len(audio.samples) == pytest.approx(8000, abs=1)
    assert strongest_hertz(audio) == pytest.approx(1000, abs=4)
    expected = tone(16_000, 0.5, 1000.0)[500:7500]
    assert np.abs(audio.samples[500:7500] - expected).max() < 0.01


def test_what_16_khz_cannot_hold_is_filtered_out_and_does_not_fold_back() -> None:
    assert np.abs(decoded(saved(tone(48_000, 0.5, 12_000.0), 48_000)).samples[800:-800]).max() < 0.01


@pytest.mark.parametrize("channels", [2, 3, 6])
def test_channels_are_averaged(channels: int) -> None:
    samples = np.stack([np.full(4000, (i + 1) / 10) for i in range(channels)], axis=1)
    audio = decoded(saved(samples, 16_000, "WAVEX"))
    assert audio.samples == pytest.approx(np.full(4000, samples[0].mean()), abs=1e-3)


def test_opposite_channels_cancel() -> None:
    left = tone(16_000, 0.2)
    assert np.abs(decoded(saved(np.stack([left, -left], axis=1), 16_000, subtype="FLOAT")).samples).max() == 0


@given(st.lists(st.floats(width=32), min_size=1, max_size=20), st.sampled_from([8_000, 16_000, 44_100]))
@settings(deadline=None, max_examples=15)
def test_samples_that_are_no_numbers_do_not_come_through(values: list[float], rate: int) -> None:
    samples = np.resize(np.array(values, np.float32), 900)
    audio = decoded(saved(samples, rate, subtype="FLOAT"))
    if rate == 16_000:
        assert (audio.samples[~np.isfinite(samples)] == 0).all()


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 0])
def test_a_streamed_wav_is_as_long_as_its_data(length: int) -> None:
    data = bytearray(saved(tone(16_000, 0.5), 16_000))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = struct.pack("<I", length)
    audio = decoded(bytes(data), max_audio_s=None)
    assert audio.duration_s == pytest.approx(0.5, abs=0.001)


@pytest.mark.parametrize(("format_", "share"), [("WAV", 0.5), ("FLAC", 0.5), ("MP3", 0.5), ("OGG", 0.7)])
def test_a_file_that_breaks_off_gives_what_is_there(format_: str, share: float) -> None:
    rng = np.random.default_rng(4)
    data = saved((rng.standard_normal(48_000) * 0.1).astype(np.float32), 16_000, format_)
    audio = decoded(data[: int(len(data) * share)])
    assert 0.4 < audio.duration_s < 2.9


def test_garbage_in_the_middle_costs_only_itself() -> None:
    data = bytearray(saved(tone(16_000, 3.0), 16_000, "MP3"))
    data[len(data) // 2 : len(data) // 2 + 300] = b"\x55" * 300
    assert decoded(bytes(data)).duration_s == pytest.approx(3.0, abs=0.4)


def test_nothing_to_hear() -> None:
    assert failure(saved(np.zeros(0, np.float32), 16_000)).type == "no_samples"
    assert failure(b"ID3\x04\0\0\0\0\0\0" + bytes(500)).type in (
        "no_samples",
        "corrupt",
        "no_audio_stream",
        "truncated",
    )


@pytest.mark.parametrize(("samples", "heard"), [(1, False), (160, False), (161, True)])
def test_the_shortest_sound(samples: int, heard: bool) -> None:
    data = saved(np.full(samples, 0.1, np.float32), 16_000)
    if heard:
        assert len(decoded(data).samples) == samples
    else:
        assert failure(data).type == "too_short"


def test_silence_is_a_sound() -> None:
    assert decoded(saved(np.zeros(16_000, np.float32), 16_000)).duration_s == 1


@pytest.mark.parametrize(("seconds", "kept"), [(2.0, 2.0), (2.9, 2.9), (3.5, 3.0), (20.0, 3.0)])
def test_decoding_stops_a_second_after_the_limit(seconds: float, kept: float) -> None:
    audio = decoded(saved(tone(8_000, seconds), 8_000), max_audio_s=2.0)
    assert len(audio.samples) / 16_000 == pytest.approx(kept, abs=0.001)
    assert audio.duration_s == pytest.approx(seconds, abs=0.01)


def test_a_limit_does_not_make_a_streamed_wav_37_hours_long() -> None:
    data = bytearray(saved(tone(8_000, 10.0), 8_000))
    at = data.index(b"data") + 4
    data[4:8] = data[at : at + 4] = b"\xff\xff\xff\xff"
    assert decoded(bytes(data), max_audio_s=2.0).duration_s == pytest.approx(10.0, abs=0.1)


def test_cover_art_is_no_video() -> None:
    picture = io.BytesIO()
    from PIL import Image as Pillow

    Pillow.new("RGB", (32, 32)).save(picture, "PNG")
    body = b"\0image/png\0\x03\0" + picture.getvalue()
    size = len(body) + 10
    tag = b"APIC" + len(body).to_bytes(4, "big") + b"\0\0" + body
    synchsafe = bytes([(size >> shift) & 0x7F for shift in (21, 14, 7, 0)])
    data = b"ID3\x03\0\0" + synchsafe + tag + saved(tone(16_000, 0.5), 16_000, "MP3")
    sounds_and_videos = frozenset({Kind.AUDIO, Kind.VIDEO})
    assert isinstance(load(Media("", data), sounds_and_videos, MediaOptions()), Audio)
    with pytest.raises(DecodeError, match="no video stream"):
        load(Media("", data, Kind.VIDEO), sounds_and_videos, MediaOptions())


def test_an_image_is_no_sound() -> None:
    assert failure(b"GIF89a" + bytes(50)).type == "wrong_kind"
    assert failure(b"GIF89a" + bytes(50), Kind.AUDIO).type == "wrong_kind"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    data = saved(tone(16_000, 0.5), 16_000, "MP3")
    decoded(data[:-100])
    failure(b"\xff\xfb\x90\0" + bytes(400))
    assert capfd.readouterr() == ("", "")


def melody(rate: int, seconds: float) -> np.ndarray:
    """A sound that is nowhere like itself, and that no codec replaces by noise of its own."""
    times = np.arange(round(rate * seconds)) / rate
    sweep = np.sin(2 * np.pi * (200 * times + 900 * np.sin(times * 0.7)))
    return (0.3 * sweep + 0.1 * np.sin(2 * np.pi * 330 * times * (1 + 0.01 * times))).astype(np.float32)


def written(samples: np.ndarray, rate: int, format_: str, subtype: str | None = None, **how: Any) -> bytes:
    buffer = io.BytesIO()
    with soundfile.SoundFile(buffer, "w", rate, 1, subtype, format=format_, **how) as file:
        for start in range(0, len(samples), 8192):  # libsndfile crashes on long writes of Ogg
            file.write(samples[start : start + 8192])
    return buffer.getvalue()


def long_sound(name: str) -> bytes:
    """Twenty seconds."""
    fast, slow = melody(44_100, 20), melody(48_000, 20)
    match name.split("-"):
        case ["wav", rate]:
            return written(melody(int(rate), 20), int(rate), "WAV")
        case ["adpcm"]:
            return written(fast, 44_100, "WAV", "IMA_ADPCM")
        case ["w64" | "aiff" | "au" | "caf" | "flac"]:
            return written(fast, 44_100, name.upper())
        case ["vorbis"]:
            return written(fast, 44_100, "OGG", "VORBIS")
        case ["opus"]:
            return written(slow, 48_000, "OGG", "OPUS")
        case ["mp3", "vbr"]:
            return written(fast, 44_100, "MP3", compression_level=0.5, bitrate_mode="VARIABLE")
        case ["mp3", "cbr"]:
            return written(fast, 44_100, "MP3", compression_level=0.5, bitrate_mode="CONSTANT")
        case [format_, "opus"]:
            return encoded(slow, 48_000, format_, "libopus", "flt")
        case [format_, codec]:
            return encoded(fast, 44_100, format_, codec)
    raise ValueError(name)


def span(data: bytes, start_s: float | None, end_s: float | None, **options: Any) -> Audio:
    audio = load(Media("", data, None, start_s, end_s), SOUNDS, MediaOptions(**options))
    assert isinstance(audio, Audio)
    return audio


@pytest.mark.parametrize(
    "name",
    ["wav-8000", "wav-11025", "wav-16000", "wav-44100", "adpcm", "w64", "aiff", "au", "caf", "flac", "vorbis", "opus",
     "mp3-vbr", "mp3-cbr", "mp4-aac", "mp4-opus", "matroska-aac", "matroska-opus", "matroska-libmp3lame",
     "mpegts-aac", "adts-aac"],
)  # fmt: skip
def test_a_span_is_a_slice_of_the_whole(name: str) -> None:
    data = long_sound(name)
    whole = decoded(data).samples
    for start, end in [(0.0, 1.0), (4.2, 4.9), (5.001, 6.0), (7.12345, 9.5), (13.0, 13.02), (18.5, 30.0)]:
        part = span(data, start, end)
        expected = whole[round(start * 16_000) : round(end * 16_000)]
        assert len(part.samples) == len(expected)
        if "aac" not in name:
            assert np.abs(part.samples - expected).max() < 1e-5
        else:  # its decoder fills in noise by chance
            assert np.sqrt(np.mean((part.samples - expected) ** 2)) < 0.01
        assert part.duration_s == len(expected) / 16_000


def test_a_span_with_one_end() -> None:
    data = long_sound("wav-16000")
    assert span(data, 15.0, None).duration_s == 5.0
    assert span(data, None, 2.0).duration_s == 2.0
    stopped = span(data, 2.0, 15.0, max_audio_s=3.0)
    assert len(stopped.samples) == 64_000
    assert stopped.duration_s > 3.0


def test_a_span_after_the_end() -> None:
    for name in ("wav-16000", "mp3-vbr", "mp4-aac", "vorbis"):
        with pytest.raises(DecodeError, match="ends before 21 s") as caught:
            span(long_sound(name), 21.0, 25.0)
        assert caught.value.type == "no_samples"


def test_a_span_of_a_broken_off_file() -> None:
    data = long_sound("mp3-vbr")
    broken = data[: len(data) // 2]
    whole = decoded(broken).samples
    part = span(broken, 6.0, 30.0).samples
    assert np.abs(part - whole[96_000:]).max() < 1e-5


def test_lost_packets_leave_silence_so_that_what_follows_keeps_its_time() -> None:
    data = long_sound("mp3-cbr")
    third, hole = len(data) // 3, len(data) // 10
    holed = data[:third] + data[third + hole :]
    whole = decoded(holed).samples
    for start in (5.5, 9.0, 12.0):
        assert np.abs(span(holed, start, start + 1).samples - whole[round(start * 16_000) :][:16_000]).max() < 1e-5


@pytest.mark.parametrize("name", ["wav-44100", "mp3-vbr", "flac"])
def test_a_stream_of_pieces_is_the_whole(name: str) -> None:
    data = long_sound(name)
    pieces = list(stream_audio(Media("", data), MediaOptions()))
    assert max(map(len, pieces)) < 160_000
    assert np.array_equal(np.concatenate(pieces), decoded(data).samples)
    middle = np.concatenate(list(stream_audio(Media("", data, None, 6.0, 8.0), MediaOptions())))
    assert np.array_equal(middle, span(data, 6.0, 8.0).samples)


def test_a_stream_of_what_is_no_sound() -> None:
    with pytest.raises(DecodeError, match="where a sound is needed"):
        next(stream_audio(Media("", b"GIF89a" + bytes(50)), MediaOptions()))
    with pytest.raises(DecodeError, match="no samples"):
        list(stream_audio(Media("", saved(np.zeros(0, np.float32), 16_000)), MediaOptions()))


def test_sound_of_more_than_eight_channels_is_mixed(tmp_path: Path) -> None:
    path = tmp_path / "sixteen.m4a"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=16_000, layout="hexadecagonal")
        tone = 0.25 * np.sin(np.arange(16_000) / 6).astype(np.float32)
        frame = av.AudioFrame(format="fltp", layout="hexadecagonal", samples=16_000)
        for plane, _ in zip(frame.planes, range(16), strict=False):
            plane.update(tone)
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    sound = load(Media(str(path)), frozenset({Kind.AUDIO}), MediaOptions())
    assert isinstance(sound, Audio)
    assert sound.duration_s == pytest.approx(1.0, abs=0.15)
    assert float(np.abs(sound.samples[4000:12_000]).max()) == pytest.approx(0.25, abs=0.1)


def test_sound_longer_than_it_may_be_is_refused_with_the_flag_that_allows_it() -> None:
    data = saved(np.zeros(32_000, np.float32), 16_000)
    with pytest.raises(DecodeError, match="--max-duration") as error:
        list(stream_audio(Media("", data), MediaOptions(max_duration_s=1.0)))
    assert error.value.type == "too_long"


def film(format_: str, sounds: dict[float, bool], seconds: float = 3.0) -> bytes:
    """Seven seconds of pictures with tracks of sound: when each begins, and whether it is the one to be played.

    The first is a tone of 400 Hz, the second one of 600 Hz.
    """
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=format_) as container:
        pictures = container.add_stream("libx264", rate=5)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        tracks = [container.add_stream("aac", rate=48_000, layout="mono") for _ in sounds]
        for track, default in zip(tracks, sounds.values(), strict=True):
            track.disposition = av.stream.Disposition.default if default else av.stream.Disposition(0)
        for index in range(35):
            frame = av.VideoFrame(64, 48, "yuv420p")
            frame.pts, frame.time_base = index, Fraction(1, 5)
            container.mux(pictures.encode(frame))
        container.mux(pictures.encode(None))
        for number, (track, begins) in enumerate(zip(tracks, sounds, strict=True)):
            samples = tone(48_000, seconds, 400.0 + 200 * number)
            for at in range(0, len(samples) - 1023, 1024):
                sound = av.AudioFrame.from_ndarray(samples[None, at : at + 1024], "fltp", "mono")
                sound.sample_rate, sound.pts, sound.time_base = 48_000, at + round(begins * 48_000), Fraction(1, 48_000)
                container.mux(track.encode(sound))
            container.mux(track.encode(None))
    return buffer.getvalue()


@pytest.mark.parametrize("format_", ["mp4", "matroska", "mpegts"])
def test_the_sound_of_a_video_begins_when_it_does(format_: str) -> None:
    data = film(format_, {2.0: True})
    whole = decoded(data, Kind.AUDIO).samples
    assert np.abs(whole[:31_000]).max() == 0
    assert np.abs(whole[33_500:40_000]).max() > 0.4
    for start, end in [(0.0, 1.5), (0.5, 2.5), (2.2, 2.4), (4.0, 9.0)]:
        part = load(Media("", data, Kind.AUDIO, start, end), SOUNDS, MediaOptions())
        expected = whole[round(start * 16_000) : round(end * 16_000)]
        assert isinstance(part, Audio)
        assert len(part.samples) == len(expected)
        assert np.sqrt(np.mean((part.samples - expected) ** 2)) < 0.01


@pytest.mark.parametrize(
    ("first", "second", "heard"), [(False, True, 600), (True, False, 400), (False, False, 400), (True, True, 400)]
)
def test_of_several_sound_tracks_the_default_one_is_heard(first: bool, second: bool, heard: float) -> None:
    data = film("matroska", {0.0: first, 0.01: second})
    assert strongest_hertz(decoded(data, Kind.AUDIO)) == pytest.approx(heard, abs=2)
