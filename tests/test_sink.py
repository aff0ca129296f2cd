"""Rows to outputs: nothing lost, nothing twice, in order at the end, and nobody else's files touched."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import gc
import io
import json
import os
import random
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli import inspection, parts, reading
from gemma4cli.errors import JobError, UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.records import Kind, Row, Status
from gemma4cli.sink import OutputClosedError, Sink

COLUMNS = pa.schema({"n": pa.int64(), "id": pa.string()})
OUTPUTS = ["out", "x.parquet", "x.jsonl"]


def row(row_index: int, text: str | None = "text", **extra: Any) -> Row:
    extra = extra or {"n": row_index, "id": f"their {row_index}"}
    return Row(row_index, f"i{row_index}", f"{row_index}.jpg", "image", "caption", Status.OK, text, extra=extra)


def shuffled(count: int, seed: int = 1) -> list[int]:
    return random.Random(seed).sample(range(count), count)


def opened(output: Path | str, overwrite: bool = False, **options: Any) -> Sink:
    """An output whose parts go by rows alone: its clock stands still."""
    options.setdefault("clock", lambda: 0.0)
    return Sink.open(str(output), "caption", COLUMNS, {"model": "m"}, overwrite, **options)


def write(sink: Sink, order: Iterable[int], then: BaseException | None = None) -> None:
    """Writes rows, and then fails, or else flushes."""
    with sink:
        for row_index in order:
            sink.write(row(row_index))
        if then is not None:
            raise then
        sink.flush()


def fill(output: Path | str, order: list[int], overwrite: bool = False, **options: Any) -> None:
    with opened(output, overwrite, **options) as sink:
        for row_index in order:
            sink.write(row(row_index))
        sink.finish({"rows": len(order)})


def stored(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    return list(pq.read_table(path).to_pylist())


def indices(path: Path) -> list[int]:
    return [record["row_index"] for record in stored(path)]


def refusal(output: Path | str, overwrite: bool = False) -> UsageError:
    with pytest.raises(UsageError) as caught:
        opened(output, overwrite)
    return caught.value


@pytest.mark.parametrize("name", OUTPUTS)
def test_finished_output_has_all_rows_in_order(tmp_path: Path, name: str) -> None:
    fill(tmp_path / name, shuffled(100), part_rows=7)
    records = stored(tmp_path / name)
    assert [record["row_index"] for record in records] == list(range(100))
    assert records[3]["input_id"] == "their 3"
    assert (records[3]["status"], records[3]["n"]) == ("ok", 3)
    state = tmp_path / "out/.gemma4cli" if name == "out" else tmp_path / ".gemma4cli" / name
    assert json.loads((state / "summary.json").read_text()) == {"rows": 100}
    names = sorted(path.name for path in state.iterdir())
    assert names == [next(name for name in names if name.startswith("keys-")), "lock", "summary.json"]


@pytest.mark.parametrize("name", OUTPUTS)
def test_no_rows_make_an_output_with_columns(tmp_path: Path, name: str) -> None:
    fill(tmp_path / name, [])
    assert stored(tmp_path / name) == []
    if name != "x.jsonl":
        assert pq.read_table(tmp_path / name).column_names[-2:] == ["n", "input_id"]


def test_datasets_reads_the_folder(tmp_path: Path) -> None:
    fill(tmp_path / "out", shuffled(10), part_rows=3)
    data = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    assert data["row_index"][:] == list(range(10))
    assert data.features["duration_s"] == datasets.Value("float64")


def test_metadata_says_what_made_the_output(tmp_path: Path) -> None:
    fill(tmp_path / "out", [0])
    metadata = pq.read_schema(tmp_path / "out/data/part-00000.parquet").metadata
    assert json.loads(metadata[b"gemma4cli"]) == {"task": "caption", "model": "m"}


def test_parts_appear_while_the_job_runs(tmp_path: Path) -> None:
    now = 0.0
    with opened(tmp_path / "out", part_rows=3, part_seconds=60.0, clock=lambda: now) as sink:
        for row_index in (5, 4, 3):
            sink.write(row(row_index))
        assert indices(tmp_path / "out") == [3, 4, 5]
        now = 100.0
        sink.write(row(9))
        assert len(indices(tmp_path / "out")) == 4
        now = 103.0  # at risk may be a twenty-fifth of the time so far
        sink.write(row(8))
        assert len(indices(tmp_path / "out")) == 4
        now = 105.0
        sink.write(row(7))
        assert sorted(indices(tmp_path / "out")) == [3, 4, 5, 7, 8, 9]
        sink.write(row(1))
        sink.flush()
        assert len(indices(tmp_path / "out")) == 7


def test_large_texts_fill_a_part_before_the_rows_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4cli.part_sink.PART_BYTES", 5000)
    with opened(tmp_path / "out") as sink:
        for row_index in range(3):
            sink.write(row(row_index, text="x" * 2000))
        assert len(indices(tmp_path / "out")) == 2


def test_rows_outlive_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write(opened(tmp_path / "out", part_rows=2), range(5), then=RuntimeError())
    assert indices(tmp_path / "out") == list(range(5))
    assert not (tmp_path / "out/.gemma4cli/summary.json").exists()


def test_memory_of_merging_is_the_disorder(tmp_path: Path) -> None:
    schema = pa.schema({"row_index": pa.int64()})
    tables = [pa.table({"row_index": [0, 1, 3]}), pa.table({"row_index": [2, 5]}), pa.table({"row_index": [6, 7]})]
    written = [parts.write_part(tmp_path, i, table, {}) for i, table in enumerate(tables)]
    merged = parts.merged([written[2], written[1], written[0]], schema)
    assert [table["row_index"].to_pylist() for table in merged] == [[0, 1], [2, 3, 5], [6, 7]]


@pytest.mark.parametrize("name", OUTPUTS)
def test_memory_does_not_grow_with_the_rows(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What Arrow holds after each part, and as each is read at the end: keys alone were 45 bytes a row."""
    monkeypatch.setattr(parts, "GROUP_ROWS", 500)
    held: list[int] = []

    def watched(table: pa.Table, *args: Any, **kwargs: Any) -> pa.Table:
        held.append(pa.total_allocated_bytes())
        return plainly(table, *args, **kwargs)

    with opened(tmp_path / name, part_rows=500) as sink:
        began = pa.total_allocated_bytes()
        for row_index in range(20_000):
            sink.write(row(row_index))
            if row_index % 500 == 499:
                held.append(pa.total_allocated_bytes())
        assert max(held) - began < 50_000
        plainly = parts.conformed
        monkeypatch.setattr(parts, "conformed", watched)
        sink.finish({})
    assert len(held) == 80
    assert max(held) - began < 700_000


