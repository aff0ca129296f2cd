"""`gemma4 doctor` on installations that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4cli import checks, gpus


def test_a_home_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "gone" / "home"))
    monkeypatch.delenv("HF_HOME", raising=False)
    disk = next(finding for finding in checks.machine("tiny") if finding.subject == "disk")
    assert disk.message.endswith(f"free under {tmp_path}")


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken(model: str) -> Iterator[checks.Finding]:
        yield checks.Finding(checks.State.OK, "first", "is well")
        raise RuntimeError(f"no {model}")

    first, second = checks.findings(broken, "E4B")
    assert first.state is checks.State.OK
    assert (second.state, second.subject) == (checks.State.BAD, "broken")
    assert "no E4B" in second.message


@pytest.mark.parametrize(
    ("asked", "each", "state", "said"),
    [
        (None, 1, checks.State.OK, "one"),
        ("all", 2, checks.State.OK, "2: GPUs 0,1; GPUs 2,3"),
        ("1,3", 1, checks.State.OK, "2: GPU 1; GPU 3"),
        ("5", 1, checks.State.BAD, "asks for 5 GPUs, and there are 4"),
        ("3", 2, checks.State.BAD, "do not divide"),
        ("many", 1, checks.State.BAD, "not possible"),
    ],
)
def test_how_gpus_would_be_grouped(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, each: int, state: checks.State, said: str
) -> None:
    monkeypatch.setattr(gpus, "visible", lambda: ("0", "1", "2", "3"))
    monkeypatch.setattr(gpus, "on_cpu", lambda engine: False)
    (found,) = checks.engines(asked, each)
    assert found.state is state
    assert said in found.message
    assert ("--gpus all would run 4" in found.advice) == (asked is None)
