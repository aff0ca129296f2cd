"""Every image, sound and video of the corpus of cases, where that lies beside the checkout."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

from gemma4cli.errors import RowError
from gemma4cli.media import Audio, Image, MediaOptions, Video, load
from gemma4cli.records import Kind, Media

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
INDEX = CASES / "cases.jsonl"

pytestmark = [pytest.mark.cases, pytest.mark.skipif(not INDEX.exists(), reason="no corpus of cases here")]

ENTRIES = [
    entry
    for line in (INDEX.read_text(encoding="utf-8").splitlines() if INDEX.exists() else ())
    if (entry := json.loads(line))["kind"] != "manifest"
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["file"] or entry["hazard"])
@pytest.mark.parametrize("stated", [True, False], ids=["kind-stated", "kind-found"])
def test_case(entry: dict[str, Any], stated: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = _placed(entry, tmp_path)
    kind = Kind(entry["kind"])
    media = Media(str(path), kind=kind if stated else None)
    expect = entry["expect"]
    outcomes = {expect["outcome"], *(also["outcome"] for also in expect.get("also_acceptable", ()))}
    if expect["outcome"] == "row_error" and not (outcomes == {"row_error", "ok"} and entry["kind"] == "audio"):
        with pytest.raises(RowError) as caught:
            load(media, frozenset({kind}), MediaOptions())
        assert caught.value.stage == expect["stage"]
        assert caught.value.type.islower()
        assert str(caught.value)
    else:
        try:
            result = load(media, frozenset({kind}), MediaOptions(frame_scale=100))
        except RowError:
            assert "row_error" in outcomes
        else:
            _check(result, expect, path)
    out = capfd.readouterr()
    assert (out.out, out.err) == ("", "")


def _placed(entry: dict[str, Any], folder: Path) -> Path:
    if entry["file"] is None:
        for command in entry["make"]:
            if "chmod 000" in command and os.geteuid() == 0:
                pytest.skip("root reads everything")
            subprocess.run(command.replace("images/", f"{CASES}/images/"), shell=True, check=True, cwd=folder)
        return folder / entry["make"][-1].split()[-1]
    if "stage_as" in entry:
        return Path(shutil.copy(CASES / entry["file"], folder / entry["stage_as"]))
    return CASES / entry["file"]


def _check(result: Image | Audio | Video, expect: dict[str, Any], path: Path) -> None:
    if isinstance(result, Audio):
        assert result.samples.dtype == np.float32
        assert np.isfinite(result.samples).all()
        assert result.duration_s == pytest.approx(expect["duration_s"], abs=0.02)
        assert len(result.samples) == pytest.approx(result.duration_s * 16000, abs=1)
        if "nan_samples" in expect:
            assert (result.samples == 0).sum() >= expect["nan_samples"]
        if "rms_mono" in expect:
            # The rate change takes away what lies above 8 kHz.
            loss = 0.1 if expect["sample_rate"] > 16000 else 0.02
            rms = float(np.sqrt(np.mean(np.square(result.samples, dtype=np.float64))))
            assert rms == pytest.approx(expect["rms_mono"], rel=loss, abs=1e-4)
        return
    assert (result.width, result.height) == (expect["width"], expect["height"])
    if isinstance(result, Image):
        assert result.pixels.shape == (expect["height"], expect["width"], 3)
        for point in expect.get("pixels", ()):
            _check_patch(result.pixels, point | {"tol": point["tol"] + _profile_shift(path)})
        return
    _check_video(result, expect)


def _profile_shift(path: Path) -> int:
    """The corpus gives pixels as stored; a profile of another gamma moves them when it is applied."""
    with Pillow.open(path) as picture:
        return 20 if b"Generic RGB Profile" in picture.info.get("icc_profile", b"") else 0


def _check_video(video: Video, expect: dict[str, Any]) -> None:
    assert len(video.frames) == len(video.times_s) == len(video.frame_indices) == min(32, expect["frames"])
    assert video.total_frames in (expect["frames"], expect["declared_frames"])
    assert video.times_s[0] == 0
    last = expect["last_pts_s"] - expect["first_pts_s"]
    assert video.duration_s == pytest.approx(expect.get("true_duration_s") or last, abs=max(0.2, last / 50))
    if "pts_s" in expect:
        assert video.times_s == pytest.approx(expect["pts_s"], abs=0.001)
    if expect["frames"] > 32:
        assert np.diff(video.times_s).max() < 2 * last / 31
        assert video.times_s[-1] > last * 0.9
    for point in expect.get("pixels", ()):
        at = max(i for i, time in enumerate(video.times_s) if time <= point["t"] + 1e-6)
        if expect["frames"] <= 32 or abs(video.times_s[at] - point["t"]) < 0.05:
            _check_patch(video.frames[at], point)
    for span in expect.get("colours_by_time", ()):
        for time, frame in zip(video.times_s, video.frames, strict=True):
            if span["from_s"] <= time < span["to_s"] - 0.001:
                corner = frame[10:20, 10:20].reshape(-1, 3).mean(axis=0)
                assert corner == pytest.approx(span["rgb"], abs=20), (time, span)


def _check_patch(pixels: np.ndarray, point: dict[str, Any]) -> None:
    x, y, r = point["x"], point["y"], point["patch_radius"]
    patch = pixels[max(0, y - r) : y + r + 1, max(0, x - r) : x + r + 1].reshape(-1, 3).mean(axis=0)
    assert patch == pytest.approx(point["rgb"], abs=point["tol"] + 0.5), point
