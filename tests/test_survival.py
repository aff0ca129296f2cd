"""Real vLLM whose processes are killed in the middle of a job."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gemma4cli.tiny import scenes

pytestmark = pytest.mark.vllm
ROWS = 240


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    for seed in range(8):
        scenes.draw(scenes.random_scene(seed)).save(tmp_path / f"{seed}.png")
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"id": str(i), "image": f"{i % 8}.png"}) for i in range(ROWS)))
    return path


def start(manifest: Path) -> subprocess.Popen[str]:
    command = Path(sys.executable).with_name("gemma4")
    return subprocess.Popen(
        [command, "caption", manifest, "--model", "tiny", "--max-tokens", "24", "--temperature", "0", "-o", "out"],
        cwd=manifest.parent,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_rows(process: subprocess.Popen[str]) -> None:
    """Until the progress says that rows are done, but not all of them."""
    assert process.stderr is not None
    for line in process.stderr:
        done = re.search(r"(\d+)/(\d+) rows", line)
        if done and 0 < int(done[1]) < int(done[2]):
            return
    raise AssertionError("it ended before it could be killed")


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """Process id and command line of every process below this one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (int(status[1]), (entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    for child, (_, line) in parents.items():
        above = child
        while above in parents and above != pid:
            above = parents[above][0]
        if above == pid and child != pid:
            yield child, line


def kill(process: subprocess.Popen[str], what: str) -> int:
    found = [pid for pid, line in descendants(process.pid) if what in line]
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    return len(found)


def test_a_job_outlives_its_engine_and_its_readers(manifest: Path) -> None:
    process = start(manifest)
    wait_for_rows(process)
    readers = [pid for pid, line in descendants(process.pid) if "forkserver" in line]
    assert kill(process, "VLLM::EngineCore") == 1
    for pid in readers[1:]:  # all but the server that they are forked from
        os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    found = pq.read_table(manifest.parent / "out" / "data").to_pylist()
    assert [row["id"] for row in found] == [str(i) for i in range(ROWS)]
    assert {row["status"] for row in found} == {"ok"}
    # The same picture has the same caption, before and after, but for a tie that other company in the batch decides.
    for picture in range(8):
        texts = Counter(row["text"] for row in found[picture::8])
        assert texts.most_common(1)[0][1] >= 0.8 * texts.total()
    summary = json.loads((manifest.parent / "out" / ".gemma4cli" / "summary.json").read_text())
    assert summary["engine"]["deaths"] == 1


def test_a_job_killed_whole_leaves_no_process_and_goes_on_where_it_was(manifest: Path) -> None:
    for _ in range(2):
        process = start(manifest)
        wait_for_rows(process)
        below = [pid for pid, _ in descendants(process.pid)]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()  # type: ignore[union-attr]
        for pid in below:
            wait_for_the_end_of(pid)
    last = start(manifest)
    _, said = last.communicate(timeout=300)
    assert last.returncode == 0, said
    found = pq.read_table(manifest.parent / "out" / "data").to_pylist()
    assert [row["id"] for row in found] == [str(i) for i in range(ROWS)]
    assert re.search(r"[\d,]+ rows of earlier runs are kept", said)


def wait_for_the_end_of(pid: int) -> None:
    """Fails when the process is there for longer than ten seconds."""
    import time

    began = time.monotonic()
    while Path(f"/proc/{pid}").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() - began < 10, f"process {pid} outlives the job that started it"
        time.sleep(0.1)
