"""Jobs that nobody watches: a log, a summary for machines, a command and a web address at the end."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

FAKE = ("--engine", "fake")


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    """A server that keeps what is posted; below /broken it answers 500."""
    posted: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(500 if self.path.startswith("/broken") else 204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", posted
    server.shutdown()
    thread.join()
    server.server_close()


def test_everybody_is_told_how_it_went(gemma4, photos: Path, tmp_path: Path, hook) -> None:
    address, posted = hook
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.jpg").write_bytes(b"x")
    command = 'cat > told.json; echo "$GEMMA4_FINISH_OUTCOME $GEMMA4_FINISH_EXIT_CODE $GEMMA4_FINISH_OUTPUT" > env.txt'
    done = gemma4(
        "caption", photos, tmp_path / "in", *FAKE, "-o", "out", "--summary-json", "how.json", "--log-file", "run.log",
        "--on-finish", command, "--webhook", f"{address}/secret",
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    how = json.loads((tmp_path / "how.json").read_text())
    assert (how["outcome"], how["exit_code"], how["task"], how["output"]) == ("done_with_failures", 3, "caption", "out")
    assert how["summary"]["rows"] == {"total": 4, "ok": 3, "failed": 1, "skipped": 0}
    assert json.loads((tmp_path / "told.json").read_text()) == how == posted[0]
    assert (tmp_path / "env.txt").read_text() == "done_with_failures 3 out\n"
    log = (tmp_path / "run.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 ", line) for line in log)
    assert any("3 of 4 rows ok, 1 failed -> out" in line for line in log)

    again = gemma4(
        "caption", photos, tmp_path / "in", *FAKE, "-o", "out", "--summary-json", "-", "--log-file", "run.log"
    )
    how = json.loads(again.stdout)
    assert (how["exit_code"], how["kept"], how["summary"]) == (3, {"ok": 3, "failed": 1}, None)
    assert len((tmp_path / "run.log").read_text().splitlines()) > len(log), "a log grows"


def test_refusals_are_told_too(gemma4, photos: Path, tmp_path: Path) -> None:
    done = gemma4("caption", photos, *FAKE, "--temperature", "9", "--summary-json", "how.json", "--log-file", "run.log")
    assert done.returncode == 2
    how = json.loads((tmp_path / "how.json").read_text())
    assert (how["outcome"], how["exit_code"]) == ("refused", 2)
    assert "--temperature" in how["error"]["message"]
    assert "usage: --temperature" in (tmp_path / "run.log").read_text()


def test_that_nobody_could_be_told_changes_nothing(gemma4, photos: Path, hook) -> None:
    address, posted = hook
    done = gemma4(
        "caption", photos, *FAKE, "--summary-json", "nowhere/how.json", "--on-finish", "exit 7",
        "--webhook", f"{address}/broken?token=secret",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "note: --summary-json was not told of the end" in done.stderr
    assert "note: --on-finish was not told of the end: the command ended with exit code 7" in done.stderr
    assert "note: --webhook was not told of the end: 127.0.0.1 answered 500" in done.stderr
    assert "secret" not in done.stderr
    assert len(posted) == 1


def test_flags_that_make_no_sense(gemma4, photos: Path) -> None:
    for flags, said in (
        (("--summary-json", "-", "-o", "-"), "standard output"),
        (("--webhook", "ftp://x"), "--webhook"),
        (("--webhook", "http://"), "--webhook"),
        (("--webhook", "http://[::1"), "--webhook"),
        (("--log-file", "nowhere/run.log"), "--log-file"),
    ):
        done = gemma4("caption", photos, *FAKE, *flags)
        assert done.returncode == 2
        assert said in done.stderr


def test_what_another_output_knows_is_left_out(gemma4, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.jpg", "b.png"):
        (folder / name).write_bytes((photos / name).read_bytes())
    (folder / "broken.jpg").write_bytes(b"x")
    assert gemma4("caption", folder, *FAKE, "-o", "monday").returncode == 3
    (folder / "c.webp").write_bytes((photos / "more" / "c.webp").read_bytes())
    (folder / "b.png").write_bytes((photos / "a.jpg").read_bytes())
    done = gemma4("caption", folder, *FAKE, "-o", "tuesday", "--known", "monday")
    assert done.returncode == 3, done.stderr
    rows = pq.read_table(tmp_path / "tuesday" / "data").to_pylist()
    found = [(row["row_index"], row["id"], row["status"]) for row in rows]
    assert found == [(0, "b.png", "ok"), (1, "broken.jpg", "failed"), (2, "c.webp", "ok")]
    again = gemma4("caption", folder, *FAKE, "-o", "tuesday", "--known", "monday")
    assert "nothing is left to do" in again.stderr
    assert "no such output" in gemma4("caption", folder, *FAKE, "--known", "sunday").stderr
    (folder / "d.jpg").write_bytes((photos / "a.jpg").read_bytes())
    done = gemma4("caption", folder, *FAKE, "-o", "wednesday", "--known", "monday", "--known", "tuesday")
    found = [row["id"] for row in pq.read_table(tmp_path / "wednesday" / "data").to_pylist()]
    assert found == ["broken.jpg", "d.jpg"]
