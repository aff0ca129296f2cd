"""What goes wrong in the middle of a job, through the installed command, on the fake engine."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROWS = 40


@pytest.fixture
def manifest(poisoned: Callable[[int], Path]) -> Path:
    return poisoned(ROWS)


def arguments(manifest: Path, *engine_args: str, flags: tuple[str, ...] = ()) -> list[str]:
    extra = [word for arg in engine_args for word in ("--engine-arg", arg)]
    return ["annotate", str(manifest), "--prompt-column", "q", "--engine", "fake", "-o", "out", *extra, *flags]


def rows(folder: Path) -> list[dict]:
    return pq.read_table(folder / "out" / "data").to_pylist()


def summary(folder: Path) -> dict:
    return json.loads((folder / "out" / ".gemma4cli" / "summary.json").read_text())


def test_the_row_that_kills_the_engine_is_found_and_all_others_are_done(gemma4, manifest: Path, tmp_path: Path) -> None:
    done = gemma4(*arguments(manifest, "die_on=poison", "capacity=32"))
    assert done.returncode == 3, done.stderr
    found = rows(tmp_path)
    assert [row["row_index"] for row in found] == list(range(ROWS))
    assert [row["row_index"] for row in found if row["status"] == "failed"] == [17]
    assert (found[17]["error_stage"], found[17]["error_type"]) == ("engine", "engine_died")
    assert "the engine dies on this row" in found[17]["error_message"]
    assert found[17]["attempts"] > 1
    assert 1 <= summary(tmp_path)["engine"]["deaths"] <= math.log2(32) + 2


def test_a_row_that_is_too_much_for_the_engine_is_done_smaller(gemma4, manifest: Path, tmp_path: Path) -> None:
    done = gemma4(*arguments(manifest, "die_on=poison", "die_above=100", flags=("--max-soft-tokens", "140")))
    assert done.returncode == 0, done.stderr
    row = rows(tmp_path)[17]
    assert (row["status"], row["bucket"]) == ("ok", "image-70")
    assert {other["bucket"] for other in rows(tmp_path) if other["row_index"] != 17} == {"image-140"}


def test_a_silent_engine_counts_as_dead(gemma4, manifest: Path, tmp_path: Path) -> None:
    flags = ("--stall-timeout", "0.3")
    done = gemma4(*arguments(manifest, "stall_on=poison", "capacity=4", flags=flags))
    assert done.returncode == 3, done.stderr
    assert [row["row_index"] for row in rows(tmp_path) if row["status"] == "failed"] == [17]
    assert "made no token for 0.3 s" in rows(tmp_path)[17]["error_message"]


def test_an_engine_that_cannot_live_ends_the_job(gemma4, manifest: Path) -> None:
    done = gemma4(*arguments(manifest, "die_on=what", flags=("--max-engine-deaths", "5")))
    assert done.returncode == 1
    assert "error: the engine died 6 times without finishing a row" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "type", "attempts"), [("hang_on=poison", "timeout", 1), ("crash_on=poison", "worker_died", 2)]
)
def test_a_reader_that_hangs_or_crashes_costs_its_row_alone(
    gemma4, manifest: Path, tmp_path: Path, fault: str, type: str, attempts: int
) -> None:
    done = gemma4(*arguments(manifest, fault, flags=("--row-timeout", "2")))
    assert done.returncode == 3, done.stderr
    failed = [row for row in rows(tmp_path) if row["status"] == "failed"]
    assert [(row["row_index"], row["error_type"], row["attempts"]) for row in failed] == [(17, type, attempts)]
    assert len(rows(tmp_path)) == ROWS


def test_an_answer_that_goes_round_in_circles_is_tried_again(gemma4, manifest: Path, tmp_path: Path) -> None:
    assert gemma4(*arguments(manifest, "loop_on=poison")).returncode == 0
    row = rows(tmp_path)[17]
    assert (row["finish_reason"], row["attempts"]) == ("stop", 2)
    assert "and so on" not in row["text"]


def test_an_answer_that_stays_in_circles_is_marked(gemma4, manifest: Path, tmp_path: Path) -> None:
    done = gemma4(*arguments(manifest, "hopeless_on=poison"))
    assert done.returncode == 0
    assert {row["finish_reason"] for row in rows(tmp_path) if row["row_index"] != 17} == {"stop"}
    assert (rows(tmp_path)[17]["finish_reason"], rows(tmp_path)[17]["attempts"]) == ("repetition", 2)
    assert "went round in circles" in done.stderr


def test_a_job_that_fails_for_one_reason_stops_and_names_it(gemma4, manifest: Path) -> None:
    done = gemma4(*arguments(manifest, "fail_on=what", flags=("--max-failures", "5")))
    assert done.returncode == 1
    assert "6 rows failed, most of them (6) at engine: fake_failure" in done.stderr
    assert gemma4(*arguments(manifest, flags=("--max-failures", "five"))).returncode == 2


class Job:
    """The command in a process group of its own, so that a signal meets what a terminal's Ctrl-C would."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        command = Path(sys.executable).with_name("gemma4")
        self.process = subprocess.Popen(
            [command, *words], cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.data = folder / "out" / "data"
        self.log = folder / "out" / ".gemma4cli" / "engine.log"

    def wait_for_engine(self) -> None:
        """Returns when a row is in it."""
        began = time.monotonic()
        while not (self.log.exists() and "the first row is here" in self.log.read_text()):
            assert time.monotonic() - began < 60
            time.sleep(0.02)

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_finishes_what_is_in_the_engine_and_says_how_to_go_on(
    manifest: Path, tmp_path: Path, number: int
) -> None:
    job = Job(tmp_path, arguments(manifest, "latency_ms=300", "rows_per_s=5", "capacity=4"))
    job.wait_for_engine()
    job.process.send_signal(number)
    code, said = job.end()
    assert code == 130
    assert "interrupted: what was finished is kept" in said
    assert "same command again" in said
    assert "Traceback" not in said
    assert 0 < len(rows(tmp_path)) < ROWS
    assert {row["status"] for row in rows(tmp_path)} == {"ok"}


def test_rows_that_take_longer_than_the_grace_are_left_to_the_next_run(manifest: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, arguments(manifest, "latency_ms=8000", flags=("--grace", "0.2")))
    job.wait_for_engine()
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    code, _ = job.end()
    assert code == 130
    assert time.monotonic() - began < 15


def test_the_second_signal_ends_at_once(manifest: Path, tmp_path: Path) -> None:
    job = Job(tmp_path, arguments(manifest, "latency_ms=60000", flags=("--grace", "60")))
    job.wait_for_engine()
    began = time.monotonic()
    job.process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    job.process.send_signal(signal.SIGINT)
    code, _ = job.end()
    assert code == 130
    assert time.monotonic() - began < 5
