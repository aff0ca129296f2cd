"""Leaving out frames that no other is made from changes neither which frames are taken nor a pixel of them."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from gemma4cli.errors import DecodeError
from gemma4cli.media import timeline, video
from gemma4cli.media.container import open_container
from gemma4cli.media.decoded import Video
from gemma4cli.media.options import MediaOptions

FRAMES = 90
ENCODED = [
    ("libx264", "bframes=0", "mp4"),
    ("libx264", "bframes=3:b-pyramid=normal", "mp4"),
    ("libx264", "bframes=8:b-pyramid=none:b-adapt=0", "mkv"),
    ("libx264", "bframes=3:b-pyramid=strict:keyint=24", "ts"),
    ("libx264", "bframes=3:open-gop=1:keyint=20", "mp4"),
    ("libx264", "bframes=3:open-gop=1:keyint=20", "ts"),
    ("libx264", "bframes=3:tff=1", "mp4"),
    ("libx264", "bframes=2:tff=1:keyint=30", "ts"),
    ("libx264", "bframes=3:intra-refresh=1:keyint=30", "mkv"),
    ("libx264", "bframes=3:b-adapt=0", "avi"),
    ("libx265", "bframes=4:b-pyramid=1:log-level=none", "mp4"),
    ("libx265", "bframes=3:temporal-layers=3:log-level=none", "mp4"),
    ("libx265", "bframes=3:open-gop=1:keyint=20:log-level=none", "mkv"),
    ("libx265", "bframes=3:log-level=none", "ts"),
]


def made(folder: Path, encoder: str, parameters: str, container: str) -> Path:
    path = folder / f"clip.{container}"
    base = np.random.default_rng(5).integers(0, 255, (12, 20, 3), dtype=np.uint8)
    picture = np.kron(base, np.ones((16, 16, 1), np.uint8))
    options = {"preset": "veryfast", f"{encoder.removeprefix('lib')}-params": parameters}
    with av.open(str(path), "w", container_options={"fflags": "bitexact"}) as out:
        stream = out.add_stream(encoder, rate=Fraction(25), options=options)
        stream.codec_context.thread_count = 1
        stream.width, stream.height, stream.pix_fmt = 320, 192, "yuv420p"
        for i in range(FRAMES):
            shown = np.roll(picture, (3 * i, 5 * i), axis=(0, 1)) + np.uint8(i)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(shown, format="rgb24")))
        out.mux(stream.encode())
    return path


def decoded(path: Path, most: int, monkeypatch: pytest.MonkeyPatch, spare: bool) -> tuple[Video | str, int]:
    """What is taken of a file, or the error's words, and how many frames came out of decoders."""
    count = 0
    own = video._decoded

    def counting(*args: Any) -> Any:
        nonlocal count
        for frame in own(*args):
            count += 1
            yield frame

    with monkeypatch.context() as patched:
        patched.setattr(video, "_decoded", counting)
        if not spare:
            patched.setattr(video, "_can_spare", lambda *_: False)
        try:
            with path.open("rb") as file, open_container(file, path.name) as container:
                return video.decode_video(container, container.streams.video[0], MediaOptions(max_frames=most)), count
        except DecodeError as error:
            return f"{type(error).__name__}: {error}", count


def assert_same(made: Video | str, expected: Video | str) -> None:
    if isinstance(expected, str) or isinstance(made, str):
        assert made == expected
        return
    assert made.times_s == expected.times_s
    assert made.frame_indices == expected.frame_indices
    assert np.array_equal(made.frames, expected.frames)


@pytest.mark.parametrize(("encoder", "parameters", "container"), ENCODED)
def test_what_is_taken_is_the_same(
    encoder: str, parameters: str, container: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if encoder not in av.codecs_available:
        pytest.skip(f"this PyAV has no {encoder}")
    path = made(tmp_path, encoder, parameters, container)
    for most in (1, 2, 7, 32, FRAMES):
        expected, _ = decoded(path, most, monkeypatch, spare=False)
        assert isinstance(expected, Video)
        assert_same(decoded(path, most, monkeypatch, spare=True)[0], expected)


def test_of_several_temporal_layers_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, "libx265", "bframes=3:temporal-layers=3:log-level=none", "mp4")
    assert decoded(path, 4, monkeypatch, spare=True)[1] == decoded(path, 4, monkeypatch, spare=False)[1]


def test_frames_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(tmp_path, "libx264", "bframes=3:b-adapt=0:keyint=250", "mp4")
    _, whole = decoded(path, 4, monkeypatch, spare=False)
    _, spared = decoded(path, 4, monkeypatch, spare=True)
    assert spared < 0.7 * whole


@pytest.mark.parametrize("container", ["mp4", "ts", "mkv"])
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_decoded_as_if_nothing_were_left_out(
    container: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With macroblock trees, as with several threads, x264 does not always make the same bytes of the same frames.
    path = made(tmp_path, "libx264", "bframes=3:keyint=40:mbtree=0", container)
    data = bytearray(path.read_bytes())
    rng = random.Random(seed)
    if seed % 3 == 0:
        del data[rng.randrange(len(data) // 2, len(data)) :]
    else:
        for _ in range(1 if seed % 3 == 1 else 12):
            data[rng.randrange(len(data) // 5, len(data))] ^= rng.randrange(1, 256)
    path.write_bytes(data)
    assert_same(decoded(path, 8, monkeypatch, True)[0], decoded(path, 8, monkeypatch, False)[0])


def test_a_demuxer_that_stumbles_over_a_late_stream_ends_the_file() -> None:
    class Stumbling:
        def demux(self, stream: Any) -> Any:
            yield "packet"
            raise IndexError

    assert list(timeline.packets(Stumbling(), None)) == ["packet"]
