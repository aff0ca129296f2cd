"""Whole jobs over the corpus of hazards that lies beside some checkouts: each file ends as its truth says."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

CASES = Path(__file__).parents[1].parent / "shared" / "cases"
pytestmark = [
    pytest.mark.cases,
    pytest.mark.skipif(not (CASES / "cases.jsonl").is_file(), reason="the corpus is not here"),
]


def entries(*kinds: str) -> list[dict]:
    if not (CASES / "cases.jsonl").is_file():
        return []
    every = [json.loads(line) for line in (CASES / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in every if entry["kind"] in kinds]


def staged(entry: dict, folder: Path) -> Path | None:
    """Where the case's file is, once it is made or given its name; None where it cannot be had here."""
    if entry["file"] is not None:
        source = CASES / entry["file"]
        if not entry.get("stage_as"):
            return source
        target = folder / entry["stage_as"]
        target.write_bytes(source.read_bytes())
        return target
    if not entry.get("make") or (os.geteuid() == 0 and "permission" in entry["hazard"]):
        return None
    for below in CASES.iterdir():
        if not (folder / below.name).exists():
            (folder / below.name).symlink_to(below)
    before = set(folder.iterdir())
    for command in entry["make"]:
        subprocess.run(command, shell=True, cwd=folder, check=True)
    return min(set(folder.iterdir()) - before)


def outcome(row: dict) -> tuple[str, str | None]:
    return ("ok", None) if row["status"] == "ok" else ("row_error", row["error_stage"])


def allowed(expect: dict) -> set[tuple[str, str | None]]:
    """Outcomes that are right, each with its stage where that is told."""
    options = (
        [expect, *expect.get("also_acceptable", [])] if isinstance(expect.get("also_acceptable"), list) else [expect]
    )
    pairs = {(o["outcome"], o.get("stage") if o["outcome"] == "row_error" else None) for o in options}
    if expect.get("stage_also"):
        pairs.add(("row_error", expect["stage_also"]))
    if isinstance(expect.get("also_acceptable"), str):
        pairs.add(("ok", None))
    if expect["outcome"] == "ok_or_row_error":
        pairs |= {("ok", None), ("row_error", expect["stage"])}
    return pairs


@pytest.mark.parametrize(("task", "kinds"), [("caption", ("image", "video")), ("transcribe", ("audio",))])
def test_one_job_over_every_file_ends_as_the_truth_says(gemma4, tmp_path: Path, task: str, kinds: tuple) -> None:
    expected, lines = [], []
    for i, entry in enumerate(entries(*kinds)):
        folder = tmp_path / f"case-{i}"
        folder.mkdir()
        path = staged(entry, folder)
        if path is not None:
            expected.append(entry)
            lines.append(json.dumps({"id": str(i), entry["kind"]: str(path)}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    columns = ",".join(kinds)
    done = gemma4(task, "rows.jsonl", "--media-column", columns, "--engine", "fake", "-o", "out.jsonl", timeout=300)
    assert done.returncode == 3, done.stderr
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    wrong = [
        (entry["file"] or entry["hazard"], outcome(row), row["error_message"])
        for entry, row in zip(expected, found, strict=True)
        if outcome(row) not in allowed(entry["expect"])
    ]
    assert not wrong
    sizes = [
        (entry["file"], (row["width"], row["height"]))
        for entry, row in zip(expected, found, strict=True)
        if row["status"] == "ok"
        and "width" in entry["expect"]
        and (row["width"], row["height"]) != (entry["expect"]["width"], entry["expect"]["height"])
    ]
    assert not sizes


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a file server over the corpus."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(CASES)))
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    yield httpd.server_address[1]
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.mark.parametrize("entry", entries("manifest"), ids=lambda entry: entry["file"])
def test_every_row_of_a_manifest_ends_as_the_truth_says(gemma4, tmp_path: Path, entry: dict, server: int) -> None:
    manifest = CASES / entry["file"]
    if entry["expect"].get("template"):
        text = manifest.read_text().replace("@CASES@", str(CASES)).replace("@PORT@", str(server))
        (tmp_path / "manifests").mkdir()
        (tmp_path / "images").symlink_to(CASES / "images")
        manifest = tmp_path / "manifests" / "uris.jsonl"
        manifest.write_text(text)
    done = gemma4("caption", manifest, "--engine", "fake", "--allow-private-hosts", "-o", "out.jsonl", timeout=120)
    assert "Traceback" not in done.stderr
    expect = entry["expect"]
    if expect["outcome"] == "input_error":
        assert done.returncode == 2
        assert done.stderr.count("\n") <= 2
        return
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(found) == expect["input_rows"]
    wrong = [
        (truth["row"], outcome(row), row["error_message"])
        for truth, row in zip(expect["rows"], found, strict=True)
        if outcome(row) not in allowed(truth)
    ]
    assert not wrong
    assert done.returncode == (3 if any(row["status"] == "failed" for row in found) else 0)