@pytest.mark.parametrize("name", ["out", "x.parquet"])
def test_memory_of_a_look_at_the_rows_does_not_grow_with_them(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which each job takes at its end, for the card."""
    monkeypatch.setattr(parts, "GROUP_ROWS", 500)
    fill(tmp_path / name, range(20_000))
    held: list[int] = []
    plainly = reading.tables

    def watched(*args: Any) -> Iterator[pa.Table]:
        for table in plainly(*args):
            held.append(pa.total_allocated_bytes())
            yield table

    monkeypatch.setattr(reading, "tables", watched)
    began = pa.total_allocated_bytes()
    assert inspection.inspect(str(tmp_path / name)).ok == 20_000
    assert len(held) >= 40
    assert max(held) - began < 400_000


def test_metadata_of_parts_goes_when_it_was_read(tmp_path: Path) -> None:
    """It has the keys in it, and may be held in a circle that Python finds only now and then."""
    with opened(tmp_path / "out", part_rows=5) as sink:
        write(sink, range(10))
    files = sorted((tmp_path / "out/data").iterdir())
    gc.collect()
    gc.disable()
    try:
        rows = sum(len(table) for table in parts.merged(files, pq.read_schema(files[0])))
        assert rows + len(reading.records(sink.ledger.sources, [7], ["text"])) == 11
        assert not [each for each in gc.get_objects() if type(each) is pq.FileMetaData]  # asked, some objects warn
    finally:
        gc.enable()


def test_row_groups_and_parts_have_a_sensible_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GROUP_ROWS", 10)
    monkeypatch.setattr(parts, "PART_ROWS", 25)
    fill(tmp_path / "out", shuffled(64), part_rows=3)
    files = sorted((tmp_path / "out/data").iterdir())
    assert [path.name for path in files] == [f"part-0000{i}.parquet" for i in range(4)]
    groups = [[m.row_group(i).num_rows for i in range(m.num_row_groups)] for m in map(pq.read_metadata, files)]
    assert sum(map(sum, groups)) == 64
    assert all(rows <= 10 for group in groups for rows in group)
    assert all(sum(group) <= 25 for group in groups)


class Crash(BaseException):
    """Stands for the end of the process at this very moment."""


def crashing(monkeypatch: pytest.MonkeyPatch, after: int) -> Callable[[], int]:
    """Lets so many operations that change the disk happen, and crashes at the next; returns how many did."""
    count = 0

    def wrapped(operation: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            if count == after:
                raise Crash
            count += 1
            return operation(*args, **kwargs)

        return step

    for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "rename"), (shutil, "rmtree"), (parts, "swap")):
        monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))
    return lambda: count


@pytest.mark.parametrize("exchange", [True, False])
def test_crash_while_finishing_leaves_all_rows_once(tmp_path: Path, exchange: bool) -> None:
    steps = 0
    for after in range(1000):
        folder = tmp_path / f"out{after}"
        with pytest.MonkeyPatch.context() as patch:
            if not exchange:
                patch.setattr(ctypes, "CDLL", lambda *_, **__: object())
            sink = opened(folder, part_rows=7)
            for row_index in shuffled(20):
                sink.write(row(row_index))
            sink.flush()
            done = crashing(patch, after)
            with contextlib.suppress(Crash):
                sink.finish({})
                steps = done()
        sink.close()
        if steps:
            break
        with opened(folder) as sink:  # puts right what was cut off
            assert not sink.notices
            assert sorted(indices(folder / "data")) == list(range(20)), f"after {after} steps"
            sink.finish({})
        assert indices(folder / "data") == list(range(20)), f"after {after} steps"
    assert steps > 5


def test_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    sink = opened(path, part_rows=2)
    write(sink, range(5))
    with pytest.MonkeyPatch.context() as patch:
        crashing(patch, 1)
        with pytest.raises(Crash):
            sink.finish({})
    assert not path.exists()
    assert sorted(indices(tmp_path / ".gemma4cli/x.jsonl/parts")) == list(range(5))


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_is_replaced_only_when_asked(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    fill(path, shuffled(30), part_rows=4)
    opened(path).close()
    assert len(stored(path)) == 30
    fill(path, [0, 1], overwrite=True)
    assert indices(path) == [0, 1]


def test_a_run_that_wrote_no_row_is_no_obstacle(tmp_path: Path) -> None:
    for name in OUTPUTS:
        opened(tmp_path / name).close()
        fill(tmp_path / name, [0])
        assert indices(tmp_path / name) == [0]


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_text("x")
    (tmp_path / "rows.jsonl").write_text('{"path": "a.jpg"}\n')
    (tmp_path / "notes.jsonl").write_text("hello")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "rows.parquet")
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder.jsonl").mkdir()
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    for name in ("photos", "rows.jsonl", "notes.jsonl", "rows.parquet", "file", "folder.jsonl"):
        refusal(tmp_path / name, overwrite=True)
    assert sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_state_of_files_does_not_make_their_folder_ours(tmp_path: Path) -> None:
    fill(tmp_path / "x.jsonl", [0])
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "data/part-00000.parquet")
    assert "other things" in str(refusal(tmp_path, overwrite=True))


def test_overwriting_a_folder_keeps_what_lies_beside_the_data(tmp_path: Path) -> None:
    fill(tmp_path / "out", [0])
    (tmp_path / "out/README.md").write_text("mine")
    fill(tmp_path / "out/x.jsonl", [0])
    fill(tmp_path / "out", [0, 1], overwrite=True)
    assert (tmp_path / "out/README.md").read_text() == "mine"
    assert (tmp_path / "out/.gemma4cli/x.jsonl/summary.json").exists()
    (tmp_path / "out/data/theirs.csv").write_text("x")
    assert "theirs.csv" in str(refusal(tmp_path / "out", overwrite=True))


def test_file_put_among_the_data_while_the_job_runs_stays(tmp_path: Path) -> None:
    with opened(tmp_path / "out") as sink:
        sink.write(row(0))
        (tmp_path / "out/data/theirs.txt").write_text("x")
        sink.finish({})
    assert (tmp_path / "out/data/theirs.txt").read_text() == "x"


def test_outputs_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    assert "no such folder" in str(refusal(tmp_path / "missing/out"))
    assert ".csv" in str(refusal(tmp_path / "x.csv"))
    for scheme in ("foo://", "http://"):
        assert f"cannot write to {scheme}" in str(refusal(f"{scheme}example.org/out.jsonl"))
    (tmp_path / ".gemma4cli").write_text("a file where the state should go")
    assert "cannot write" in str(refusal(tmp_path / "x.jsonl"))
    assert "cannot write" in str(refusal("/proc/out"))


def test_two_runs_cannot_write_to_one_output(tmp_path: Path) -> None:
    with opened(tmp_path / "out"):
        assert "another gemma4" in str(refusal(tmp_path / "out"))
    opened(tmp_path / "out").close()


@contextlib.contextmanager
def largest_file(nbytes: int) -> Iterator[None]:
    """Stands for a full disk: the kernel refuses a write in its middle, as there."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_full_disk_ends_the_job_and_keeps_the_parts(tmp_path: Path) -> None:
    def fill_up() -> None:
        with opened(tmp_path / "out", part_rows=20) as sink:
            for row_index in range(40):
                sink.write(row(row_index, text="short" if row_index < 20 else random.Random(1).randbytes(50_000).hex()))

    with largest_file(40_000), pytest.raises(JobError, match="File too large") as caught:
        fill_up()
    assert "20 rows are kept in 1 parts" in caught.value.hint
    assert indices(tmp_path / "out") == list(range(20))
    with opened(tmp_path / "out") as sink:
        assert not sink.notices
        assert len(sink.ledger.live()[0]) == 20


@pytest.mark.parametrize("name", OUTPUTS)
def test_full_disk_at_the_end_leaves_all_parts_for_the_next_run(tmp_path: Path, name: str) -> None:
    random_text = random.Random(1)
    with opened(tmp_path / name, part_rows=5) as sink:
        for row_index in range(20):
            sink.write(row(row_index, text=random_text.randbytes(2500).hex()))
        with largest_file(40_000), pytest.raises(JobError, match="File too large"):
            sink.finish({})
    state = tmp_path / "out/.gemma4cli" if name == "out" else tmp_path / ".gemma4cli" / name
    assert not (state / "sorted").exists()
    with opened(tmp_path / name) as sink:
        assert not sink.notices
        sink.finish({})
    assert indices(tmp_path / name) == list(range(20))


def test_value_that_does_not_fit_its_column_is_named(tmp_path: Path) -> None:
    def job() -> None:
        with opened(tmp_path / "out") as sink:
            sink.write(row(0))
            sink.write(row(1, n="x"))

    with pytest.raises(JobError, match="row 1: n does not fit its type int64: 'x'"):
        job()


@pytest.mark.parametrize("name", OUTPUTS)
def test_lone_surrogates_are_escaped(tmp_path: Path, name: str) -> None:
    with opened(tmp_path / name) as sink:
        sink.write(row(0, text="a\ud800b", n=1, id="caf\udce9"))
        sink.finish({})
    (record,) = stored(tmp_path / name)
    assert (record["text"], record["input_id"]) == ("a\\ud800b", "caf\\xe9")


def test_standard_output_is_in_input_order_as_soon_as_it_can_be() -> None:
    stream = io.BytesIO()
    seen = []
    with opened("-", stdout=stream) as sink:
        assert sink.state is None
        for row_index in (1, 0, 3, 2, 5):
            sink.write(row(row_index))
            seen.append(stream.getvalue().count(b"\n"))
        sink.finish({})
    assert seen == [0, 2, 2, 4, 4]
    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [record["row_index"] for record in records] == [0, 1, 2, 3, 5]
    assert records[0]["input_id"] == "their 0"


def test_times_are_iso_8601_in_lines_of_json(tmp_path: Path) -> None:
    kinds = {"us": pa.timestamp("us", "UTC"), "far": pa.timestamp("s"), "s": pa.struct({"t": pa.time64("ns")})}
    columns = pa.schema({**kinds, "days": pa.list_(pa.date32()), "none": pa.timestamp("ns")})
    extra = {"us": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC), "far": 253_402_300_800, "s": {"t": 1}}
    extra |= {"days": [datetime.date(2020, 1, 2)], "none": None}
    stream = io.BytesIO()
    for output in ("-", str(tmp_path / "x.jsonl")):
        with Sink.open(output, "caption", columns, {}, stdout=stream) as sink:
            sink.write(row(0, **extra))
            sink.finish({})
    assert stream.getvalue() == (tmp_path / "x.jsonl").read_bytes()
    record = json.loads(stream.getvalue())
    assert {name: record[name] for name in columns.names} == {
        "us": "2020-01-02T00:00:00+00:00",
        "far": "10000-01-01T00:00:00",
        "s": {"t": "00:00:00.000000001"},
        "days": ["2020-01-02"],
        "none": None,
    }


