"""Rates of earlier runs: what is kept of them, and that nothing about them can end a run."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from gemma4cli import rates
from gemma4cli.overrides import Overrides, build
from gemma4cli.rates import Pace, Rate
from gemma4cli.records import Row, Status

CAPTION = build("caption", Overrides(engine="fake"))


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "gemma4cli" / "rates.json"


def row(bucket: str | None, status: Status = Status.OK) -> Row:
    return Row(0, "a", "a", "image", "caption", status, bucket=bucket, prompt_tokens=100, output_tokens=10, decode_ms=5)


def paced(*ends: tuple[str | None, float]) -> Pace:
    pace = Pace()
    pace.begin(0.0)
    for bucket, now in ends:
        pace.count(row(bucket), now)
    return pace


def test_the_time_until_a_row_is_finished_is_its_buckets() -> None:
    pace = paced(("image-70", 1.0), ("image-280", 4.0), ("image-70", 4.5))
    assert {name: (rate.rows, rate.seconds) for name, rate in pace.rates.items()} == {
        "image-70": (2.0, 1.5),
        "image-280": (1.0, 3.0),
    }


def test_time_of_rows_without_a_bucket_goes_to_the_next_and_none_is_lost() -> None:
    pace = paced((None, 1.0), ("image-70", 3.0))
    pace.count(row("image-70", Status.FAILED), 4.0)
    pace.count(row("audio-30s+audio-5s"), 6.0)
    assert {name: rate.seconds for name, rate in pace.rates.items()} == {"image-70": 3.0, "audio": 3.0}


def test_nothing_counts_before_the_engine_is_ready() -> None:
    pace = Pace()
    pace.count(row("image-70"), 5.0)
    assert not pace.rates


def test_what_was_recorded_comes_back_and_older_runs_count_half() -> None:
    rates.record(CAPTION, paced(("image-70", 4.0), ("video-32f", 5.0)))
    assert rates.recorded(CAPTION)["image-70"] == Rate(1, 4.0, 100, 10, 5)
    rates.record(CAPTION, paced(("image-70", 1.0)))
    found = rates.recorded(CAPTION)
    assert (found["image-70"].rows, found["image-70"].seconds) == (1.5, 3.0)
    assert found["video-32f"].rows == 1


def test_other_tasks_and_models_have_rates_of_their_own() -> None:
    rates.record(CAPTION, paced(("image-70", 4.0)))
    assert rates.recorded(build("annotate", Overrides(engine="fake", prompt="x"))) == {}
    assert rates.recorded(build("caption", Overrides(engine="fake", model="E2B"))) == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 100_000, '{"KEY": 3}', '{"KEY": {"image-70": {"rows": "many"}}}',
     '{"KEY": {"image-70": {"rows": NaN}}}', '{"KEY": {"image-70": {"rows": -1}}}', '{"KEY": {"image-70": 5}}'],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_without_rates(state: Path, text: str) -> None:
    state.parent.mkdir()
    state.write_text(text.replace("KEY", rates._key(CAPTION)))
    assert rates.recorded(CAPTION) == {}
    rates.record(CAPTION, paced(("image-70", 4.0)))
    assert rates.recorded(CAPTION)["image-70"].rows == 1
    json.loads(state.read_text())


def test_a_folder_that_cannot_be_made_costs_the_rates_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    rates.record(CAPTION, paced(("image-70", 4.0)))
    assert rates.recorded(CAPTION) == {}


def _record(bucket: str) -> None:
    rates.record(CAPTION, paced((bucket, 1.0)))


def test_runs_that_end_together_lose_nothing_of_each_other(state: Path) -> None:
    names = [f"image-{i}" for i in range(8)]
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.map(_record, names)
    assert sorted(rates.recorded(CAPTION)) == names
    assert [path.name for path in sorted(state.parent.iterdir())] == ["rates.json", "rates.lock"]
