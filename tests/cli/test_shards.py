"""The installed command on shards of a job, and gemma4 merge."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

FAKE = ("--engine", "fake")
MEASURED = ("decode_ms", "render_ms", "queue_ms", "generate_ms", "attempts")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty rows of small pictures with a column of their own; one of them is no picture."""
    folder = tmp_path_factory.mktemp("rows")
    lines = []
    for i in range(40):
        Image.new("RGB", (16 + i, 16), (i, 255 - i, 0)).save(folder / f"{i}.png")
        lines.append(json.dumps({"id": f"r{i}", "image": f"{i}.png", "weight": i / 2}))
    (folder / "7.png").write_text("no picture")
    (folder / "rows.jsonl").write_text("\n".join(lines))
    return folder / "rows.jsonl"


def rows_of(path: Path) -> pa.Table:
    if path.suffix == ".jsonl":
        table = pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])
    else:
        table = pq.read_table(path / "data" if path.is_dir() else path)
    return table.drop_columns(MEASURED)


@pytest.mark.parametrize("output", ["out", "out.parquet", "out.jsonl"])
def test_shards_that_run_at_once_and_are_merged_are_the_output_of_one_run(
    gemma4, manifest: Path, tmp_path: Path, output: str
) -> None:
    ask = ("caption", manifest, *FAKE, "--prompt", "What weighs {{ weight }}?")

    def run(number: int) -> subprocess.CompletedProcess[str]:
        return gemma4(*ask, "-o", output, "--shard", f"{number}/3")

    with ThreadPoolExecutor() as threads:
        runs = list(threads.map(run, range(3)))
    assert [done.returncode for done in runs] == [3, 0, 0], runs
    assert f"gemma4 merge {output}" in runs[0].stderr
    merged = gemma4("merge", output)
    assert merged.returncode == 3, merged.stderr
    assert merged.stderr == f"3 shards merged: 39 rows ok, 1 failed in {output}\n"
    whole = tmp_path / f"whole{Path(output).suffix}"
    assert gemma4(*ask, "-o", whole).returncode == 3
    assert rows_of(tmp_path / output).equals(rows_of(whole), check_metadata=True)
    again = gemma4(*ask, "-o", output, "--engine-arg", "start_s=1000", timeout=20)
    assert "nothing is left to do: 40 rows" in again.stderr
    assert "there is nothing to merge" in gemma4("merge", output).stderr
    assert json.loads(gemma4("inspect", output, "--json").stdout)["state"] == "finished"


def test_merging_names_what_is_missing_and_changes_nothing(gemma4, manifest: Path, tmp_path: Path) -> None:
    for number in (0, 2):
        gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", f"{number}/4", "--limit", "39")
    stopped = gemma4(
        "caption", manifest, *FAKE, "-o", "out", "--shard", "1/4", "--limit", "39", "--max-failures", "0",
        "--engine-arg", "fail_on=", "--row-timeout", "20", "--root", str(tmp_path),
    )  # fmt: skip
    assert stopped.returncode == 1
    missing = gemma4("merge", "out")
    assert missing.returncode == 1
    assert "1 shard was not begun: 3/4" in missing.stderr
    assert gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "3/4", "--limit", "39").returncode == 0
    undone = gemma4("merge", "out")
    assert undone.returncode == 1
    assert "1 shard is not done: 1/4 (" in undone.stderr
    said = gemma4("inspect", "out").stdout
    assert "3 of 4 done, 1 interrupted (1/4)" in said
    assert "interrupted" in said.splitlines()[0]
    assert not (tmp_path / "out" / "data").exists() or not any((tmp_path / "out" / "data").iterdir())


