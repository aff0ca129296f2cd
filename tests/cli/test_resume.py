"""The installed command, stopped and run again."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import random
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
