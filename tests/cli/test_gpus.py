"""--gpus through the installed command, on fake engines that each have a process of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

ROWS = 120
ENGINES = 3


@pytest.fixture
def manifest(poisoned: Callable[[int], Path]) -> Path:
    return poisoned(ROWS)


def arguments(manifest: Path, *engine_args: str, output: str = "out", gpus: str = str(ENGINES)) -> list[str]:
    extra = [word for arg in engine_args for word in ("--engine-arg", arg)]
    shared = ["annotate", str(manifest), "--prompt-column", "q", "--engine", "fake", "-o", output]
    return [*shared, *extra, *(["--gpus", gpus] if gpus else [])]


def rows(folder: Path, output: str = "out") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / output / "data").to_pylist()
    return found


def engine(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / ".gemma4cli" / "summary.json").read_text())["engine"]
    return found


def child(parent: int, name: str) -> int:
    """The process below another one that has this name."""
    threads = Path(f"/proc/{parent}/task").iterdir()
    below = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    (found,) = [pid for pid in below if Path(f"/proc/{pid}/comm").read_text().strip() == name]
    return int(found)


def test_several_engines_give_the_answers_of_one(gemma4, manifest: Path, tmp_path: Path) -> None:
    one = gemma4(*arguments(manifest, output="alone", gpus=""))
    several = gemma4(*arguments(manifest, "latency_ms=5", "capacity=8"))
    assert (one.returncode, several.returncode) == (0, 0), several.stderr
    texts = [[(row["row_index"], row["text"]) for row in rows(tmp_path, output)] for output in ("alone", "out")]
    assert texts[0] == texts[1]
    each = engine(tmp_path)["engines"]
    assert [entry["name"] for entry in each] == [f"engine {i}" for i in range(ENGINES)]
    assert sum(entry["rows"] for entry in each) == ROWS
    lines = [line for line in several.stderr.splitlines() if re.match(r"  engine \d: \d+ rows", line)]
    assert len(lines) == ENGINES


def test_the_row_that_kills_engines_kills_one_and_all_others_are_done(gemma4, manifest: Path, tmp_path: Path) -> None:
    done = gemma4(*arguments(manifest, "die_on=poison", "capacity=16"))
    assert done.returncode == 3, done.stderr
    found = rows(tmp_path)
    assert [row["row_index"] for row in found] == list(range(ROWS))
    assert [row["row_index"] for row in found if row["status"] == "failed"] == [17]
    # Made smaller it is tried on the engine that it killed, not on one that has rows of others.
    assert sorted(entry["deaths"] > 0 for entry in engine(tmp_path)["engines"]) == [False, False, True]


def test_a_process_that_is_killed_loses_no_row(manifest: Path, tmp_path: Path) -> None:
    words = arguments(manifest, "rows_per_s=15", "capacity=8")
    command = Path(sys.executable).with_name("gemma4")
    with subprocess.Popen([command, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "engine 1 is up" in line:
                break
        os.kill(child(process.pid, "gemma4 engine 1"), signal.SIGKILL)
        said = process.stderr.read()
    assert process.returncode == 0, said
    found = rows(tmp_path)
    assert [row["row_index"] for row in found] == list(range(ROWS))
    assert {row["status"] for row in found} == {"ok"}
    assert engine(tmp_path)["deaths"] == 1


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--gpus", "0"), "--gpus 0 leaves nothing to run on"),
        (("--gpus", "0,0,1"), "--gpus 0,0,1 names some GPUs more often"),
        (("--gpus", "0,2"), "--gpus 0,2: the engine runs on the CPU here"),
        (("--gpus", "3", "--tensor-parallel", "2"), "--gpus 3 does not divide into engines of 2"),
        (("--engine-arg", "tensor_parallel_size=2"), "--engine-arg tensor_parallel_size is"),
    ],
)
def test_what_cannot_be_is_refused_at_once(gemma4, manifest: Path, flags: tuple[str, ...], said: str) -> None:
    done = gemma4(*arguments(manifest, gpus=""), *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_it_can_be_set_in_the_environment(gemma4, manifest: Path, tmp_path: Path) -> None:
    done = gemma4(*arguments(manifest, gpus=""), "--limit", "4", env={"GEMMA4_GPUS": "2"})
    assert done.returncode == 0, done.stderr
    assert len(engine(tmp_path)["engines"]) == 2


def test_too_few_open_files_are_refused_early(gemma4, manifest: Path) -> None:
    words = " ".join(arguments(manifest, "capacity=4000", gpus="2"))
    command = Path(sys.executable).with_name("gemma4")
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 3000; {command} {words}"], cwd=manifest.parent, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "the system allows 3,000" in done.stderr
    assert "ulimit -Hn" in done.stderr


def test_ctrl_c_finishes_the_rows_that_are_in_the_engines(manifest: Path, tmp_path: Path) -> None:
    words = arguments(manifest, "rows_per_s=10", "capacity=4")
    command = Path(sys.executable).with_name("gemma4")
    with subprocess.Popen(
        [command, *words], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "is up as well" in line:
                break
        log, began = tmp_path / "out" / ".gemma4cli" / "engine.log", time.monotonic()
        while "the first row is here" not in log.read_text():  # rendering it may take longer than a second engine
            assert time.monotonic() - began < 60
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130, said
    found = rows(tmp_path)
    assert 0 < len(found) < ROWS
    assert {row["status"] for row in found} == {"ok"}


def test_a_run_whose_notes_nobody_reads_is_done(manifest: Path, tmp_path: Path) -> None:
    words = arguments(manifest, "start_s=0.2")
    command = Path(sys.executable).with_name("gemma4")
    with subprocess.Popen([command, *words], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert b"loading the model" in process.stderr.readline()
        process.stderr.close()
        process.wait(timeout=60)
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}
    assert len(rows(tmp_path)) == ROWS