def test_standard_output_shows_what_is_done_when_the_job_fails() -> None:
    stream = io.BytesIO()
    with pytest.raises(RuntimeError):
        write(opened("-", stdout=stream), [4, 2], then=RuntimeError())
    assert [json.loads(line)["row_index"] for line in stream.getvalue().splitlines()] == [2, 4]


def test_reader_of_standard_output_may_leave() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as stream:  # noqa: PTH123
        sink = opened("-", stdout=stream)
        with pytest.raises(OutputClosedError):
            sink.write(row(0))
        sink.close()


def test_full_standard_output_ends_the_job() -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream, pytest.raises(JobError, match="No space left"):
        opened("-", stdout=stream).write(row(0))


CELLS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(width=64)
    | st.text(st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "id"]), inner, max_size=3),
    max_leaves=6,
)
# Columns of one kind of value stay typed; of any kind, they become JSON text.
KINDS = [st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.text(st.characters(), max_size=5), CELLS]


@st.composite
def manifests(draw: st.DrawFn) -> list[dict[str, Any]]:
    columns = {f"c{i}": draw(st.sampled_from(KINDS)) | st.none() for i in range(draw(st.integers(1, 4)))}
    count = draw(st.integers(1, 6))
    return [
        {"path": "a.jpg", **{name: draw(cell) for name, cell in columns.items() if draw(st.booleans())}}
        for _ in range(count)
    ]


