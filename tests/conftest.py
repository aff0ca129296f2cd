"""Fixtures that all tests share: the installed command, and small media made on the spot."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a real engine come first and one at a time, however many processes there are for the others."""
    items.sort(key=lambda item: item.get_closest_marker("vllm") is None)
    for item in items:
        if item.get_closest_marker("vllm") is not None:
            item.add_marker(pytest.mark.xdist_group("vllm"))


@pytest.fixture
def gemma4(tmp_path: Path) -> Run:
    """Runs the installed `gemma4` in a temporary folder, with an empty home and no network to look to."""
    command = Path(sys.executable).with_name("gemma4")
    home = tmp_path / ".home"
    home.mkdir()

    def run(
        *arguments: str | Path,
        stdin: str | None = None,
        env: Mapping[str, str] = {},
        cwd: Path = tmp_path,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *map(str, arguments)],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=timeout,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "HF_ENDPOINT": "http://127.0.0.1:9",
                "COLUMNS": "80",
                **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
                **env,
            },
        )

    return run


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of three images of one colour each, one of them in a folder below, and a text file."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("photos")
    (folder / "more").mkdir()
    for name, size, colour in [
        ("a.jpg", (64, 48), "red"),
        ("b.png", (48, 64), "green"),
        ("more/c.webp", (80, 80), "blue"),
    ]:
        Image.new("RGB", size, colour).save(folder / name)
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.fixture
def film(tmp_path: Path) -> Callable[..., Path]:
    """Writes a film of some seconds, with a sound track of 16 kHz samples or without."""
    from fractions import Fraction

    import av

    def write(name: str, seconds: float, sound: np.ndarray | None = None) -> Path:
        path = tmp_path / name
        with av.open(path, "w") as container:
            pictures = container.add_stream("libx264", rate=4)
            pictures.width, pictures.height, pictures.pix_fmt = 96, 64, "yuv420p"
            track = None if sound is None else container.add_stream("aac", rate=16_000, layout="mono")
            for i in range(round(seconds * 4)):
                pixels = np.full((64, 96, 3), (i * 7 % 256, i * 3 % 256, 128), np.uint8)
                container.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(pictures.encode())
            if track is not None and sound is not None:
                for at in range(0, len(sound), 1024):
                    frame = av.AudioFrame.from_ndarray(sound[None, at : at + 1024], format="fltp", layout="mono")
                    frame.sample_rate, frame.pts, frame.time_base = 16_000, at, Fraction(1, 16_000)
                    container.mux(track.encode(frame))
                container.mux(track.encode())
        return path

    return write


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second of a tone, 16 kHz mono."""
    import soundfile

    path = tmp_path_factory.mktemp("clips") / "tone.wav"
    soundfile.write(path, 0.3 * np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000), 16_000)
    return path
