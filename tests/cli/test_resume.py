"""The installed command, stopped and run again."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import random
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

FAKE = ("--engine", "fake")
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Media(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """One image under any address, and a count of how often each was asked for, which is the work done."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: Counter[str] = Counter()
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), "red").save(buffer, "png")
        self.image = buffer.getvalue()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Media

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(self.server.image)))
        self.end_headers()
        self.wfile.write(self.server.image)

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # whoever asked was killed
            super().handle()


@pytest.fixture
def media() -> Iterator[Media]:
    with Media() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_killed_twenty_times_each_row_is_there_once_and_paid_for_once(media: Media) -> None:
    count, moments = 3000, random.Random(7)
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        folder = Path(name)
        host = f"http://127.0.0.1:{media.server_port}"
        (folder / "rows.jsonl").write_text(
            "".join(json.dumps({"id": f"r{i}", "image": f"{host}/{i}.png"}) + "\n" for i in range(count))
        )
        command = [
            Path(sys.executable).with_name("gemma4"), "caption", "rows.jsonl", "-o", "out", *FAKE,
            "--allow-private-hosts", "--engine-arg", "capacity=4", "--engine-arg", "rows_per_s=250",
        ]  # fmt: skip
        env = {"PATH": os.environ["PATH"], "HOME": name}
        kills = 0
        while True:
            with subprocess.Popen(
                command, cwd=folder, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True
            ) as process:
                try:
                    _, said = process.communicate(timeout=moments.uniform(0.4, 1.9) if kills < 20 else None)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    kills += 1
                    continue
            assert process.returncode == 0, said
            break
        rows = pq.read_table(folder / "out" / "data").to_pylist()
    assert kills == 20
    assert [row["id"] for row in rows] == [f"r{i}" for i in range(count)]
    assert {row["status"] for row in rows} == {"ok"}
    assert set(media.asked) == {f"/{i}.png" for i in range(count)}
    assert sum(media.asked.values()) <= 1.1 * count


def rows(folder: Path) -> list[dict]:
    return pq.read_table(folder / "gemma4-caption" / "data").to_pylist()


@pytest.fixture
def set_of(photos: Path, tmp_path: Path) -> Path:
    """A folder of three images that a test may change."""
    return Path(shutil.copytree(photos, tmp_path / "set"))


def test_the_same_command_says_that_nothing_is_left(gemma4, set_of: Path) -> None:
    assert gemma4("caption", set_of, *FAKE).returncode == 0
    again = gemma4("caption", set_of, *FAKE, "--engine-arg", "start_s=1000", timeout=20)
    assert again.returncode == 0
    assert again.stderr == "nothing is left to do: 3 rows are in gemma4-caption\n"
    (set_of / "bad.png").write_bytes(b"x")
    done = gemma4("caption", set_of, *FAKE)
    assert done.returncode == 3
    assert "0 of 1 rows ok, 1 failed" in done.stderr
    assert "3 rows of earlier runs are kept" in done.stderr
    again = gemma4("caption", set_of, *FAKE)
    assert again.returncode == 3
    assert "1 of them failed; --retry-failed does those again" in again.stderr
    (set_of / "bad.png").write_bytes((set_of / "b.png").read_bytes())
    assert gemma4("caption", set_of, *FAKE, "--retry-failed").returncode == 0
    assert [row["status"] for row in rows(set_of.parent)] == ["ok"] * 4


def test_a_larger_limit_goes_on(gemma4, set_of: Path) -> None:
    for limit, said in (("1", "1 of 1 rows ok"), ("2", "1 of 1 rows ok"), ("2", "nothing is left"), ("9", "1 of 1")):
        done = gemma4("caption", set_of, *FAKE, "--limit", limit)
        assert done.returncode == 0
        assert said in done.stderr
    assert [row["id"] for row in rows(set_of.parent)] == ["a.jpg", "b.png", "more/c.webp"]


