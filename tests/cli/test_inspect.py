"""`gemma4 inspect`: what an output says of itself, in every state and form."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

FAKE = ("--engine", "fake")
OUTPUTS = ["out", "out.parquet", "out.jsonl"]


@pytest.fixture
def manifest(photos: Path, tmp_path: Path) -> Path:
    """Five rows: two are fine, two have no file, one is no line of JSON."""
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "rows.jsonl"
    rows = [
        {"id": "a", "image": str(photos / "a.jpg"), "q": "one", "n": 1},
        {"id": "gone", "image": "gone.png", "q": "two", "n": 2},
        {"id": "b", "image": str(photos / "b.png"), "q": "three", "n": 3},
        {"id": "lost", "image": "sub/lost.png", "q": "four", "n": 4},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    return path


def report(gemma4, output: str) -> dict:
    done = gemma4("inspect", output, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("output", OUTPUTS)
def test_finished_output(gemma4, manifest: Path, output: str) -> None:
    assert gemma4("annotate", manifest, "--prompt-column", "q", *FAKE, "-o", output).returncode == 3
    found = report(gemma4, output)
    assert (found["state"], found["owner"]) == ("finished", "")
    assert (found["ok"], found["failed"], found["left"]) == (2, 3, 0)
    assert found["finish_reasons"] == {"stop": 2}
    assert found["tokens"]["image"] > 0
    missing, unread = found["failures"]
    assert (missing["stage"], missing["type"], missing["rows"], missing["id"]) == ("fetch", "not_found", 2, "gone")
    assert (unread["stage"], unread["rows"]) == ("parse", 1)
    assert "line 5" in unread["message"]
    assert len(found["slowest"]) >= 2
    assert found["made_with"]["task"] == "annotate"
    shown = gemma4("inspect", output)
    assert shown.returncode == 0
    assert f"{output}: finished" in shown.stdout
    assert "2 ok, 3 failed" in shown.stdout
    assert "2 fetch not_found, such as gone:" in shown.stdout


@pytest.mark.parametrize("output", OUTPUTS)
def test_failed_inputs_are_a_manifest_that_can_be_run(gemma4, manifest: Path, photos: Path, output: str) -> None:
    gemma4("annotate", manifest, "--prompt-column", "q", *FAKE, "-o", output)
    done = gemma4("inspect", output, "--failed")
    assert done.returncode == 0
    assert "1 failed row has no input that could be named" in done.stderr
    folder = manifest.parent
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": "gone", "image": f"{folder}/gone.png", "prompt": "two", "q": "two", "n": 2},
        {"id": "lost", "image": f"{folder}/sub/lost.png", "prompt": "four", "q": "four", "n": 4},
    ]
    (folder / "gone.png").write_bytes((photos / "b.png").read_bytes())
    again = folder.parent / "failed.jsonl"
    again.write_text(done.stdout)
    assert gemma4("annotate", again, "--prompt-column", "prompt", *FAKE, "-o", "again").returncode == 3
    rows = pq.read_table(folder.parent / "again" / "data").to_pylist()
    assert [(row["id"], row["status"], row["n"]) for row in rows] == [("gone", "ok", 2), ("lost", "failed", 4)]


def test_failed_rows_with_one_image_and_with_several_share_a_column(gemma4, photos: Path, tmp_path: Path) -> None:
    images = [str(photos / "a.jpg"), str(tmp_path / "no.png")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"images": i}) + "\n" for i in (images, images[1:])))
    gemma4("caption", "rows.jsonl", *FAKE, "-o", "out")
    shown = gemma4("inspect", "out", "--failed").stdout
    assert [json.loads(line)["images"] for line in shown.splitlines()] == [images, images[1:]]


def test_running_and_interrupted_output(gemma4, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(f'{{"image": "{photos}/a.jpg"}}\n' * 5000)
    command = [Path(sys.executable).with_name("gemma4"), "caption", "rows.jsonl", "-o", "out", *FAKE]
    command += ["--engine-arg", "rows_per_s=50"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 30
            while not list(tmp_path.glob("out/data/part-*.parquet")):
                assert time.monotonic() < deadline
                assert process.poll() is None
            found = report(gemma4, "out")
            assert found["state"] == "running"
            assert found["owner"].startswith(f"process {process.pid} on ")
            assert 0 < found["ok"] < 5000
            assert found["ok"] + found["left"] == 5000
            refused = gemma4("caption", "rows.jsonl", "-o", "out", *FAKE)
            assert refused.returncode == 2
            assert f"another gemma4 is writing to out: process {process.pid} on " in refused.stderr
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    found = report(gemma4, "out")
    assert (found["state"], found["owner"]) == ("interrupted", "")
    assert found["ok"] + found["left"] == 5000
    assert "left" in gemma4("inspect", "out").stdout


def test_damage_is_told_and_left_as_it_is(gemma4, photos: Path, tmp_path: Path) -> None:
    gemma4("caption", photos, *FAKE, "-o", "out")
    path = tmp_path / "out" / "data" / "part-00000.parquet"
    path.write_bytes(path.read_bytes()[:50])
    shown = gemma4("inspect", "out")
    assert shown.returncode == 0
    assert "0 ok, 0 failed" in shown.stdout
    assert "cannot be read" in shown.stdout
    assert path.stat().st_size == 50


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("nowhere", "no such output: nowhere"),
        ("photos", "photos was not written by gemma4"),
        ("rows.jsonl", "rows.jsonl was not written by gemma4"),
        ("-", "standard output cannot be inspected"),
        ("x.csv", ".csv"),
    ],
)
def test_what_is_no_output_is_refused(gemma4, tmp_path: Path, output: str, said: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"image": "a.jpg"}\n')
    done = gemma4("inspect", output)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
