"""Outputs elsewhere: sent as they grow, taken by one process at a time, and whole after a death at any moment."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from gemma4cli import inspection, lease, merging, mirror, shards
from gemma4cli.errors import JobError, UsageError
from gemma4cli.inputs import Inputs
from gemma4cli.pending import Resume
from gemma4cli.records import Item, Media, Row, Status
from gemma4cli.shards import Shard
from gemma4cli.sink import Sink


class Killed(BaseException):
    """The process dies here."""


class Plain(MemoryFileSystem):  # type: ignore[misc]
    """A store that cannot refuse to create what is there."""

    protocol = "plain"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(path.removeprefix("plain:/") if isinstance(path, str) else path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        if mode == "create":
            raise NotImplementedError
        super().pipe_file(path, value, **more)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[fsspec.AbstractFileSystem]:
    monkeypatch.setattr(mirror, "_PAUSE_S", 0.0)
    fsspec.register_implementation("plain", Plain, clobber=True)
    fs = fsspec.filesystem("memory")
    yield fs
    for each in (MemoryFileSystem, Plain):
        each.store.clear()
        each.pseudo_dirs[:] = [""]


def rows_of(count: int, first: int = 0) -> Inputs:
    items = [Item(i, f"r{i}", f"r{i}", (Media(f"/m/{i}.jpg"),)) for i in range(first, count)]
    return Inputs(len(items), pa.schema([]), lambda: iter(items))


def run(output: str, rows: int, *, most: int | None = None, part_rows: int = 2, computed: Counter[str] | None = None,
        shard: Shard | None = None, **more: Any) -> list[str]:  # fmt: skip
    """Computes what is left, up to `most` rows; without a limit the run comes to its end."""
    inputs = rows_of(rows) if shard is None else rows_of(shard.stop, shard.first)
    sink = Sink.open(output, "caption", inputs.columns, {}, fingerprint={"model": "m"}, shard=shard,
                     part_rows=part_rows, part_seconds=1e9, clock=lambda: 0.0, **more)  # fmt: skip
    with sink:
        pending = sink.pending(inputs)
        if not pending.idle:
            for number, item in enumerate(pending):
                if number == most:
                    return list(sink.notices)
                if computed is not None:
                    computed[item.id] += 1
                sink.write(Row(item.row_index, item.id, item.id, "image", "caption", Status.OK, f"text {item.id}"))
            sink.finish({"rows": {}})
    return list(sink.notices)


def stored(fs: fsspec.AbstractFileSystem, output: str) -> list[tuple[int, str, str]]:
    """What a reader that knows nothing of us finds, in its order."""
    path = output.partition("://")[2]
    files = [f"/{path}"] if "." in path else sorted(fs.glob(f"/{path}/data/*.parquet"))
    found = []
    for name in files:
        if name.endswith(".jsonl"):
            found += [json.loads(line) for line in fs.cat_file(name).splitlines()]
        else:
            found += pq.read_table(pa.BufferReader(fs.cat_file(name))).to_pylist()
    return [(row["row_index"], row["id"], row["text"]) for row in found]


def expected(rows: int) -> list[tuple[int, str, str]]:
    return [(i, f"r{i}", f"text r{i}") for i in range(rows)]


OUTPUTS = ["memory://job/out", "memory://job/x.parquet", "memory://job/x.jsonl", "memory://x.parquet"]


@pytest.mark.parametrize("output", OUTPUTS)
def test_rows_are_there_while_the_job_runs_and_in_order_at_its_end(store, output: str) -> None:
    run(output, 7, most=4)
    assert len([name for name in store.find("/") if "part-" in name]) == 2
    assert inspection.inspect(output).state == "interrupted"
    computed: Counter[str] = Counter()
    run(output, 7, computed=computed)
    assert sorted(computed) == ["r4", "r5", "r6"], "the others were kept"
    assert stored(store, output) == expected(7)
    found = inspection.inspect(output)
    assert (found.output, found.state, found.ok, found.owner) == (output, "finished", 7, "")
    run(output, 9, resume=Resume(new_only=True))
    assert stored(store, output) == expected(9)
    assert not [name for name in store.find("/") if "lease" in name or "lock" in name or name.endswith(".tmp")]


@pytest.mark.parametrize("output", OUTPUTS[:3])
def test_a_death_at_any_moment_loses_nothing_and_doubles_nothing(
    store, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three runs dies at each of its changes to the store in turn; the third one finishes the job."""
    monkeypatch.setattr(lease, "STALE_S", -1.0)  # the dead one's lease is nobody's
    changes = 0
    dies_at = 0
    original = {name: getattr(MemoryFileSystem, name) for name in ("pipe_file", "rm_file")}

    def dying(name: str) -> Any:
        def change(self: Any, path: str, *more: Any, **named: Any) -> Any:
            nonlocal changes
            changes += 1
            if dies_at and changes >= dies_at:
                raise Killed
            return original[name](self, path, *more, **named)

        return change

    for name in original:
        monkeypatch.setattr(MemoryFileSystem, name, dying(name))
    moment = 0
    while True:
        moment += 1
        store.store.clear()
        dies_at = 0
        run(output, 5)
        before = stored(store, output)
        changes, dies_at = 0, moment
        try:
            run(output, 10)
        except Killed:
            ended = False
        else:
            ended = True
        dies_at = 0
        there = {row for row in stored(store, output) if row in expected(10)}
        assert set(before) <= there, f"rows of the first run are lost at change {moment}"
        computed: Counter[str] = Counter()
        run(output, 10, computed=computed)
        assert stored(store, output) == expected(10), f"after a death at change {moment}"
        assert not any(name in computed for name in ("r0", "r1", "r2", "r3", "r4")), "paid for twice"
        if ended:
            break
    assert moment > 8