def test_what_differs_is_named_with_the_ways_on(gemma4, set_of: Path) -> None:
    assert gemma4("caption", set_of, *FAKE).returncode == 0
    said = []
    for arguments in (
        ["--max-tokens", "9"],
        ["--prompt", "Why?"],
        ["--max-soft-tokens", "70"],
        ["--temperature", "0.3"],
    ):
        done = gemma4("caption", set_of, *FAKE, *arguments, "--engine-arg", "start_s=1000")
        assert done.returncode == 2
        said.append(done.stderr.splitlines()[0])
        for way in ("--new-only", "--overwrite", "--retry-failed"):
            assert way in done.stderr
    assert said[0] == "usage: gemma4-caption was made with other settings: --max-tokens was 256, is 9"
    assert '--prompt was not set, is "Why?"' in said[1]
    assert said[2].endswith("--max-soft-tokens was 280, is 70")
    assert "--temperature was" in said[3]
    (set_of / "a.jpg").write_bytes(b"other")
    done = gemma4("caption", set_of, *FAKE)
    assert done.returncode == 2
    assert "gemma4-caption: 1 row of the input is not what it was: a.jpg" in done.stderr
    assert "Traceback" not in done.stderr


def test_nightly_run_does_new_and_changed_files_alone(gemma4, set_of: Path) -> None:
    assert gemma4("caption", set_of, *FAKE).returncode == 0
    before = rows(set_of.parent)
    (set_of / "b.png").unlink()
    (set_of / "a.jpg").write_bytes((set_of / "more/c.webp").read_bytes())
    (set_of / "0.webp").write_bytes((set_of / "more/c.webp").read_bytes())
    done = gemma4("caption", set_of, *FAKE, "--new-only")
    assert done.returncode == 0
    assert "2 of 2 rows ok" in done.stderr
    after = rows(set_of.parent)
    assert [row["id"] for row in after] == ["a.jpg", "b.png", "more/c.webp", "0.webp"]
    assert after[1:3] == before[1:3]
    assert after[0]["width"] == 80
    assert "nothing is left" in gemma4("caption", set_of, *FAKE, "--new-only").stderr


def test_equal_files_are_computed_once(gemma4, set_of: Path) -> None:
    for name in ("copy.jpg", "more/again.jpg"):
        (set_of / name).write_bytes((set_of / "a.jpg").read_bytes())
    done = gemma4("caption", set_of, *FAKE, "--dedupe")
    assert done.returncode == 0
    assert "5 of 5 rows ok" in done.stderr
    found = {row["id"]: row for row in rows(set_of.parent)}
    first, copy = found["a.jpg"], found["more/again.jpg"]
    assert (copy["duplicate_of"], copy["text"], copy["attempts"]) == (first["row_index"], first["text"], 0)
    assert (copy["output_tokens"], copy["generate_ms"], copy["width"]) == (None, None, 64)
    assert first["duplicate_of"] is None
    refused = gemma4("caption", set_of, *FAKE, "--dedupe", "-o", "-")
    assert refused.returncode == 2
    assert "--dedupe" in refused.stderr


def test_contradictions_are_refused(gemma4, set_of: Path) -> None:
    for flag in ("--new-only", "--retry-failed"):
        done = gemma4("caption", set_of, *FAKE, "--overwrite", flag)
        assert done.returncode == 2
        assert flag in done.stderr


def test_a_command_that_is_refused_overwrites_nothing(gemma4, set_of: Path) -> None:
    assert gemma4("caption", set_of, *FAKE).returncode == 0
    before = gemma4("inspect", "gemma4-caption").stdout
    for wrong in (("--engine-arg", "nope=1"), ("--gpus", "all"), ("--choices", "a,,b")):
        assert gemma4("caption", set_of, *FAKE, "--overwrite", *wrong).returncode == 2
        assert gemma4("inspect", "gemma4-caption").stdout == before


def test_damage_is_told_and_mended(gemma4, set_of: Path) -> None:
    assert gemma4("caption", set_of, *FAKE).returncode == 0
    part = set_of.parent / "gemma4-caption" / "data" / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    done = gemma4("caption", set_of, *FAKE)
    assert done.returncode == 0
    assert "note: gemma4-caption/data/part-00000.parquet cannot be read" in done.stderr
    assert "it is set aside as gemma4-caption/.gemma4cli/damaged/part-00000.parquet" in done.stderr
    assert "3 of 3 rows ok" in done.stderr