def test_what_shards_have_done_is_taken_over_by_a_run_without_them(gemma4, manifest: Path, tmp_path: Path) -> None:
    assert gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "0/2").returncode == 3
    other = gemma4("caption", manifest, *FAKE, "-o", "out", "--prompt", "What colour?")
    assert other.returncode == 2
    assert "was made with other settings" in other.stderr
    done = gemma4("caption", manifest, *FAKE, "-o", "out")
    assert "20 rows of earlier runs are kept" in done.stderr
    assert rows_of(tmp_path / "out")["row_index"].to_pylist() == list(range(40))
    late = gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "1/2")
    assert late.returncode == 2
    assert "holds rows that are of no shard" in late.stderr


def test_shards_of_different_settings_are_not_merged(gemma4, manifest: Path) -> None:
    gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "0/2")
    gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "1/2", "--seed", "7")
    done = gemma4("merge", "out")
    assert done.returncode == 2
    assert "shards 0/2 and 1/2 were made with different settings: --seed was" in done.stderr


def test_failed_rows_of_a_shard_are_done_again_in_it(gemma4, manifest: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(manifest.parent, tmp_path / "set"))
    run = ("caption", folder / "rows.jsonl", *FAKE, "-o", "out", "--shard")
    assert gemma4(*run, "0/2").returncode == 3
    shutil.copy(folder / "8.png", folder / "7.png")
    assert gemma4(*run, "0/2", "--retry-failed").returncode == 0
    assert gemma4(*run, "1/2").returncode == 0
    assert gemma4("merge", "out").returncode == 0
    assert set(rows_of(tmp_path / "out")["status"].to_pylist()) == {"ok"}


def test_more_shards_than_rows(gemma4, manifest: Path, tmp_path: Path) -> None:
    for number in range(4):
        done = gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", f"{number}/4", "--limit", "2")
        assert done.returncode == 0, done.stderr
    assert gemma4("merge", "out").returncode == 0
    assert rows_of(tmp_path / "out")["id"].to_pylist() == ["r0", "r1"]


def test_a_shard_goes_on_where_it_was_killed(gemma4, manifest: Path, tmp_path: Path) -> None:
    command = [
        Path(sys.executable).with_name("gemma4"), "caption", manifest, *FAKE, "-o", "out", "--shard", "1/2",
        "--engine-arg", "rows_per_s=20", "--engine-arg", "capacity=2",
    ]  # fmt: skip
    parts = tmp_path / "out" / ".gemma4cli" / "shards" / "1-of-2" / "data"
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE) as process:
        while not (parts.is_dir() and any(parts.glob("part-*"))):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "1/2")
    assert done.returncode == 0
    assert "rows of earlier runs are kept" in done.stderr
    assert gemma4("caption", manifest, *FAKE, "-o", "out", "--shard", "0/2").returncode == 3
    assert gemma4("merge", "out").returncode == 3
    assert rows_of(tmp_path / "out")["row_index"].to_pylist() == list(range(40))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--shard", "2/2"), "--shard 2/2 is not I/N"),
        (("--shard", "0/2", "--new-only"), "shards need an input that stays as it is"),
        (("--shard", "0/2", "--format", "openai"), "merge the shards"),
        (("--shard", "0/2", "-o", "-"), "write to a file or a folder"),
    ],
)
def test_what_shards_cannot_do_is_refused(gemma4, manifest: Path, flags: tuple[str, ...], said: str) -> None:
    done = gemma4("caption", manifest, *FAKE, *flags)
    assert done.returncode == 2
    assert said in done.stderr


def test_merging_what_is_no_output_of_shards(gemma4, manifest: Path, tmp_path: Path) -> None:
    assert "no output of gemma4: nowhere" in gemma4("merge", "nowhere").stderr
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    assert gemma4("merge", "mine").returncode == 2


def test_the_shard_is_a_flag_of_the_environment_and_of_plans(gemma4, manifest: Path) -> None:
    shown = gemma4("caption", manifest, *FAKE, "--dry-run", env={"GEMMA4_SHARD": "3/4"})
    assert shown.returncode == 0, shown.stderr
    assert "10 rows" in shown.stdout
