"""Parts of media: of a video from one time to another, at a rate; one channel of a sound; pages; animations."""

from __future__ import annotations

import io
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from gemma4cli.errors import DecodeError
from gemma4cli.media import Audio, Image, MediaOptions, Video, load, load_all
from gemma4cli.media.audio import stream_audio
from gemma4cli.media.timeline import chosen_frames, frames_between
from gemma4cli.records import Kind, Media

BOTH = frozenset({Kind.IMAGE, Kind.VIDEO})
GREYS = (30, 90, 150, 210)


def failure(data: bytes, **options: Any) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        load_all(Media("", data), frozenset(Kind), MediaOptions(**options))
    return caught.value


@pytest.fixture(scope="module")
def film() -> bytes:
    """Ten seconds at 10 frames a second; the level of frame i is i."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10, options={"crf": "1", "g": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for index in range(100):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 50 + index, np.uint8), "rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 10)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def video(data: bytes, **options: Any) -> Video:
    found = load(Media("", data), BOTH, MediaOptions(**options))
    assert isinstance(found, Video)
    return found


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        ({"fps": 1.0}, range(0, 100, 10)),
        ({"fps": 2.0, "start_s": 3.0, "end_s": 5.0}, (30, 35, 40, 45)),
        ({"start_s": 9.0}, range(90, 100)),
        ({"end_s": 0.3}, (0, 1, 2)),
        ({"start_s": 3.04, "end_s": 3.06}, (30,)),
        ({"start_s": 2.0, "end_s": 8.0, "max_frames": 3}, (20, 40, 60)),
        ({"fps": 10.0, "max_frames": 4}, (0, 25, 50, 75)),
        ({"fps": 0.01}, (0,)),
        ({"fps": 3.0, "end_s": 1.0}, (0, 3, 6)),
    ],
)
def test_frames_are_those_of_the_part_with_the_times_of_the_whole(film: bytes, options: Any, indices: Any) -> None:
    found = video(film, **options)
    assert found.frame_indices == tuple(indices)
    assert found.times_s == pytest.approx([index / 10 for index in indices])
    levels = [float(frame.mean()) for frame in found.frames]
    assert levels == pytest.approx([50 + index for index in indices], abs=2)
    assert found.duration_s == pytest.approx(10.0)


def test_a_part_after_the_end_is_none(film: bytes) -> None:
    error = failure(film, start_s=10.0)
    assert error.type == "no_frames"
    assert "10.00 s long" in str(error)


@pytest.mark.parametrize("format_", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("late", [0, 900])
def test_a_part_that_is_read_alone_has_the_same_frames(format_: str, late: int) -> None:
    buffer, rng = io.BytesIO(), np.random.default_rng(3)
    times = np.cumsum(rng.integers(20, 160, 120)) + late
    with av.open(buffer, "w", format=format_) as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "10", "g": "15", "bf": "3"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 1000)
        for index, time in enumerate(times.tolist()):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 40 + index, np.uint8), "rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    length = float(times[-1] - times[0]) / 1000
    for start, end in [(0.0, 1.0), (0.5, 3.0), (3.0, 6.5), (length - 1, length), (4.0, 4.01), (2.0, 1e6)]:
        whole = video(buffer.getvalue(), start_s=start, end_s=end, max_frames=8)
        alone = video(buffer.getvalue(), start_s=start, end_s=end, max_frames=8, part_only=True)
        assert alone.times_s == whole.times_s
        assert np.array_equal(alone.frames, whole.frames)
    with pytest.raises(DecodeError):
        video(buffer.getvalue(), start_s=length + 5, end_s=length + 6, part_only=True)


@given(
    st.lists(st.integers(0, 10_000), min_size=1, max_size=80, unique=True).map(sorted),
    st.integers(1, 32),
    st.none() | st.floats(0, 12),
    st.none() | st.floats(0.01, 12),
    st.none() | st.floats(0.01, 60),
)
def test_any_part_gives_ascending_frames_that_are_on_show_in_it(
    times: list[int], most: int, start: float | None, length: float | None, fps: float | None
) -> None:
    end = times[-1] + 100
    stop = None if length is None else (start or 0.0) + length
    options = MediaOptions(max_frames=most, start_s=start, end_s=stop, fps=fps)
    try:
        found = frames_between(times, end, 1000, options)
    except DecodeError:
        assert start is not None
        assert times[0] + start * 1000 >= end - 0.001
        return
    assert 1 <= len(found) <= most
    assert list(found) == sorted(set(found))
    assert stop is None or times[found[-1]] < times[0] + stop * 1000
    ends = [*times[1:], end]
    assert start is None or ends[found[0]] > times[0] + start * 1000
    if start is stop is fps is None:
        assert found == chosen_frames(times, most)


def stereo(*levels: float, rate: int = 16_000) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.tile(np.float32(levels), (rate, 1)), rate, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("levels", "channel", "heard"),
    [
        ((0.1, 0.3), "mix", 0.2),
        ((0.1, 0.3), "left", 0.1),
        ((0.1, 0.3), "right", 0.3),
        ((0.1, 0.3, 0.5), "3", 0.5),
        ((0.2,), "left", 0.2),
        ((0.2,), "right", 0.2),
    ],
)
def test_one_channel_is_heard_alone(levels: tuple[float, ...], channel: str, heard: float) -> None:
    medium, options = Media("", stereo(*levels)), MediaOptions(channel=channel)
    audio = load(medium, frozenset({Kind.AUDIO}), options)
    assert isinstance(audio, Audio)
    assert audio.samples == pytest.approx(heard, abs=1e-4)
    assert np.concatenate(list(stream_audio(medium, options))) == pytest.approx(audio.samples)


def test_a_channel_that_is_not_there() -> None:
    error = failure(stereo(0.1), channel="2")
    assert (error.type, str(error)) == ("no_channel", "the sound has 1 channel; --channel 2 is not there")


def several(format_: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    pictures = [Pillow.new("RGB", (40 + i, 30), (grey,) * 3) for i, grey in enumerate(GREYS)]
    if format_ != "TIFF":
        pictures = [picture.resize((40, 30)) for picture in pictures]
    pictures[0].save(buffer, format_, save_all=True, append_images=pictures[1:], **how)
    return buffer.getvalue()


def pages(data: bytes, **options: Any) -> list[Image]:
    found = load_all(Media("", data), BOTH, MediaOptions(**options))
    assert all(isinstance(page, Image) for page in found)
    return [page for page in found if isinstance(page, Image)]


def test_pages_are_pictures_when_they_are_wanted() -> None:
    data = several("TIFF")
    assert len(pages(data)) == 1
    found = pages(data, pages=None)
    assert [(page.width, int(page.pixels.mean())) for page in found] == list(zip(range(40, 44), GREYS, strict=True))
    assert len(pages(data, pages=2)) == 2
    assert isinstance(load(Media("", data), BOTH, MediaOptions(pages=None)), Image)


def test_very_many_pages_and_large_ones_are_refused() -> None:
    buffer = io.BytesIO()
    dots = [Pillow.new("L", (1, 1))] * 65
    dots[0].save(buffer, "TIFF", save_all=True, append_images=dots[1:])
    assert failure(buffer.getvalue(), pages=None).type == "too_many_pages"
    assert len(pages(buffer.getvalue(), pages=3)) == 3
    assert failure(several("TIFF"), pages=None, max_pixels=41 * 30).type == "too_large"


@pytest.mark.parametrize("format_", ["GIF", "PNG", "WEBP"])
def test_an_animation_is_a_video_when_frames_are_wanted(format_: str) -> None:
    data = several(format_, duration=500, **({"lossless": True} if format_ == "WEBP" else {}))
    assert isinstance(load(Media("", data), BOTH, MediaOptions()), Image)
    found = video(data, animation_frames=2)
    assert found.times_s == (0.0, 1.0)
    assert [int(frame.mean()) for frame in found.frames] == [GREYS[0], GREYS[2]]
    still = io.BytesIO()
    Pillow.new("RGB", (9, 9)).save(still, format_)
    assert isinstance(load(Media("", still.getvalue()), BOTH, MediaOptions(animation_frames=2)), Image)
    assert isinstance(load(Media("", data), frozenset({Kind.IMAGE}), MediaOptions(animation_frames=2)), Image)
