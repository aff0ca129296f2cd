"""Flags about media, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from gemma4cli import demo
from gemma4cli.tiny import films

FAKE = ("--engine", "fake", "-o", "-")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def two_sides(tmp_path: Path) -> Path:
    """Two seconds with a tone on the left and another on the right."""
    tones = [0.3 * np.sin(np.arange(32_000) * 2 * np.pi * hertz / 16_000) for hertz in (440, 700)]
    soundfile.write(tmp_path / "two.wav", np.stack(tones, 1), 16_000)
    return tmp_path / "two.wav"


def test_channels_and_parts_of_a_sound(gemma4, two_sides: Path) -> None:
    def row(*flags: str) -> dict:
        (found,) = lines(gemma4("transcribe", two_sides, "--no-vad", *FAKE, *flags).stdout)
        return found

    heard = {name: row("--channel", name)["text"] for name in ("mix", "left", "2")}
    assert len(set(heard.values())) == 3
    assert row("--channel", "right")["text"] == heard["2"]
    assert row("--channel", "5")["error_type"] == "no_channel"
    part = row("--start", "0:00.5", "--end", "1.25")
    assert part["duration_s"] == 0.75
    assert [(s["start"], s["end"]) for s in part["segments"]] == [(0.5, 1.25)]
    assert row("--start", "9")["error_type"] == "no_samples"


def test_a_translation_goes_with_its_transcript(gemma4, two_sides: Path) -> None:
    translate = ("transcribe", two_sides, "--no-vad", *FAKE, "--task", "translate", "--to", "German")
    (row,) = lines(gemma4(*translate, "--language", "French").stdout)
    assert (row["status"], row["text"]) == ("ok", row["transcript"])
    assert [segment["text"] for segment in row["segments"]] == [row["text"]]
    (row,) = lines(gemma4(*translate, "--max-tokens", "2").stdout)
    assert (row["error_stage"], row["error_type"], row["text"]) == ("parse", "no_translation", None)
    (row,) = lines(gemma4("transcribe", two_sides, "--no-vad", *FAKE).stdout)
    assert row["transcript"] is None


def test_animations_and_pages(gemma4, tmp_path: Path) -> None:
    pictures = [Image.new("RGB", (60, 50), colour) for colour in ("red", "green", "blue")]
    for name in ("a.gif", "b.tiff"):
        pictures[0].save(tmp_path / name, save_all=True, append_images=pictures[1:])

    def found(*flags: str) -> list[tuple[str, str, int | None]]:
        rows = lines(gemma4("caption", "a.gif", "b.tiff", *FAKE, *flags).stdout)
        return [(row["modality"], row["bucket"], row["frames"]) for row in rows]

    image = ("image", "image-280", None)
    assert found() == [image, image]
    assert found("--frames", "all") == [("video", "video-3f", 3), ("image", "+".join(["image-280"] * 3), None)]
    assert found("--frames", "2") == [("video", "video-2f", 2), ("image", "image-280+image-280", None)]
    assert found("--pages") == [image, ("image", "+".join(["image-280"] * 3), None)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to", "German"], "--to"),
        (["--task", "translate"], "--task translate"),
        (["--task", "sing"], "--task sing"),
        (["--task", "translate", "--to", "German", "--prompt", "Hm?"], "--prompt"),
        (["--task", "translate", "--to", "German", "--prompt-column", "q"], "--prompt-column"),
        (["--channel", "middle"], "--channel middle"),
        (["--start", "soon"], "--start 'soon'"),
        (["--start", "5", "--end", "4"], "--end 4"),
        (["--fps", "0"], "--fps 0"),
        (["--frames", "99"], "--frames 99"),
    ],
)
def test_what_makes_no_sense_is_refused(gemma4, two_sides: Path, arguments: list[str], said: str) -> None:
    done = gemma4("transcribe", two_sides, *FAKE, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_long_video_is_one_row_of_windows(gemma4, tmp_path: Path) -> None:
    demo.write_video(tmp_path / "film.mp4", films.random_film(7))
    (whole,) = lines(gemma4("caption", "film.mp4", *FAKE).stdout)
    length = whole["duration_s"]
    (row,) = lines(gemma4("caption", "film.mp4", *FAKE, "--window", "1").stdout)
    segments = row["segments"]
    assert (row["status"], row["modality"], row["duration_s"]) == ("ok", "video", length)
    assert [s["start"] for s in segments] == [float(i) for i in range(len(segments))]
    assert segments[-1]["end"] == length
    assert len(segments) == round(length)
    assert len({s["text"] for s in segments}) > 1
    assert row["text"] == "\n".join(s["text"] for s in segments)
    assert row["video_tokens"] == whole["video_tokens"] // whole["frames"] * row["frames"]
    (part,) = lines(gemma4("caption", "film.mp4", *FAKE, "--window", "1", "--start", "1").stdout)
    assert [s["text"] for s in part["segments"]] == [s["text"] for s in segments[1:]]
    (short,) = lines(gemma4("caption", "film.mp4", *FAKE, "--window", "60").stdout)
    assert (short["text"], short["segments"]) == (whole["text"], None)
