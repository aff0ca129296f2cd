"""The files that go with rows, through the installed command: captions and transcripts beside inputs or mirrored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pysubs2
import pytest

FAKE = ("--engine", "fake")
SAY = (*FAKE, "--no-vad")


def rows(folder: Path) -> list[dict]:
    return pq.read_table(folder / "data").to_pylist()


@pytest.fixture
def pictures(photos: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(photos, tmp_path / "pictures"))


@pytest.fixture
def talks(clip: Path, tmp_path: Path) -> Path:
    (tmp_path / "talks" / "week").mkdir(parents=True)
    for name in ("one.wav", "week/two.wav"):
        shutil.copy(clip, tmp_path / "talks" / name)
    return tmp_path / "talks"


def test_transcripts_lie_beside_their_inputs(gemma4, talks: Path, tmp_path: Path) -> None:
    done = gemma4("transcribe", talks, *SAY, "--format", "srt,json")
    assert done.returncode == 0, done.stderr
    assert "4 files written" in done.stderr
    assert sorted(path.name for path in talks.rglob("*.*")) == [
        "one.json", "one.srt", "one.wav", "two.json", "two.srt", "two.wav"
    ]  # fmt: skip
    first, _ = rows(tmp_path / "gemma4-transcribe")
    (cue,) = pysubs2.load(str(talks / "one.srt"))
    assert (cue.start, cue.end, cue.plaintext) == (0, 1000, first["text"])
    (segment,) = json.loads((talks / "one.json").read_text())["segments"]
    assert [{**segment, "transcript": None}] == first["segments"]


def test_transcripts_mirror_the_tree_in_every_format_with_rows_as_lines(gemma4, talks: Path, tmp_path: Path) -> None:
    done = gemma4("transcribe", talks, *SAY, "--format", "jsonl,all", "--output-dir", "subs", "-o", "-")
    assert len(done.stdout.splitlines()) == 2
    found = sorted(str(path.relative_to(tmp_path / "subs")) for path in (tmp_path / "subs").rglob("*.*"))
    endings = ("json", "srt", "tsv", "txt", "vtt")
    assert found == [f"{name}.{ending}" for name in ("one", "week/two") for ending in endings]
    assert sorted(talks.rglob("*.*")) == [talks / "one.wav", talks / "week" / "two.wav"]


def test_a_file_that_is_missing_is_written_from_the_row_of_an_earlier_run(gemma4, talks: Path) -> None:
    assert gemma4("transcribe", talks, *SAY).returncode == 0
    done = gemma4("transcribe", talks, *SAY, "--format", "txt")
    assert "nothing is left to do" in done.stderr
    assert "2 files written" in done.stderr
    text = (talks / "one.txt").read_text()
    assert text.startswith("audio 1.00 s")
    (talks / "one.txt").unlink()
    (talks / "week" / "two.txt").write_text("by hand")
    assert "1 files written" in gemma4("transcribe", talks, *SAY, "--format", "txt").stderr
    assert (talks / "one.txt").read_text() == text
    assert (talks / "week" / "two.txt").read_text() == "by hand"


def test_lines_are_as_wide_as_was_said(gemma4, talks: Path) -> None:
    gemma4("transcribe", talks, *SAY, "--format", "srt", "--max-line-width", "12", "--max-lines", "1")
    cues = pysubs2.load(str(talks / "one.srt"))
    assert len(cues) > 1
    assert all(len(cue.plaintext) <= 12 for cue in cues)


def test_rows_that_failed_get_no_file_and_equal_ones_get_theirs(gemma4, talks: Path) -> None:
    (talks / "broken.wav").write_text("no sound")
    done = gemma4("transcribe", talks, *SAY, "--format", "txt", "--dedupe")
    assert done.returncode == 3
    assert not (talks / "broken.txt").exists()
    assert (talks / "one.txt").read_text() == (talks / "week" / "two.txt").read_text()


def test_where_no_file_can_be_the_row_keeps_its_answer_and_the_run_says_so(gemma4, talks: Path, tmp_path: Path) -> None:
    (tmp_path / "subs").mkdir()
    (tmp_path / "subs" / "week").write_text("in the way")
    done = gemma4("transcribe", talks, *SAY, "--format", "txt", "--output-dir", "subs")
    assert done.returncode == 3
    assert "subs/week" in done.stderr
    assert "1 rows have no file: not_writable" in done.stderr
    assert [row["status"] for row in rows(tmp_path / "gemma4-transcribe")] == ["ok", "ok"]
    summary = json.loads((tmp_path / "gemma4-transcribe" / ".gemma4cli" / "summary.json").read_text())
    assert summary["files"] == {"written": 1, "problems": {"not_writable": 1}}


def test_captions_for_trainers_and_rows_that_are_skipped_for_theirs(gemma4, pictures: Path, tmp_path: Path) -> None:
    (pictures / "b.txt").write_text("mine\n")
    options = ("caption", pictures, *FAKE, "--sidecar", "txt", "--prefix", "photo of ", "--suffix", ".")
    done = gemma4(*options)
    assert done.returncode == 0, done.stderr
    assert "2 of 3 rows ok, 1 skipped" in done.stderr
    assert (pictures / "b.txt").read_text() == "mine\n"
    a, b, _ = rows(tmp_path / "gemma4-caption")
    assert (b["status"], b["text"], b["attempts"], b["output_tokens"]) == ("skipped", None, 0, None)
    assert (pictures / "a.txt").read_text() == f"photo of {a['text']}.\n"
    (pictures / "b.txt").unlink()
    (pictures / "a.txt").unlink()
    again = gemma4(*options)
    assert "1 of 1 rows ok" in again.stderr
    assert [row["status"] for row in rows(tmp_path / "gemma4-caption")] == ["ok"] * 3
    assert (pictures / "a.txt").read_text() == f"photo of {a['text']}.\n"
    assert (pictures / "b.txt").exists()


def test_where_every_row_is_skipped_the_engine_never_starts(gemma4, pictures: Path) -> None:
    for name in ("a", "b", "more/c"):
        (pictures / f"{name}.caption").touch()
    done = gemma4("caption", pictures, *FAKE, "--sidecar", "caption", "--engine-arg", "start_s=600", timeout=30)
    assert done.returncode == 0
    assert "3 skipped" in done.stderr


@pytest.mark.parametrize(
    ("existing", "expected"), [("append", "mine {}\n"), ("prepend", "{} mine\n"), ("overwrite", "{}\n")]
)
def test_captions_meet_those_that_are_there(
    gemma4, pictures: Path, tmp_path: Path, existing: str, expected: str
) -> None:
    (pictures / "a.txt").write_text("mine\n")
    for _ in range(2):
        assert gemma4("caption", pictures, *FAKE, "--sidecar", "txt", "--existing", existing).returncode == 0
        text = rows(tmp_path / "gemma4-caption")[0]["text"]
        assert (pictures / "a.txt").read_text() == expected.format(text)


def test_two_inputs_for_one_sidecar_are_told_and_whole_names_tell_them_apart(gemma4, pictures: Path) -> None:
    shutil.copy(pictures / "b.png", pictures / "a.png")
    done = gemma4("caption", pictures, *FAKE, "--sidecar", "txt", "-o", "one")
    assert done.returncode == 3
    assert "belongs to row 0 already" in done.stderr.replace("\n", " ")
    done = gemma4("caption", pictures, *FAKE, "--sidecar", "json", "--whole-name", "-o", "two")
    assert done.returncode == 0
    assert json.loads((pictures / "a.png.json").read_text())["height"] == 64


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["caption", "--sidecar", "xml"], "--sidecar xml"),
        (["caption", "--sidecar", "txt", "--existing", "keep"], "--existing keep"),
        (["caption", "--sidecar", "json", "--existing", "append"], "JSON"),
        (["caption", "--prefix", "x"], "--prefix"),
        (["transcribe", "--format", "srt,ass"], "'ass'"),
        (["transcribe", "--format", "parquet,jsonl"], "--format parquet,jsonl"),
        (["transcribe", "--max-lines", "1"], "no files"),
        (["transcribe", "--format", "srt", "--max-line-width", "3"], "8 characters"),
    ],
)
def test_what_makes_no_sense_is_refused(gemma4, pictures: Path, arguments: list[str], said: str) -> None:
    done = gemma4(arguments[0], pictures, *FAKE, *arguments[1:])
    assert done.returncode == 2
    assert said in done.stderr


def test_rows_that_were_skipped_are_looked_at_again_in_lines_of_json_too(
    gemma4, pictures: Path, tmp_path: Path
) -> None:
    (pictures / "a.txt").write_text("mine\n")
    options = ("caption", pictures, *FAKE, "-o", "rows.jsonl")
    assert "1 skipped" in gemma4(*options, "--sidecar", "txt").stderr
    assert "1 of 1 rows ok" in gemma4(*options).stderr
    found = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["status"] for row in found] == ["ok"] * 3
    assert (pictures / "a.txt").read_text() == "mine\n"


def test_these_flags_come_from_the_environment_too(gemma4, talks: Path, pictures: Path) -> None:
    done = gemma4("transcribe", talks, *SAY, env={"GEMMA4_FORMAT": "txt,jsonl", "GEMMA4_OUTPUT": "-"})
    assert len(done.stdout.splitlines()) == 2
    assert (talks / "one.txt").exists()
    assert gemma4("caption", pictures, *FAKE, env={"GEMMA4_SIDECAR": "caption"}).returncode == 0
    assert (pictures / "a.caption").exists()
