"""Recordings of people through the installed command, on the fake engine: cuts, subtitles and translations."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pysubs2
import pytest

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
pytestmark = [
    pytest.mark.cases,
    pytest.mark.skipif(not CASES.is_dir(), reason="the corpus of cases is not here"),
]
FAKE = ("--engine", "fake", "-o", "-")


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """Seventy-five seconds of people speaking."""
    return Path(shutil.copy(CASES / "audio" / "long_over_60s.flac", tmp_path / "talk.flac"))


def test_subtitles_have_the_times_of_the_cuts(gemma4, talk: Path) -> None:
    done = gemma4("transcribe", talk, *FAKE, "--format", "srt,vtt")
    row = json.loads(done.stdout)
    assert len(row["segments"]) >= 3
    for ending in ("srt", "vtt"):
        cues = list(pysubs2.load(str(talk.with_suffix(f".{ending}"))))
        assert [(cue.start, cue.end) for cue in cues] == [
            (round(s["start"] * 1000), round(s["end"] * 1000)) for s in row["segments"]
        ]
        assert all(a.end <= b.start for a, b in itertools.pairwise(cues))
        assert cues[-1].end <= round(row["duration_s"] * 1000)


def test_a_part_has_the_times_of_the_whole(gemma4, talk: Path) -> None:
    row = json.loads(gemma4("transcribe", talk, *FAKE, "--start", "0:20", "--end", "1:00").stdout)
    assert row["duration_s"] == 40.0
    assert row["segments"][0]["start"] >= 20.0
    assert 30.0 < row["segments"][-1]["end"] <= 60.0


def test_a_long_translation_has_its_whole_transcript_beside_it(gemma4, talk: Path) -> None:
    row = json.loads(gemma4("transcribe", talk, *FAKE, "--task", "translate", "--to", "German").stdout)
    assert row["status"] == "ok"
    assert row["text"] == row["transcript"] == " ".join(s["text"] for s in row["segments"])


def test_silence_gives_empty_files_and_an_empty_translation(gemma4, tmp_path: Path) -> None:
    quiet = Path(shutil.copy(CASES / "audio" / "silence_5s.wav", tmp_path))
    done = gemma4("transcribe", quiet, *FAKE, "--task", "translate", "--to", "German", "--format", "srt,txt")
    row = json.loads(done.stdout)
    assert (row["status"], row["text"], row["transcript"], row["finish_reason"]) == ("ok", "", "", "no_speech")
    assert quiet.with_suffix(".srt").read_text() == quiet.with_suffix(".txt").read_text() == ""
