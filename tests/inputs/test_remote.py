"""Files elsewhere as inputs, in a file system in memory: found, ordered, known again, and guarded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemma4cli import storage
from gemma4cli.errors import FetchError, UsageError
from gemma4cli.identity import content_key
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.remote import held, open_remote
from gemma4cli.records import Item, Kind, Media

IMAGES = InputOptions(kinds=frozenset({Kind.IMAGE, Kind.VIDEO}))


@pytest.fixture
def store() -> Iterator[fsspec.AbstractFileSystem]:
    fs = fsspec.filesystem("memory")
    yield fs
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def test_a_folder_elsewhere_is_walked_as_one_here_is(store, tmp_path: Path) -> None:
    names = ["img10.jpg", "img2.JPG", "b/1.png", "B.webp", "a.jpg", "A/2.png", "notes.txt", ".hidden.jpg", "b/.x/y.jpg"]
    for name in names:
        store.pipe(f"/in/{name}", b"x")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    here = list(open_inputs([str(tmp_path)], IMAGES))
    there = list(open_inputs(["memory://in"], IMAGES))
    assert [item.id for item in there] == [item.id for item in here]
    assert there[0].media[0].location == f"memory://in/{there[0].id}"
    assert there[0].source == f"memory://in/{there[0].id}"


def test_a_pattern_elsewhere(store) -> None:
    for name in ("a.jpg", "b.jpg", "b.png", "more/c.jpg"):
        store.pipe(f"/in/{name}", b"x")
    found = [item.id for item in open_inputs(["memory://in/*.jpg"], IMAGES)]
    assert found == ["memory://in/a.jpg", "memory://in/b.jpg"]
    assert len(list(open_inputs(["memory://in/**/*.jpg"], IMAGES))) == 3
    with pytest.raises(UsageError, match="nothing matches"):
        open_inputs(["memory://in/*.gif"], IMAGES)


def test_a_manifest_elsewhere_names_files_beside_it(store) -> None:
    rows = [{"image": "pictures/a.jpg"}, {"image": "memory://other/b.jpg"}, {"image": "https://example.org/c.jpg"}]
    store.pipe("/in/rows.jsonl", "\n".join(map(json.dumps, rows)).encode())
    found = [item.media[0].location for item in open_inputs(["memory://in/rows.jsonl"], IMAGES)]
    assert found == ["memory://in/pictures/a.jpg", "memory://other/b.jpg", "https://example.org/c.jpg"]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("memory://nowhere/a.jpg", "no such file"),
        ("memory://nowhere/rows.jsonl", "no such file"),
        ("s3://bucket/a.jpg", "s3fs"),
        ("gopher://host/a.jpg", "gopher://"),
    ],
)
def test_what_is_not_there_is_refused(store, uri: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_inputs([uri], IMAGES)
    assert said in str(caught.value)


def test_a_file_that_changes_there_is_another_row(store) -> None:
    store.pipe("/in/a.jpg", b"first")
    (first,) = open_inputs(["memory://in"], IMAGES)
    (same,) = open_inputs(["memory://in"], IMAGES)
    store.pipe("/in/a.jpg", b"other bytes")
    (other,) = open_inputs(["memory://in"], IMAGES)
    assert content_key(first) == content_key(same) != content_key(other)
    assert [item.id for item in (first, other)] == ["a.jpg", "a.jpg"]


def test_bytes_that_only_this_process_has_go_with_the_row(store) -> None:
    store.pipe("/in/a.tar", b"0123456789")
    item = Item(0, "a", "a", ("text", Media("memory://in/a.tar", span=(2, 3)), Media("/here.jpg")))
    sent = held(item, MediaOptions())
    assert [medium.data for medium in sent.media] == [b"234", None]
    assert sent.media[0].span is None
    with pytest.raises(FetchError) as caught:
        held(Item(0, "a", "a", (Media("memory://in/gone.jpg"),)), MediaOptions())
    assert caught.value.type == "not_found"


def test_downloads_are_bounded(store) -> None:
    store.pipe("/in/large.jpg", b"x" * 1000)
    with pytest.raises(FetchError) as caught:
        open_remote("memory://in/large.jpg", MediaOptions(max_bytes=999))
    assert caught.value.type == "too_large"
    with open_remote("memory://in/large.jpg", MediaOptions(max_bytes=1000)) as file:
        assert file.read() == b"x" * 1000


@pytest.mark.parametrize(
    "uri", ["ftp://10.0.0.1/a.jpg", "zip://a.jpg::http://169.254.169.254/x.zip", "simplecache::http://localhost/a.jpg",
            "dir::file:///etc/passwd", "webhdfs://user:secret@host/a.jpg"]
)  # fmt: skip
def test_rows_may_not_name_what_leads_to_private_hosts(uri: str) -> None:
    with pytest.raises(FetchError) as caught:
        open_remote(uri, MediaOptions())
    assert caught.value.type == "protocol_refused"
    assert "secret" not in str(caught.value)
    assert storage.refusal(uri, ["zip", "http", "ftp", "simplecache", "dir", "file", "webhdfs"]) == ""


def test_root_holds_elsewhere_too(store, tmp_path: Path) -> None:
    store.pipe("/in/a.jpg", b"x")
    store.pipe("/secret/a.jpg", b"x")
    allowed = MediaOptions(root="memory://in")
    open_remote("memory://in/a.jpg", allowed).close()
    for uri, options in (
        ("memory://secret/a.jpg", allowed),
        ("memory://in/../secret/a.jpg", allowed),
        ("memory://in/a.jpg", MediaOptions(root=str(tmp_path))),
    ):
        with pytest.raises(FetchError) as caught:
            open_remote(uri, options)
        assert caught.value.type == "outside_root"


def parquet(**columns: list[Any]) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), buffer, row_group_size=2)
    return bytes(buffer.getvalue())


def test_partitioned_parquet_elsewhere(store) -> None:
    for year in (2020, 2021):
        store.pipe(f"/in/year={year}/0.parquet", parquet(image=[f"{year}-{i}.jpg" for i in range(5)], n=list(range(5))))
    inputs = open_inputs(["memory://in"], InputOptions(IMAGES.kinds, where="year == 2021 and n >= 3"))
    assert [(item.media[0].location, item.extra) for item in inputs] == [
        (f"memory://in/year=2021/2021-{n}.jpg", {"n": n, "year": 2021}) for n in (3, 4)
    ]
    assert inputs.total == 2
    (last,) = open_inputs(["memory://in"], IMAGES).part(9, 10)
    assert (last.row_index, last.id, last.extra["n"]) == (9, "row 9", 4)


@pytest.fixture
def server() -> Iterator[str]:
    """Serves rows.jsonl and rows.parquet on the loopback address."""
    bodies = {"/a/rows.jsonl": b'{"image": "b/c.jpg"}\n', "/a/rows.parquet": parquet(image=["c.jpg"])}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = bodies.get(self.path.partition("?")[0])
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: Any) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}"
    http.shutdown()
    thread.join()
    http.server_close()


def test_manifests_on_web_servers_are_fetched_as_guardedly_as_media(server: str) -> None:
    allowed = InputOptions(IMAGES.kinds, allow_private_hosts=True)
    for name, location in (("rows.jsonl?x=1", "b/c.jpg"), ("rows.parquet", "c.jpg")):
        with pytest.raises(UsageError, match="private or loopback"):
            open_inputs([f"{server}/a/{name}"], IMAGES)
        inputs = open_inputs([f"{server}/a/{name}"], allowed)
        assert [item.media[0].location for item in inputs] == [f"{server}/a/{location}"]
        assert len(list(inputs)) == 1, "it can be read again"
    with pytest.raises(UsageError, match="404"):
        open_inputs([f"{server}/rows.jsonl"], allowed)
