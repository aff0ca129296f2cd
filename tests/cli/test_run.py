"""The three tasks through the installed command, on the fake engine."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from gemma4cli import demo
from gemma4cli.tiny import CLIPS

FAKE = ("--engine", "fake")


def rows(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_folder_becomes_a_data_set_in_its_default_place(gemma4, photos: Path, tmp_path: Path) -> None:
    done = gemma4("caption", photos, *FAKE)
    assert done.returncode == 0
    assert done.stdout == ""
    assert "3 of 3 rows ok -> gemma4-caption" in done.stderr
    found = rows(tmp_path / "gemma4-caption" / "data")
    assert [row["id"] for row in found] == ["a.jpg", "b.png", "more/c.webp"]
    assert [(row["width"], row["height"]) for row in found] == [(64, 48), (48, 64), (80, 80)]
    assert {row["status"] for row in found} == {"ok"}
    assert {row["bucket"] for row in found} == {"image-280"}
    summary = json.loads((tmp_path / "gemma4-caption" / ".gemma4cli" / "summary.json").read_text())
    assert summary["rows"] == {"total": 3, "ok": 3, "failed": 0, "skipped": 0}
    assert summary["versions"]["gemma4cli"]


def test_files_and_a_quoted_glob_become_one_parquet_file(gemma4, photos: Path, tmp_path: Path) -> None:
    done = gemma4("caption", photos / "a.jpg", f"{photos}/more/*.webp", *FAKE, "-o", "captions.parquet")
    assert done.returncode == 0
    assert len(rows(tmp_path / "captions.parquet")) == 2


def test_paths_from_standard_input_become_json_lines_on_standard_output(gemma4, photos: Path, clip: Path) -> None:
    done = gemma4("transcribe", "-", "--no-vad", "--format", "jsonl", "-o", "-", *FAKE, stdin=f"{clip}\n{clip}\n")
    assert done.returncode == 0
    found = lines(done.stdout)
    assert [row["row_index"] for row in found] == [0, 1]
    assert found[0]["text"] == found[1]["text"] != ""
    assert found[0]["duration_s"] == 1.0


def test_a_manifest_mixes_media_and_carries_its_columns(gemma4, photos: Path, clip: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text(
        "\n".join(
            json.dumps(row)
            for row in [
                {"id": "x", "image": str(photos / "a.jpg"), "text": "mine", "score": 1.5},
                {"id": "y", "image": str(photos / "b.png"), "audio": str(clip), "text": "also", "score": None},
            ]
        )
    )
    done = gemma4("annotate", manifest, "--prompt", "What is it?", *FAKE, "-o", "out")
    assert done.returncode == 0, done.stderr
    first, second = rows(tmp_path / "out" / "data")
    assert (first["id"], first["input_text"], first["score"]) == ("x", "mine", 1.5)
    assert (first["modality"], second["modality"]) == ("image", "image+audio")
    assert second["audio_tokens"] > 0
    assert second["image_tokens"] > 0


def test_each_row_is_asked_its_own_prompt(gemma4, photos: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "rows.jsonl"
    image = str(photos / "a.jpg")
    manifest.write_text("\n".join(json.dumps({"path": image, "q": q}) for q in ["one", "fail this", None]))
    done = gemma4("annotate", manifest, "--prompt-column", "q", *FAKE, "--engine-arg", "fail_on=fail", "-o", "o.jsonl")
    assert done.returncode == 3
    first, second, third = lines((tmp_path / "o.jsonl").read_text())
    assert first["status"] == "ok"
    assert (second["status"], second["error_stage"], second["q"]) == ("failed", "engine", "fail this")
    assert (third["error_stage"], third["error_type"]) == ("render", "no_prompt")


def test_the_same_command_gives_the_same_rows_twice(gemma4, photos: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert gemma4("caption", photos, *FAKE, "-o", f"{name}.parquet").returncode == 0
    untimed = [
        [{key: value for key, value in row.items() if not key.endswith("_ms")} for row in rows(tmp_path / name)]
        for name in ("one.parquet", "two.parquet")
    ]
    assert untimed[0] == untimed[1]


def test_bad_input_is_a_failed_row_with_its_stage_and_reason(gemma4, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("<!doctype html><p>not found")
    (tmp_path / "cut.jpg").write_bytes((photos / "a.jpg").read_bytes()[:400])
    (tmp_path / "folder.jpg").mkdir()
    bad = [
        ("missing.jpg", "fetch"), ("folder.jpg", "fetch"), ("empty.jpg", "decode"),
        ("page.jpg", "decode"), ("cut.jpg", "decode"),
    ]  # fmt: skip
    manifest = tmp_path / "rows.jsonl"
    written = [json.dumps({"path": name}) for name, _ in bad]
    manifest.write_text("\n".join([*written, '{"path": ', "{}", json.dumps({"path": str(photos / "a.jpg")})]))
    done = gemma4("caption", manifest, *FAKE, "-o", "o.jsonl")
    assert done.returncode == 3
    found = lines((tmp_path / "o.jsonl").read_text())
    assert [row["error_stage"] for row in found] == [*(stage for _, stage in bad), "parse", "parse", None]
    assert all(row["error_message"] for row in found[:-1])
    assert "line 6" in found[5]["error_message"]
    assert not any("Traceback" in (row["error_message"] or "") for row in found)
    assert "Traceback" not in done.stderr
    assert "7 failed" in done.stderr


def test_sound_for_a_model_that_does_not_hear_fails_that_row_alone(
    gemma4, photos: Path, clip: Path, tmp_path: Path
) -> None:
    deaf = tmp_path / "deaf"
    deaf.mkdir()
    (deaf / "config.json").write_text(
        json.dumps({"architectures": ["Gemma4ForConditionalGeneration"], "vision_config": {}, "audio_config": None})
    )
    refused = gemma4("transcribe", clip, *FAKE, "--model", deaf)
    assert refused.returncode == 2
    assert "no audio tower" in refused.stderr
    mixed = gemma4("annotate", clip, photos / "a.jpg", "-p", "?", *FAKE, "--model", deaf, "-o", "o.jsonl")
    assert mixed.returncode == 3
    first, second = lines((tmp_path / "o.jsonl").read_text())
    assert (first["error_stage"], first["error_type"]) == ("render", "no_audio_tower")
    assert second["status"] == "ok"


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    """Two seconds in which digits are spoken, 16 kHz."""
    clip = max(demo.clips(), key=lambda clip: len(clip["transcript"]))
    samples, rate = soundfile.read(CLIPS / clip["file"], dtype="float32")
    assert rate == 16_000
    return samples[:32_000]


def test_a_long_recording_is_one_row_of_segments_cut_in_pauses(gemma4, tmp_path: Path, speech: np.ndarray) -> None:
    pause = np.zeros(16_000, "float32")
    soundfile.write(tmp_path / "long.wav", np.concatenate([speech, pause] * 15), 16_000)
    done = gemma4("transcribe", "long.wav", *FAKE, "-o", "-")
    assert done.returncode == 0, done.stderr
    (row,) = lines(done.stdout)
    assert row["duration_s"] == pytest.approx(len(np.concatenate([speech, pause])) * 15 / 16_000)
    segments = row["segments"]
    assert len(segments) > 1
    assert all(s["end"] - s["start"] <= 30 for s in segments)
    assert all(a["end"] <= b["start"] for a, b in itertools.pairwise(segments))
    assert row["text"] == " ".join(s["text"] for s in segments)
    assert row["output_tokens"] == sum(s["tokens"] for s in segments)


def test_a_piece_that_fails_fails_the_row_and_says_where(gemma4, tmp_path: Path, speech: np.ndarray) -> None:
    pause = np.zeros(16_000, "float32")
    soundfile.write(tmp_path / "long.wav", np.concatenate([speech, pause] * 15), 16_000)
    done = gemma4("transcribe", "long.wav", *FAKE, "--engine-arg", "fail_on=Transcribe", "-o", "-")
    (row,) = lines(done.stdout)
    assert (row["status"], row["text"], row["error_type"]) == ("failed", None, "fake_failure")
    assert re.match(r"from \d+\.\d s to \d+\.\d s: ", row["error_message"])


def test_silence_gets_an_empty_transcript_unless_it_is_wanted(gemma4, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "quiet.wav", np.zeros(32_000, "float32"), 16_000)
    (row,) = lines(gemma4("transcribe", "quiet.wav", *FAKE, "-o", "-").stdout)
    assert (row["status"], row["text"], row["finish_reason"], row["segments"]) == ("ok", "", "no_speech", [])
    (row,) = lines(gemma4("transcribe", "quiet.wav", *FAKE, "-o", "-", "--no-vad").stdout)
    assert row["text"] != ""


def test_a_question_about_sound_longer_than_the_model_hears_is_never_cut_silently(gemma4, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(31 * 16_000, "float32"), 16_000)
    done = gemma4("annotate", "long.wav", "-p", "Who speaks?", *FAKE, "-o", "-")
    assert done.returncode == 3
    (row,) = lines(done.stdout)
    assert (row["error_stage"], row["error_type"]) == ("render", "audio_too_long")


def test_no_more_rows_than_the_limit(gemma4, photos: Path) -> None:
    assert len(lines(gemma4("caption", photos, *FAKE, "--limit", "2", "-o", "-").stdout)) == 2


def test_quiet_says_nothing_and_verbose_shows_settings(gemma4, photos: Path) -> None:
    assert gemma4("caption", photos, *FAKE, "-q", "-o", "q.jsonl").stderr == ""
    assert "rows ok" in gemma4("caption", photos, *FAKE, "-v", "-o", "v.jsonl").stderr


def test_flags_come_from_the_environment_too_and_lose_to_flags(gemma4, photos: Path) -> None:
    env = {"GEMMA4_ENGINE": "fake", "GEMMA4_LIMIT": "1"}
    assert len(lines(gemma4("caption", photos, "-o", "-", env=env).stdout)) == 1
    assert len(lines(gemma4("caption", photos, "-o", "-", "--limit", "3", env=env).stdout)) == 3


def test_a_manifest_without_rows_gives_an_empty_output_with_its_columns(gemma4, tmp_path: Path) -> None:
    import pyarrow as pa

    pq.write_table(pa.table({"path": pa.array([], pa.string()), "n": pa.array([], pa.int64())}), tmp_path / "z.parquet")
    assert gemma4("caption", "z.parquet", *FAKE, "-o", "out.parquet").returncode == 0
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 0
    assert {"row_index", "text", "n"} <= set(table.column_names)


@pytest.mark.parametrize(
    ("arguments", "said", "advised"),
    [
        (["caption", "nowhere"], "nowhere", ""),
        (["caption", "{photos}", "--model", "E5B"], "--model E5B", "E4B"),
        (["caption", "{photos}", "--max-soft-tokens", "99"], "--max-soft-tokens 99", "70, 140, 280"),
        (["caption", "{photos}", "--engine-arg", "speed=9"], "--engine-arg speed", "latency_ms"),
        (["caption", "{photos}", "--engine-arg", "latency_ms=soon"], "--engine-arg", ""),
        (["caption", "{photos}", "--format", "csv"], "--format csv", "parquet or jsonl"),
        (["caption", "{photos}", "--format", "parquet", "-o", "-"], "standard output", "file name"),
        (["caption", "{photos}", "--format", "parquet", "-o", "x.jsonl"], "disagree", ""),
        (["caption", "{photos}", "-o", "no/such/place/x.parquet"], "no/such/place", "mkdir"),
        (["caption", "{photos}/notes.txt", "{photos}/missing.png"], "missing.png", ""),
        (["annotate", "{photos}"], "what to ask", "--prompt"),
        (["transcribe", "{photos}"], "no audio", ""),
        (["caption", "{manifest}", "--media-column", "pixture"], "pixture", "picture"),
    ],
)
def test_a_usage_error_says_what_is_wrong_and_what_would_do(
    gemma4, photos: Path, tmp_path: Path, arguments: list[str], said: str, advised: str
) -> None:
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text(json.dumps({"picture": str(photos / "a.jpg")}))
    done = gemma4(*(a.format(photos=photos, manifest=manifest) for a in arguments), *FAKE)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(r"^usage: ", done.stderr, re.MULTILINE)
    assert said in done.stderr
    assert advised in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("gemma4-*/data/*"))


def test_a_refused_command_leaves_the_way_free_for_the_right_one(gemma4, photos: Path) -> None:
    assert gemma4("caption", photos, *FAKE, "--engine-arg", "speed=9").returncode == 2
    assert gemma4("caption", photos, *FAKE).returncode == 0


def test_nothing_is_overwritten_unasked(gemma4, photos: Path) -> None:
    assert gemma4("caption", photos, *FAKE).returncode == 0
    again = gemma4("caption", photos, *FAKE, "--max-tokens", "9")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert gemma4("caption", photos, *FAKE, "--max-tokens", "9", "--overwrite").returncode == 0


def test_a_model_that_is_nowhere_is_one_error_with_the_ways_out(gemma4, photos: Path) -> None:
    done = gemma4("caption", photos)
    assert done.returncode == 1
    assert done.stderr.startswith("error: google/gemma-4-E4B-it is neither in this machine's model cache nor")
    for way in ("hf download", "--model /path/to/folder", "HF_HOME", "--model tiny"):
        assert way in done.stderr
    assert "Traceback" not in done.stderr
