"""The installed command on Ray, on this machine alone; scripts/check_ray has what takes longer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

pytest.importorskip("ray")
FAKE = ("--engine", "fake")
MEASURED = ("decode_ms", "render_ms", "queue_ms", "generate_ms", "attempts")


def rows_of(path: Path) -> pa.Table:
    return pq.read_table(path / "data" if path.is_dir() else path).drop_columns(MEASURED)


@pytest.fixture
def manifest(tmp_path: Path, film) -> Path:
    """Sixty pictures, one of them no picture, a line that is no JSON, and a film that is shown in windows."""
    film("film.mp4", 6, np.sin(np.arange(6 * 16_000, dtype=np.float32) / 9))
    lines = [json.dumps({"id": "film", "path": "film.mp4", "weight": 0.5})]
    for i in range(60):
        Image.new("RGB", (16 + i, 16), (i, 255 - i, 0)).save(tmp_path / f"{i}.png")
        lines.append(json.dumps({"id": f"r{i}", "path": f"{i}.png", "weight": i / 2}))
    (tmp_path / "7.png").write_text("no picture")
    lines.insert(30, "{")
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    return tmp_path / "rows.jsonl"


def test_a_run_that_begins_here_ends_on_ray_as_it_would_have_ended_here(gemma4, manifest: Path, tmp_path: Path) -> None:
    run = ("caption", manifest, *FAKE, "--window", "2")
    assert gemma4(*run, "-o", "whole").returncode == 3
    assert gemma4(*run, "-o", "out", "--limit", "25").returncode == 3
    on_ray = gemma4(*run, "-o", "out", "--on", "ray", timeout=240)
    assert on_ray.returncode == 3, on_ray.stderr
    assert "25 rows of earlier runs are kept" in on_ray.stderr
    assert rows_of(tmp_path / "out").equals(rows_of(tmp_path / "whole"), check_metadata=True)
    assert not (tmp_path / "out" / ".gemma4cli" / "shards").exists()
    again = gemma4(*run, "-o", "out", "--engine-arg", "start_s=1000", timeout=20)
    assert "nothing is left to do: 62 rows" in again.stderr


def test_a_recipe_on_ray_into_one_file(gemma4, manifest: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'task = "annotate"\ninputs = ["rows.jsonl"]\nengine = "fake"\nprompt = "Is {{ id }} red?"\nchoices = "yes,no"\n'
    )
    assert gemma4("run", "mine.toml", "-o", "whole.parquet").returncode == 3
    done = gemma4("run", "mine.toml", "-o", "out.parquet", "--on", "ray", "--engines", "2", timeout=240)
    assert done.returncode == 3, done.stderr
    assert rows_of(tmp_path / "out.parquet").equals(rows_of(tmp_path / "whole.parquet"), check_metadata=True)


def test_an_engine_that_is_gone_for_good_says_why(gemma4, photos: Path) -> None:
    flags = ("--engine-arg", "die_on=red", "--max-engine-deaths", "0")
    done = gemma4("caption", photos, *FAKE, "-p", "Is it red?", *flags, "--on", "ray", timeout=120)
    assert done.returncode == 1
    assert "the fake engine died, as --engine-arg die_on asked" in done.stderr
    assert "the same command goes on from there" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--on", "moon"), "It takes ray"),
        (("--engines", "2"), "--engines is about a cluster"),
        (("--address", "auto"), "--address is about a cluster"),
        (("--on", "ray", "--shard", "0/2"), "leave --shard out"),
        (("--on", "ray", "-o", "-"), "does not go with -o -"),
        (("--on", "ray", "-o", "memory://out"), "does not go with an output on a store"),
        (("--on", "ray", "--gpus", "2"), "Ray has an actor for each GPU"),
        (("--on", "ray", "--dedupe"), "does not go with --dedupe"),
        (("--on", "ray", "--sidecar", "txt"), "does not go with files beside the rows"),
    ],
)
def test_what_ray_cannot_do_is_refused_at_once(gemma4, photos: Path, flags: tuple[str, ...], said: str) -> None:
    done = gemma4("caption", photos, *FAKE, *flags)
    assert done.returncode == 2
    assert said in done.stderr


def test_an_address_where_nobody_is(gemma4, photos: Path) -> None:
    done = gemma4("caption", photos, *FAKE, "--on", "ray", "--address", "127.0.0.1:9", timeout=120)
    assert done.returncode == 1
    assert "no Ray at 127.0.0.1:9" in done.stderr
