"""Fixtures that all tests share: the installed command, and small media made on the spot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

# The same examples every time, so that a failure is of the change at hand; --hypothesis-profile=default looks further.
# No deadline: a machine may be busy.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a real engine come first: with several processes the short ones then fill up the end."""
    items.sort(key=lambda item: item.get_closest_marker("vllm") is None)


def installed(folder: Path) -> Run:
    """Runs the installed `gemma4` in a folder, with an empty home and no network to look to."""
    command = Path(sys.executable).with_name("gemma4")
    home = folder / ".home"
    home.mkdir()

    def run(
        *arguments: str | Path,
        stdin: str | None = None,
        env: Mapping[str, str] = {},
        cwd: Path = folder,
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


@pytest.fixture
def gemma4(tmp_path: Path) -> Run:
    """The installed command in the test's folder."""
    return installed(tmp_path)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., tuple[list[dict[str, Any]], pa.Schema | None]]:
    """Gives the rows of an output of the test's folder, by what `-o` named, and their schema where it has one."""

    def read(done: subprocess.CompletedProcess[str], output: str) -> tuple[list[dict[str, Any]], pa.Schema | None]:
        if output == "-" or output.endswith(".jsonl"):
            text = done.stdout if output == "-" else (tmp_path / output).read_text()
            return [json.loads(line) for line in text.splitlines()], None
        table = pq.read_table(tmp_path / output if output.endswith(".parquet") else tmp_path / output / "data")
        return table.to_pylist(), table.schema

    return read


@pytest.fixture
def poisoned(photos: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Makes a manifest of so many rows that ask `q`; row 17 asks `poison`."""

    def write(count: int) -> Path:
        path = tmp_path / "rows.jsonl"
        rows = [{"path": str(photos / "a.jpg"), "q": "poison" if i == 17 else f"what {i}"} for i in range(count)]
        path.write_text("\n".join(map(json.dumps, rows)))
        return path

    return write


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs the command in this process, which takes a tenth of the time, and gives what it says on refusing."""
    import io

    from rich.console import Console
    from typer.testing import CliRunner

    from gemma4cli.cli import _output, app

    def run(*arguments: str | Path) -> str:
        said = io.StringIO()
        monkeypatch.setattr(_output, "_console", Console(file=said))
        monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 2, said.getvalue()
        assert "Traceback" not in said.getvalue()
        return said.getvalue()

    return run


@pytest.fixture(scope="module")
def gemma4_once(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same in a folder of the module's, for runs that several tests look at."""
    return installed(tmp_path_factory.mktemp("once"))


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
    from gemma4cli import demo

    def write(name: str, seconds: float, sound: np.ndarray | None = None) -> Path:
        colours = [(i * 7 % 256, i * 3 % 256, 128) for i in range(round(seconds * 4))]
        frames = np.tile(np.array(colours, np.uint8)[:, None, None], (1, 64, 96, 1))
        demo.encode(tmp_path / name, frames, 4, sound)
        return tmp_path / name

    return write


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One second of a tone, 16 kHz mono."""
    import soundfile

    path = tmp_path_factory.mktemp("clips") / "tone.wav"
    soundfile.write(path, 0.3 * np.sin(np.arange(16_000) * 2 * np.pi * 440 / 16_000), 16_000)
    return path
