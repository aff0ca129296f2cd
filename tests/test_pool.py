"""The render pool as the line uses it: every item comes back once, rendered as its own job says."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

from gemma4cli import assembly, gemma, models
from gemma4cli.cli import app
from gemma4cli.engine.fake import FakeEngine
from gemma4cli.overrides import Overrides, build
from gemma4cli.pool import RenderPool
from gemma4cli.records import Item, Media, Rendered
from gemma4cli.render import RenderJob

ROWS = 12


@contextmanager
def pool(**overrides: Any) -> Iterator[Callable[[Path], list[Any]]]:
    told = build("caption", Overrides(model="tiny", engine="fake", **overrides))
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = RenderPool(RenderJob(told, models.find("tiny"), FakeEngine.configured(told).renderer), 60, came.put)

    def run(picture: Path) -> list[Any]:
        for index in range(ROWS):
            made.submit(Item(index, str(index), "", (Media(str(picture)),)))
        return [came.get(timeout=60) for _ in range(ROWS)]

    try:
        yield run
    finally:
        made.close()


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Pillow.new("RGB", (640, 480), "red").save(path)
    return path


@pytest.mark.parametrize("budget", [280, 70, 1120])
def test_each_pool_renders_by_its_own_job(picture: Path, budget: int) -> None:
    """Although they are forked from one server, which has built the first one's."""
    with pool(max_soft_tokens=budget) as run:
        rows = run(picture)
    assert sorted(row.row_index for row in rows) == list(range(ROWS))
    assert all(isinstance(row, Rendered) for row in rows)
    assert {row.tokens.image for row in rows} == {gemma.image_tokens(640, 480, budget)}
    assert {row.attempts for row in rows} == {1}


def test_two_pools_at_a_time_do_not_mix(picture: Path) -> None:
    with pool(max_soft_tokens=70) as run, pool(max_soft_tokens=560) as other:
        assert {row.tokens.image for row in run(picture)} == {gemma.image_tokens(640, 480, 70)}
        assert {row.tokens.image for row in other(picture)} == {gemma.image_tokens(640, 480, 560)}


def test_readers_are_gone_before_rows_are_put_in_order(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    close, assemble = RenderPool.close, assembly.assemble
    monkeypatch.setattr(RenderPool, "close", lambda self: (steps.append("close"), close(self)))
    monkeypatch.setattr(assembly, "assemble", lambda *args: (steps.append("assemble"), assemble(*args)))
    app(["caption", str(picture), "--engine", "fake", "-o", str(tmp_path / "out"), "-q"], standalone_mode=False)
    assert steps[:2] == ["close", "assemble"]  # it is closed once more where a run ends early