def test_one_process_at_a_time(store) -> None:
    held = mirror.Mirror("memory://job/out")
    assert held.claim() == []
    with pytest.raises(UsageError, match="another gemma4 is writing to memory://job/out: process"):
        run("memory://job/out", 3)
    assert "process" in inspection.inspect("memory://job/out").owner
    held.close()
    run("memory://job/out", 3)
    assert stored(store, "memory://job/out") == expected(3)


def test_a_stale_lease_and_that_of_a_dead_process_are_free(store) -> None:
    now, here = time.time(), socket.gethostname()
    for other in (
        {"pid": 1, "host": "elsewhere", "token": "t", "time": now - 601},
        {"pid": 2**22 + 1, "host": here, "token": "t", "time": now},
    ):
        store.pipe("/job/out/.gemma4cli/lease.json", json.dumps(other).encode())
        run("memory://job/out", 3)
    store.pipe("/job/out/.gemma4cli/lease.json", b"nonsense")
    with pytest.raises(UsageError, match="just now"):
        run("memory://job/out", 3)


def test_who_lost_the_lease_sends_nothing_more(store) -> None:
    inputs = rows_of(6)
    sink = Sink.open("memory://job/out", "caption", inputs.columns, {}, part_rows=2, part_seconds=1e9)
    items = list(sink.pending(inputs))
    store.pipe("/job/out/.gemma4cli/lease.json", json.dumps({"token": "other", "time": time.time()}).encode())
    sink.write(Row(0, items[0].id, "", "image", "caption", Status.OK, "x"))
    for end in (sink.flush, sink.close):
        with pytest.raises(JobError, match="another gemma4 has taken memory://job/out over"):
            end()
    assert not [name for name in store.find("/job/out") if name.endswith(".parquet")]


def test_a_store_that_keeps_nobody_apart_is_told_of(store) -> None:
    assert ["cannot keep two processes apart" in note for note in run("plain://job/out", 3)] == [True]
    assert stored(fsspec.filesystem("plain"), "plain://job/out") == expected(3)
    assert run("memory://job/out", 3) == []


def test_what_is_not_ours_is_left_alone(store) -> None:
    store.pipe("/job/out/holiday.jpg", b"x")
    with pytest.raises(UsageError, match="memory://job/out is a folder with other things in it"):
        run("memory://job/out", 3)
    store.pipe("/job/x.parquet", b"x")
    with pytest.raises(UsageError, match=r"memory://job/x\.parquet was not written by gemma4"):
        run("memory://job/x.parquet", 3)
    assert store.cat("/job/out/holiday.jpg") == store.cat("/job/x.parquet") == b"x"


def test_starting_again_leaves_nothing_of_what_was(store) -> None:
    run("memory://job/out", 9)
    run("memory://job/out", 3, overwrite=True)
    assert stored(store, "memory://job/out") == expected(3)


def test_shards_elsewhere_are_put_together_there(store) -> None:
    for number in (1, 0):
        run("memory://job/out", 7, shard=shards.cut(number, 2, 7))
    assert merging.merge("memory://job/out").ok == 7
    assert stored(store, "memory://job/out") == expected(7)
    assert not [name for name in store.find("/job/out") if "shards" in name]


def test_errors_are_the_stores_own(store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="s3fs"):
        run("s3://bucket/out", 3)

    run("memory://job/out", 2)
    original = MemoryFileSystem.pipe_file

    def pipe_file(self: Any, path: str, value: bytes, **more: Any) -> None:
        if path.endswith(".parquet"):
            raise OSError("no room here")
        original(self, path, value, **more)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", pipe_file)
    with pytest.raises(JobError, match="cannot write to memory://job/out: no room here"):
        run("memory://job/out", 5)
    monkeypatch.undo()
    run("memory://job/out", 5)
    assert stored(store, "memory://job/out") == expected(5)


def test_what_others_put_beside_the_rows_is_neither_fetched_nor_removed(store) -> None:
    run("memory://job/out", 3)
    store.pipe("/job/out/film.mkv", b"large")
    held = mirror.Mirror("memory://job/out")
    assert not list(held.place.path.glob("*.mkv"))
    held.close()
    run("memory://job/out", 3, overwrite=True)
    assert store.cat("/job/out/film.mkv") == b"large"
