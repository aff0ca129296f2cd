"""Even frames by the clip's own clock, upright, in the right colours, from whatever the container leaves out."""

from __future__ import annotations

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from gemma4cli import gemma
from gemma4cli.errors import DecodeError
from gemma4cli.media import Audio, Image, MediaOptions, Video, load
from gemma4cli.media.timeline import chosen_frames
from gemma4cli.records import Kind, Media

VIDEOS = frozenset({Kind.VIDEO})


def decoded(data: bytes, **options: Any) -> Video:
    video = load(Media("", data, Kind.VIDEO), VIDEOS, MediaOptions(**options))
    assert isinstance(video, Video)
    assert video.frames.dtype == np.uint8
    assert len(video.frames) == len(video.times_s) == len(video.frame_indices) <= 32
    assert list(video.times_s) == sorted(set(video.times_s))
    assert video.times_s[0] == 0
    return video


def failure(data: bytes, kind: Kind | None = Kind.VIDEO) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        load(Media("", data, kind), VIDEOS, MediaOptions())
    return caught.value


def grey(index: int) -> int:
    """A level that tells frame `index` from its neighbours after encoding."""
    return 20 + index * 37 % 200


def clip(
    count: int, format_: str = "mp4", codec: str = "libx264", *, size: tuple[int, int] = (64, 48), fps: int = 25,
    times: list[int] | None = None, gop: int = 12, options: dict[str, str] | None = None, metadata: str = "",
) -> bytes:  # fmt: skip
    """A clip whose frame i is of the level grey(i); times, in ms, replace a constant rate."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=format_, options=options or {}) as container:
        if metadata:
            container.metadata["title"] = metadata
        stream = container.add_stream(codec, rate=fps)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.gop_size = gop
        base = Fraction(1, 1000) if times else Fraction(1, fps)
        stream.codec_context.time_base = base
        for index in range(count):
            pixels = np.full((size[1], size[0], 3), grey(index), np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, "rgb24")
            frame.pts = times[index] if times else index
            frame.time_base = base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def levels(video: Video) -> list[float]:
    return [float(frame.mean()) for frame in video.frames]


def test_levels_of_frames_follow_the_chosen_indices() -> None:
    video = decoded(clip(240))
    assert video.frame_indices == gemma.even_frames(240)
    assert video.times_s == pytest.approx([i / 25 for i in gemma.even_frames(240)])
    assert levels(video) == pytest.approx([grey(i) for i in video.frame_indices], abs=4)
    assert (video.total_frames, video.fps, video.duration_s) == (240, pytest.approx(25), pytest.approx(9.6))


@pytest.mark.parametrize(
    ("format_", "codec"),
    [("mp4", "libx264"), ("mov", "mpeg4"), ("matroska", "libx264"), ("webm", "libvpx-vp9"), ("webm", "libvpx"),
     ("avi", "mpeg4"), ("avi", "libx264"), ("mpegts", "libx264"), ("mpegts", "mpeg2video"), ("mpeg", "mpeg2video"),
     ("flv", "flv"), ("asf", "mpeg4"), ("ogg", "libtheora"), ("mp4", "libx265"), ("mxf", "mpeg2video")],
)  # fmt: skip
@pytest.mark.parametrize("gop", [12, 250])
def test_containers(format_: str, codec: str, gop: int) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"no {codec} here")
    video = decoded(clip(100, format_, codec, size=(352, 288) if format_ == "mxf" else (64, 48), gop=gop))
    # ffmpeg's program stream muxer is off by a frame where a pack holds two.
    assert video.total_frames == pytest.approx(100, abs=3 if format_ == "mpeg" else 1)
    assert len(video.frames) == 32
    for level, time in zip(levels(video), video.times_s, strict=True):
        near = round(time * 25)
        assert any(
            level == pytest.approx(grey(i), abs=8)
            for i in range(near - (format_ == "mpeg"), near + 1 + (format_ == "mpeg"))
        )
    if format_ != "mpeg":
        assert video.times_s == pytest.approx([i / 25 for i in video.frame_indices], abs=0.002)
    assert video.duration_s == pytest.approx(4.0, abs=0.1)


@pytest.mark.parametrize("count", [1, 2, 31, 32])
def test_short_clips_are_taken_whole(count: int) -> None:
    video = decoded(clip(count))
    assert video.frame_indices == tuple(range(count))
    assert levels(video) == pytest.approx([grey(i) for i in range(count)], abs=4)
    assert video.duration_s == pytest.approx(count / 25)


@pytest.mark.parametrize("most", [1, 2, 8])
def test_fewer_frames_can_be_asked_for(most: int) -> None:
    assert decoded(clip(50), max_frames=most).frame_indices == gemma.even_frames(50, most)


@pytest.mark.parametrize("format_", ["mp4", "matroska"])
def test_frames_of_a_variable_rate_count_for_as_long_as_they_are_shown(format_: str) -> None:
    times = [*range(0, 1000, 10), *range(1000, 41_000, 1000)]  # 1 s of 100 frames, then one a second
    video = decoded(clip(len(times), format_, times=times))
    assert video.total_frames == 140
    shown_ms = [round(time * 1000) for time in video.times_s]
    assert shown_ms == pytest.approx([times[i] for i in video.frame_indices], abs=1)
    assert sum(time < 1000 for time in shown_ms) <= 2
    assert shown_ms[-1] >= 38_000
    assert levels(video) == pytest.approx([grey(i) for i in video.frame_indices], abs=6)


def test_a_clip_that_starts_late_is_timed_from_its_first_frame() -> None:
    times = [5000 + 40 * i for i in range(60)]
    video = decoded(clip(60, "matroska", times=times))
    assert video.times_s == pytest.approx([i * 0.04 for i in video.frame_indices], abs=0.001)
    assert video.duration_s == pytest.approx(2.4, abs=0.05)


@given(st.integers(33, 5000), st.integers(1, 5000), st.integers(-1000, 1000), st.integers(1, 32))
def test_at_a_constant_rate_the_choice_is_the_processors(total: int, step: int, first: int, count: int) -> None:
    times = range(first, first + total * step, step)
    assert chosen_frames(times, count) == gemma.even_frames(total, count)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=200, unique=True), st.integers(1, 32))
def test_any_timeline_gives_ascending_frames_from_the_first(times: list[int], count: int) -> None:
    chosen = chosen_frames(sorted(times), count)
    assert chosen[0] == 0
    assert len(chosen) <= max(count, 0)
    assert list(chosen) == sorted(set(chosen))
    assert chosen[-1] < len(times)


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
def test_a_display_matrix_turns_the_frames(degrees: int) -> None:
    data = bytearray(_quadrants())
    at = data.index(b"tkhd") + 4 + 4 + 36  # version 0: the matrix follows 36 bytes after the flags
    cos, sin = {0: (1, 0), 90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    matrix = [cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30]
    data[at : at + 36] = b"".join(value.to_bytes(4, "big", signed=True) for value in matrix)
    video = decoded(bytes(data))
    width, height = (48, 64) if degrees in (90, 270) else (64, 48)
    assert (video.width, video.height) == (width, height) == video.frames.shape[2:0:-1]
    turned = np.rot90(_quadrant_pixels(), -degrees // 90)  # the matrix turns clockwise
    assert np.abs(video.frames[0].astype(int) - turned).mean() < 12


def test_a_display_matrix_that_mirrors() -> None:
    data = bytearray(_quadrants())
    at = data.index(b"tkhd") + 4 + 4 + 36
    data[at : at + 4] = (-1 << 16).to_bytes(4, "big", signed=True)
    assert np.abs(decoded(bytes(data)).frames[0].astype(int) - _quadrant_pixels()[:, ::-1]).mean() < 12


def _quadrant_pixels() -> np.ndarray:
    pixels = np.full((48, 64, 3), 128, np.uint8)
    pixels[:24, :32] = (200, 30, 30)
    pixels[24:, 32:] = (30, 30, 200)
    return pixels


def _quadrants() -> bytes:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        container.mux(stream.encode(av.VideoFrame.from_ndarray(_quadrant_pixels(), "rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def test_frames_of_too_many_pixels_are_refused() -> None:
    with pytest.raises(DecodeError, match="--max-pixels") as caught:
        load(Media("", clip(3), Kind.VIDEO), VIDEOS, MediaOptions(max_pixels=3000))
    assert caught.value.type == "too_large"


def test_odd_sizes() -> None:
    video = decoded(clip(3, "webm", "libvpx-vp9", size=(161, 121)))
    assert (video.width, video.height) == (161, 121)
    assert video.frames.shape == (3, 121, 161, 3)


@pytest.mark.parametrize("size", [(1280, 720), (720, 1280), (1024, 768)])
def test_large_frames_are_kept_at_twice_the_models_size(size: tuple[int, int]) -> None:
    video = decoded(clip(3, size=size))
    assert (video.width, video.height) == size
    target = gemma.image_size(*size, gemma.VIDEO_BUDGET)
    height, width = video.frames.shape[1:3]
    assert gemma.image_size(width, height, gemma.VIDEO_BUDGET) == target
    assert width <= 2.3 * target[0]
    assert height <= 2.3 * target[1]
    assert levels(video) == pytest.approx([grey(i) for i in range(3)], abs=4)


def test_sound_alone_is_no_video() -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.rate = 16_000
        container.mux([*stream.encode(frame), *stream.encode(None)])
    error = failure(buffer.getvalue())
    assert error.type == "no_video_stream"
    assert "no video stream" in str(error)
    assert failure(buffer.getvalue(), None).type == "wrong_kind"
    everything = load(Media("", buffer.getvalue()), frozenset(Kind), MediaOptions())
    assert isinstance(everything, Audio)


def test_a_video_without_sound_is_no_sound() -> None:
    with pytest.raises(DecodeError) as caught:
        load(Media("", clip(3), Kind.AUDIO), frozenset(Kind), MediaOptions())
    assert caught.value.type == "no_audio_stream"
    with pytest.raises(DecodeError) as caught:
        load(Media("", clip(3)), frozenset({Kind.AUDIO}), MediaOptions())
    assert caught.value.type == "no_audio_stream"


def test_a_video_is_no_image() -> None:
    with pytest.raises(DecodeError) as caught:
        load(Media("", clip(3)), frozenset({Kind.IMAGE}), MediaOptions())
    assert caught.value.type == "wrong_kind"
    assert "video" in str(caught.value)


def test_a_missing_index_is_named() -> None:
    data = clip(60)
    assert data.index(b"moov") > data.index(b"mdat")
    error = failure(data[: data.index(b"moov") - 100])
    assert error.type == "truncated"
    assert "moov" in str(error)


@pytest.mark.parametrize("format_", ["matroska", "mpegts", "avi"])
def test_a_file_that_breaks_off_gives_the_frames_that_are_there(format_: str) -> None:
    data = clip(200, format_, "mpeg4" if format_ == "avi" else "libx264")
    video = decoded(data[: len(data) * 6 // 10])
    assert 30 <= len(video.frames) <= 32
    assert 60 < video.total_frames < 160
    assert levels(video) == pytest.approx([grey(i) for i in video.frame_indices], abs=8)


def test_an_mp4_whose_data_end_early_gives_the_frames_that_are_there() -> None:
    data = _index_first(clip(200))
    video = decoded(data[: len(data) * 6 // 10])
    assert video.total_frames < 200
    assert levels(video) == pytest.approx([grey(i) for i in video.frame_indices], abs=8)


def _index_first(data: bytes) -> bytes:
    """The same MP4 with its moov box before its mdat, and the chunk offsets in it moved on."""
    at = data.index(b"moov") - 4
    moov, head, rest = bytearray(data[at:]), data[: data.index(b"ftyp") - 4 + 32], data[:at]
    table = moov.index(b"stco")
    for index in range(int.from_bytes(moov[table + 8 : table + 12], "big")):
        entry = table + 12 + 4 * index
        moved = int.from_bytes(moov[entry : entry + 4], "big") + len(moov)
        moov[entry : entry + 4] = moved.to_bytes(4, "big")
    return head + bytes(moov) + rest[len(head) :]


def test_broken_packets_cost_their_own_frames() -> None:
    data = bytearray(clip(100, "matroska", "mpeg4", gop=5))
    rng = np.random.default_rng(4)
    for at in rng.integers(len(data) // 3, len(data) // 2, 40):
        data[at] = 0xFF
    assert len(decoded(bytes(data)).frames) > 10


@pytest.mark.parametrize(
    "text",
    ["ffconcat version 1.0\nfile '{}'\n", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n",
     "<?xml version='1.0'?><MPD><BaseURL>{}</BaseURL></MPD>", "v=0\no=- 0 0 IN IP4 127.0.0.1\nm=video 5 RTP/AVP 96\n"],
)  # fmt: skip
def test_scripts_that_name_other_files_are_refused(text: str, tmp_path: Any) -> None:
    (tmp_path / "secret.mp4").write_bytes(clip(3))
    script = tmp_path / "list.mp4"
    script.write_text(text.format(tmp_path / "secret.mp4"))
    for kind in (None, Kind.VIDEO, Kind.AUDIO):
        with pytest.raises(DecodeError) as caught:
            load(Media(str(script), kind=kind), frozenset({Kind.VIDEO, Kind.AUDIO}), MediaOptions())
        assert caught.value.type == "unsupported_format"


@pytest.mark.parametrize("name", ["concat:x.mp4", "http:__x", "pipe:0", "%03d.png", "file:x.mp4", "x.m3u8"])
def test_names_mean_nothing(name: str, tmp_path: Any) -> None:
    path = tmp_path / name
    path.write_bytes(clip(3))
    assert isinstance(load(Media(str(path)), VIDEOS, MediaOptions()), Video)


def test_metadata_that_are_not_utf8() -> None:
    data = clip(3, "matroska", metadata="caf\u00e9").replace("caf\u00e9".encode(), b"caf\xe9\xe9")
    assert len(decoded(data).frames) == 3


@pytest.mark.parametrize("format_", ["GIF", "PNG", "WEBP"])
def test_animations_are_videos_when_videos_are_asked_for(format_: str) -> None:
    frames = [Pillow.new("RGBA", (85, 77), (grey(i), grey(i), grey(i), 255)) for i in range(40)]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, format_, save_all=True, append_images=frames[1:], duration=[100, 50] * 20, **_lossless(format_)
    )
    data = buffer.getvalue()
    assert isinstance(load(Media("", data), frozenset(Kind), MediaOptions()), Image)
    assert isinstance(load(Media("", data), VIDEOS, MediaOptions()), Video)
    video = decoded(data)
    assert (video.width, video.height, video.total_frames) == (85, 77, 40)
    assert video.duration_s == pytest.approx(3.0)
    assert levels(video) == pytest.approx([grey(i) for i in video.frame_indices], abs=3)
    assert video.times_s == pytest.approx([i // 2 * 0.15 + i % 2 * 0.1 for i in video.frame_indices])


def _lossless(format_: str) -> dict[str, Any]:
    return {"lossless": True} if format_ == "WEBP" else {}


def test_a_still_image_is_no_video() -> None:
    buffer = io.BytesIO()
    Pillow.new("RGB", (8, 8)).save(buffer, "JPEG")
    assert failure(buffer.getvalue()).type == "no_video_stream"
    assert failure(buffer.getvalue(), None).type == "wrong_kind"


def test_rows_and_tasks_must_agree_before_anything_is_read() -> None:
    with pytest.raises(DecodeError) as caught:
        load(Media("/nowhere", kind=Kind.VIDEO), frozenset({Kind.IMAGE}), MediaOptions())
    assert caught.value.type == "wrong_kind"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    data = clip(60)
    decoded(data)
    failure(data[:500])
    failure(b"\0\0\0\x18ftypisom" + bytes(500))
    assert capfd.readouterr() == ("", "")


def test_a_box_that_claims_to_reach_beyond_every_file_is_a_row_error(tmp_path: Path) -> None:
    path = tmp_path / "endless.mp4"
    box = (1).to_bytes(4, "big") + b"free" + (2**63).to_bytes(8, "big")
    path.write_bytes((24).to_bytes(4, "big") + b"ftypisom" + b"\0\0\2\0isommp41" + box + bytes(64))
    with pytest.raises(DecodeError) as error:
        load(Media(str(path), None, Kind.VIDEO), frozenset({Kind.VIDEO}), MediaOptions())
    assert error.value.type in ("truncated", "corrupt")


@pytest.mark.parametrize("size", [(1280, 720), (720, 1440), (320, 240)])
def test_exact_frames_are_what_the_model_makes_of_whole_ones(tmp_path: Path, size: tuple[int, int]) -> None:
    resize = pytest.importorskip("gemma4cli.media.resize")
    path = tmp_path / "noise.mp4"
    noise = np.random.default_rng(3).integers(0, 256, (4, size[1], size[0], 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=4, options={"preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for picture in noise:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))

    def frames(**options: Any) -> Any:
        video = load(Media(str(path)), frozenset({Kind.VIDEO}), MediaOptions(**options))
        assert isinstance(video, Video)
        assert (video.width, video.height) == size
        return video.frames

    whole, exact = frames(frame_scale=100), frames(exact_frames=True)
    model = gemma.image_size(*size, gemma.VIDEO_BUDGET)
    expected = [resize.resized(frame, *model) if model[0] < size[0] else frame for frame in whole]
    assert np.array_equal(exact, np.stack(expected))
