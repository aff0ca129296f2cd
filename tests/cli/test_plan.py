"""`gemma4 plan` and --dry-run: what they print, and that nothing is loaded or written for it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if ".home" not in path.parts}


def test_a_plan_of_a_folder(gemma4, photos: Path, tmp_path: Path) -> None:
    done = gemma4("plan", photos, "--model", "tiny")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("caption with tiny: 3 rows to do\n")
    assert "image-280" in done.stdout
    assert "no caption run with tiny on this machine yet" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert files_in(tmp_path) == set()


def test_the_plan_agrees_with_the_run_after_it(gemma4, photos: Path, clip: Path) -> None:
    inputs = [photos, clip, "--engine", "fake", "-p", "What is it?", "--max-soft-tokens", "auto"]
    planned = json.loads(gemma4("plan", "--task", "annotate", *inputs, "--json").stdout)
    assert gemma4("annotate", *inputs, "-o", "out.jsonl").returncode == 0
    shown = json.loads(gemma4("inspect", "out.jsonl", "--json").stdout)
    assert planned["rows"] == shown["ok"] == 4
    assert {kind: planned["tokens"][kind] for kind in ("image", "audio", "video")} == {
        kind: shown["tokens"][kind] for kind in ("image", "audio", "video")
    }
    assert {share["bucket"]: share["rows"] for share in planned["buckets"]} == {"image-70": 3, "audio-5s": 1}


def test_a_dry_run_writes_nothing_and_respects_what_is_done(gemma4, photos: Path, tmp_path: Path) -> None:
    command = ("caption", photos, "--engine", "fake", "-o", "out")
    first = gemma4(*command, "--dry-run")
    assert (first.returncode, files_in(tmp_path)) == (0, set())
    assert "3 rows to do" in first.stdout
    assert gemma4(*command, "--limit", "2").returncode == 0
    before = files_in(tmp_path)
    again = gemma4(*command, "--dry-run")
    assert "1 row to do" in again.stdout
    assert "2 ok, in out" in again.stdout
    assert files_in(tmp_path) == before
    other = gemma4(*command, "--dry-run", "--seed", "7")
    assert (other.returncode, other.stdout) == (2, "")
    assert "--seed was 0, is 7" in other.stderr
    assert "3 rows to do" in gemma4(*command, "--dry-run", "--overwrite").stdout


def test_earlier_runs_say_how_long_it_takes(gemma4, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"image": str(photos / "a.jpg")}) for _ in range(12)))
    run = ("caption", "rows.jsonl", "--engine", "fake", "-o", "-")
    assert "not known" in gemma4(*run, "--dry-run").stdout
    done = gemma4(*run)
    assert done.stdout.count("\n") == 12
    assert "as earlier runs went here" in gemma4(*run, "--dry-run").stdout


def test_what_would_fail_is_named(gemma4, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"image": "no.jpg"}\n{"image": "%s"}\nnonsense\n' % (photos / "a.jpg"))
    done = gemma4("plan", "rows.jsonl", "--model", "tiny")
    assert done.returncode == 0
    assert "would fail  2 rows" in done.stdout
    assert "1 fetch not_found, such as row 0:" in done.stdout
    assert "1 parse not_json, such as row 2:" in done.stdout


def test_rows_that_have_their_files_are_passed_over(gemma4, photos: Path, tmp_path: Path) -> None:
    command = ("caption", photos, "--engine", "fake", "--sidecar", "txt", "--output-dir", "texts", "-o")
    assert gemma4(*command, "one.jsonl").returncode == 0
    done = gemma4(*command, "two.jsonl", "--dry-run")
    assert "3 rows whose files are there" in done.stdout
    assert not (tmp_path / "two.jsonl").exists()


def test_nothing_heavy_is_imported_for_a_plan(photos: Path, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom gemma4cli.cli import app\n"
        "try:\n    app(['plan', sys.argv[1], '--model', 'tiny'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'librosa', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(photos)], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_unknown_tasks_are_refused(gemma4, photos: Path) -> None:
    done = gemma4("plan", photos, "--task", "summarise")
    assert (done.returncode, done.stdout) == (2, "")
    assert "caption, transcribe, annotate" in done.stderr