def same(read: Any, written: Any) -> bool:
    """Equal, apart from what a typed column must add (null fields) or JSON text leave out (NaN)."""
    if isinstance(written, dict) and isinstance(read, dict):
        return all(same(read.get(key), written.get(key)) for key in read.keys() | written.keys())
    if isinstance(written, list) and isinstance(read, list):
        return len(read) == len(written) and all(map(same, read, written))
    if isinstance(written, float) and (read is None or read != read):
        return not (float("-inf") < written < float("inf"))
    if isinstance(written, str) and isinstance(read, str):
        return read == written or any("\ud800" <= letter <= "\udfff" for letter in written)
    return bool(read == written)


@settings(max_examples=40, deadline=None)
@given(manifests(), st.sampled_from(["x.parquet", "x.jsonl"]))
def test_any_manifest_comes_through(rows: list[dict[str, Any]], output: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rows))
        inputs = open_inputs([str(folder / "rows.jsonl")], InputOptions(kinds=frozenset({Kind.IMAGE})))
        with Sink.open(str(folder / output), "caption", inputs.columns, {}) as sink:
            for item in inputs:
                sink.write(row(item.row_index, **item.extra))
            sink.finish({})
        read = stored(folder / output)
        assert len(read) == len(rows)
        for record, written in zip(read, rows, strict=True):
            for column in inputs.columns:
                value, wanted = record[column.name], written.get(column.name)
                if isinstance(value, str) and not same(value, wanted):
                    value = json.loads(value)  # a column of mixed values
                assert same(value, wanted), (column, value, wanted)


