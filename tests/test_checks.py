"""`gemma4 doctor` on installations that are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gemma4cli import checks


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
