"""Standard streams that are closed, full or left by their readers, and what comes on a terminal."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

from gemma4cli.cli import _errors, _output
from gemma4cli.stats import Stats

FAKE = "--engine fake"


@pytest.fixture
def shell(photos: Path, tmp_path: Path):
    """Runs a shell line in which `gemma4` and `photos` stand for the command and the folder."""
    command = shlex.quote(str(Path(sys.executable).with_name("gemma4")))

    def run(line: str) -> subprocess.CompletedProcess[str]:
        line = line.replace("gemma4", command).replace("photos", shlex.quote(str(photos)))
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:9"}
        return subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=60, env=env, check=False
        )

    return run


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        (f"gemma4 caption photos {FAKE} -o - >&-", 2, "usage: standard output is closed"),
        (f"gemma4 caption - {FAKE} <&-", 2, "usage: - reads paths from standard input"),
        (f"gemma4 caption photos {FAKE} -o out <&- >&-", 0, "3 of 3 rows ok"),
        (f"gemma4 caption photos {FAKE} -o - >/dev/full", 1, "error: cannot write to standard output"),
        (f"gemma4 caption photos {FAKE} -q -o out && gemma4 inspect out >/dev/full", 1, "error: cannot write to"),
        (f"gemma4 caption photos {FAKE} -q -o a.parquet; gemma4 inspect .", 2, "Try a.parquet"),
        ("gemma4 inspect ''", 2, "usage: the name of the output is empty"),
    ],
)
def test_streams_and_names_that_do_not_serve(shell, line: str, code: int, said: str) -> None:
    done = shell(line)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == code


def test_a_reader_that_leaves_hears_nothing_of_it(shell) -> None:
    done = shell(f"gemma4 caption photos {FAKE} -q -o - | exec true")
    assert done.stderr == ""


@pytest.mark.parametrize("flag", ["--media-column", "--prompt-column", "--id-column"])
def test_files_have_no_columns(gemma4, photos: Path, flag: str) -> None:
    done = gemma4("caption", photos, *FAKE.split(), flag, "x")
    assert done.returncode == 2
    assert f"{flag} names a column of a manifest" in done.stderr


def test_an_answer_as_long_as_the_context_is_refused_before_the_model_loads(gemma4, photos: Path) -> None:
    done = gemma4("caption", photos, "--model", "tiny", "--max-tokens", "8192")
    assert done.returncode == 2
    assert "leaves no room for a prompt" in done.stderr


def test_a_limit_may_be_any_number(gemma4, photos: Path) -> None:
    assert gemma4("caption", photos, *FAKE.split(), "--limit", "9" * 20).returncode == 0


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the console says, as if on a terminal of 80 columns."""
    said = io.StringIO()
    monkeypatch.setattr(_output, "_console", Console(file=said, force_terminal=True, width=80))
    return said


def test_progress_is_one_line_whatever_the_model_is_called(screen: io.StringIO) -> None:
    stats = Stats(1_234_567)
    stats.engine_ready()
    stats.ok, stats.failed = 123_456, 12_345
    with _output.display(stats, "transcribe with q[/bold] and a long name", quiet=False):
        pass
    assert screen.getvalue().count("\n") == 1


@pytest.mark.parametrize("verbose", [False, True])
def test_a_fault_of_ours_is_a_line_and_with_v_its_traceback(screen: io.StringIO, verbose: bool) -> None:
    @_errors.reports_errors
    def broken(verbose: bool) -> int:
        raise ValueError("a [bold] mistake")

    with pytest.raises(typer.Exit) as ended:
        broken(verbose=verbose)
    assert ended.value.exit_code == 1
    assert "ValueError: a [bold] mistake" in screen.getvalue()
    assert ("Traceback" in screen.getvalue()) is verbose
    assert ("with -v" in screen.getvalue()) is not verbose


@pytest.mark.parametrize(("model", "code"), [("tiny", 3), ("E2B", 0)])
def test_a_demo_with_wrong_answers(
    screen: io.StringIO, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, code: int
) -> None:
    demo = sys.modules["gemma4cli.cli.demo"]  # the package's attribute of this name is the command
    monkeypatch.setattr(demo, "run_task", lambda task, options: 0)
    monkeypatch.setattr(demo, "_show", lambda data: 4)
    with pytest.raises(typer.Exit) as ended:
        demo.demo(model=model, output=tmp_path, verbose=False)
    assert ended.value.exit_code == code
    assert ("tiny knows these answers" in screen.getvalue()) is (code == 3)


def test_what_libraries_print_goes_to_the_log_and_not_onto_the_terminal(photos: Path, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    command = [str(Path(sys.executable).with_name("gemma4")), "caption", str(photos), *FAKE.split(), "-o", "out"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, cwd=tmp_path) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # EIO: nobody has the terminal open any more
            pass
    os.close(ours)
    assert process.returncode == 0
    assert b"3 of 3 rows ok" in shown
    assert b"the first row is here" not in shown
    assert "the first row is here" in (tmp_path / "out" / ".gemma4cli" / "engine.log").read_text()