def test_lines_that_only_look_like_ours_are_left_alone(tmp_path: Path) -> None:
    """A user's own rows may have a row_index and an id; ours have all the columns of a row."""
    path = tmp_path / "x.jsonl"
    theirs = "".join(json.dumps({"row_index": i, "id": f"a{i}", "text": "mine"}) + "\n" for i in range(3))
    path.write_text(theirs)
    assert "was not written by gemma4" in str(refusal(path))
    assert path.read_text() == theirs
    path.unlink()
    fill(path, [0, 1])
    path.write_text(theirs)  # with our notes of what lay there before still beside it
    assert "was not written by gemma4" in str(refusal(path, overwrite=True))
    path.write_text("prose")
    assert "was not written by gemma4" in str(refusal(path, overwrite=True))
    path.unlink()
    fill(path, [0, 1], overwrite=True)
    path.write_bytes(path.read_bytes() + theirs.encode())
    before = path.read_bytes()
    assert "holds lines that gemma4 did not write" in str(refusal(path))
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["part-mine.parquet", "part-00000-5e0f-c000.snappy.parquet", "part-00007.parquet"])
def test_parts_of_others_are_told_by_what_is_in_them(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "out", [0])
    theirs = tmp_path / "out/data" / name
    pq.write_table(pa.table({"x": [1]}), theirs)
    for overwrite in (False, True):
        assert name in str(refusal(tmp_path / "out", overwrite))
    theirs.unlink()
    with opened(tmp_path / "out", overwrite=True) as sink:
        sink.write(row(0))
        pq.write_table(pa.table({"x": [1]}), theirs)
        sink.finish({})
    assert pq.read_table(theirs).to_pylist() == [{"x": 1}]


def test_a_file_that_took_the_place_of_ours_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path / "x.parquet", [0])
    (tmp_path / "x.parquet").write_text("prose")
    for overwrite in (False, True):
        assert "was not written by gemma4" in str(refusal(tmp_path / "x.parquet", overwrite))
    assert (tmp_path / "x.parquet").read_text() == "prose"
