"""Resume: whatever is interrupted, changed, added or damaged, each input has one row in the end, paid for once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli import identity, inspection, keys, ledger, parts, pending
from gemma4cli.errors import JobError, UsageError
from gemma4cli.inputs import Inputs
from gemma4cli.pending import Pending, Resume
from gemma4cli.records import Item, Media, Row, Status
from gemma4cli.remaining import remaining
from gemma4cli.sink import Sink

OUTPUTS = ["out", "x.parquet", "x.jsonl"]
NO_COLUMNS = pa.schema([])
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where waiting for the disk costs nothing


def stored(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_bytes().splitlines()]
    return list(pq.read_table(path / "data" if path.suffix == "" else path).to_pylist())


def answer(item: Item) -> Row:
    """A row that tells what it was computed from; a prompt of `fail` makes it fail."""
    failed = item.prompt == "fail"
    text = None if failed else f"{item.id} {item.media[0].location} {item.prompt}"
    status = Status.FAILED if failed else Status.OK
    stage = "decode" if failed else None
    return Row(item.row_index, item.id, item.source, "image", "caption", status, text, error_stage=stage)


@dataclass
class Job:
    """An input that can change, one output, and a count of the rows that were computed."""

    output: Path
    rows: list[tuple[str, str]] = field(default_factory=list)  # id, content
    computed: int = 0
    prompts: dict[str, str] = field(default_factory=dict)
    fingerprint: dict[str, Any] = field(default_factory=lambda: {"model": "m"})

    def inputs(self) -> Inputs:
        def items() -> Iterator[Item]:
            for i, (id, content) in enumerate(self.rows):
                media = (Media(content if "/" in content else f"http://x/{content}"),)
                yield Item(i, id, content, media, self.prompts.get(content))

        return Inputs(len(self.rows), NO_COLUMNS, items)

    @contextlib.contextmanager
    def opened(self, resume: Resume = Resume(), **options: Any) -> Iterator[tuple[Sink, Pending]]:  # noqa: B008
        options = {"fingerprint": self.fingerprint, "part_rows": 3, "clock": lambda: 0.0, **options}
        with Sink.open(str(self.output), "caption", NO_COLUMNS, {}, resume=resume, **options) as sink:
            yield sink, sink.pending(self.inputs())

    def run(self, resume: Resume = Resume(), rows: int | None = None, **options: Any) -> list[dict[str, Any]]:  # noqa: B008
        """Does all rows that are left, or so many, and returns what the output then holds."""
        with self.opened(resume, **options) as (sink, left):
            for number, item in enumerate(left):
                if number == rows:
                    return []
                sink.write(answer(item))
                self.computed += 1
            for row in sink.duplicates():
                sink.write(row)
            if not left.idle:
                sink.finish({})
        return stored(self.output)

    def refusal(self, resume: Resume = Resume(), **options: Any) -> UsageError:  # noqa: B008
        with pytest.raises(UsageError) as caught:
            self.run(resume, **options)
        return caught.value


class Crash(BaseException):
    """Stands for the end of the process at this very moment."""


@contextlib.contextmanager
def crashing(after: int) -> Iterator[None]:
    """Lets so many operations that change the disk happen, and crashes at each one after."""
    count = 0

    def wrapped(operation: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count > after:
                raise Crash
            return operation(*args, **kwargs)

        return step

    with pytest.MonkeyPatch.context() as patch:
        steps = ((os, "fsync"), (Path, "replace"), (Path, "rename"), (Path, "unlink"), (shutil, "rmtree"))
        for owner, name in (*steps, (parts, "swap")):
            patch.setattr(owner, name, wrapped(getattr(owner, name)))
        yield


CONTENTS = st.sampled_from("abcde")
ROWS = st.lists(st.tuples(st.sampled_from("pqrs"), CONTENTS), min_size=1, max_size=9)


@st.composite
def changed(draw: st.DrawFn, rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows after some were changed, removed, put in between, or shuffled."""
    rows = list(rows)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(rows)))
        kind = draw(st.sampled_from(["insert", "remove", "change", "shuffle"]))
        if kind == "insert":
            rows.insert(at, (draw(st.sampled_from("pqrstu")), draw(CONTENTS)))
        elif kind == "remove" and len(rows) > 1:
            rows.pop(min(at, len(rows) - 1))
        elif kind == "change" and rows:
            at = min(at, len(rows) - 1)
            rows[at] = rows[at][0], draw(CONTENTS)
        elif kind == "shuffle":
            rows = draw(st.permutations(rows))
    return rows


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_input_has_one_row_whatever_happens(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "GROUP_ROWS", data.draw(st.sampled_from([2, parts.GROUP_ROWS])))
        job = Job(Path(folder) / data.draw(st.sampled_from(OUTPUTS)), data.draw(ROWS))
        ever = Counter(job.rows)
        unique = data.draw(st.booleans())
        if unique:
            job.rows = list(dict(job.rows).items())
        for _ in range(data.draw(st.integers(0, 4))):
            before = job.rows
            with contextlib.suppress(Crash), crashing(data.draw(st.integers(0, 40))):
                job.run(Resume(new_only=True), rows=data.draw(st.none() | st.integers(0, 9)), dedupe=False)
            job.rows = data.draw(changed(before))
            if unique:
                job.rows = list(dict(job.rows).items())
            ever |= Counter(job.rows)
        records = job.run(Resume(new_only=True))
        computed = job.computed
        indices = [record["row_index"] for record in records]
        assert indices == sorted(set(indices))
        wanted = Counter((id, f"{id} http://x/{content} None") for id, content in job.rows)
        found = Counter((record["id"], record["text"]) for record in records)
        assert wanted <= found
        assert all(id_text in {(i, f"{i} http://x/{c} None") for i, c in ever} for id_text in found)
        again = job.run(Resume(new_only=True))
        assert again == records
        assert job.computed == computed


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_work_is_bounded_by_what_was_not_committed(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        job = Job(Path(folder) / data.draw(st.sampled_from(OUTPUTS)), data.draw(ROWS))
        stops = data.draw(st.lists(st.integers(0, 30), max_size=5))
        for after in stops:
            with contextlib.suppress(Crash), crashing(after):
                job.run()
        records = job.run()
        assert Counter(record["id"] for record in records) == Counter(id for id, _ in job.rows)
        assert [record["row_index"] for record in records] == list(range(len(job.rows)))
        assert job.computed <= len(job.rows) + 3 * len(stops)  # parts have 3 rows here


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_duplicates_are_computed_once_over_any_crash(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        job = Job(Path(folder) / data.draw(st.sampled_from(OUTPUTS)), data.draw(ROWS), prompts={"e": "fail"})
        stops = data.draw(st.lists(st.integers(0, 30), max_size=4))
        for after in stops:
            with contextlib.suppress(Crash), crashing(after):
                job.run(dedupe=True)
        records = job.run(dedupe=True)
        assert [record["row_index"] for record in records] == list(range(len(job.rows)))
        different = len({content for _, content in job.rows})
        # A failed row is not taken as an answer by the next run.
        assert job.computed <= different * (1 + len(stops)) + 3 * len(stops)
        by_index = {record["row_index"]: record for record in records}
        for record, (id, content) in zip(records, job.rows, strict=True):
            assert record["id"] == id
            assert record["source"] == content
            assert record["status"] == ("failed" if content == "e" else "ok")
            if record["duplicate_of"] is not None:
                origin = by_index[record["duplicate_of"]]
                assert origin["duplicate_of"] is None
                assert (origin["text"], origin["source"]) == (record["text"], content)
                assert record["attempts"] == 0
                assert record["generate_ms"] is None


@settings(max_examples=300, deadline=None)
@given(ROWS, st.data())
def test_plan_accounts_for_every_row(rows: list[tuple[str, str]], data: st.DataObject) -> None:
    kept = data.draw(st.sets(st.sampled_from(range(len(rows)))))
    done = keys.table(
        sorted(kept),
        [identity.Key(ord(rows[i][0]), ord(rows[i][1])) for i in sorted(kept)],
        ["ok"] * len(kept),
        [None] * len(kept),
    )
    now = data.draw(changed(rows))
    ids = np.array([ord(id) for id, _ in now], np.uint64)
    contents = np.array([ord(content) for _, content in now], np.uint64)
    plan = pending.plan(done, ids, contents, Resume())
    assert sorted([*plan.matched, *plan.vanished]) == sorted(kept)
    to_do = plan.row_index[plan.row_index >= 0]
    assert len(set(to_do)) == len(to_do) == len(now) - len(plan.matched)
    assert not set(to_do) & kept
    if now == rows:
        assert set(to_do) == set(range(len(rows))) - kept
        assert not len(plan.changed)
    redone = pending.plan(done, ids, contents, Resume(new_only=True))
    again = redone.row_index[redone.row_index >= 0]
    assert len(set(again)) == len(again)
    assert set(redone.changed) == set(again) & kept


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A finished job of eight rows, each of its own content."""
    made = Job(tmp_path / "out", [(f"r{i}", f"c{i}") for i in range(8)])
    made.run()
    return made


@pytest.fixture(params=OUTPUTS)
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    """The same in each form of output."""
    made = Job(tmp_path / request.param, [(f"r{i}", f"c{i}") for i in range(8)])
    made.run()
    return made


def test_finished_output_has_nothing_left(each: Job) -> None:
    with each.opened() as (_, left):
        assert (left.total, left.idle, left.kept_ok, left.kept_failed) == (0, True, 8, 0)
        assert list(left) == []


def test_new_rows_are_done_wherever_they_stand(each: Job) -> None:
    each.rows.insert(2, ("new", "c9"))
    each.rows.append(("last", "c10"))
    records = each.run()
    assert each.computed == 10
    assert [record["id"] for record in records[:8]] == [f"r{i}" for i in range(8)]
    assert {record["id"]: record["row_index"] for record in records[8:]} == {"new": 10, "last": 9}


def test_other_settings_are_refused_by_name(job: Job) -> None:
    job.fingerprint = {"model": "n", "--top-k": 3}
    error = job.refusal()
    assert str(error).endswith('made with other settings: model was "m", is "n"; --top-k was not set, is 3')
    assert "--new-only" in error.hint
    assert "--overwrite" in error.hint
    job.rows.append(("new", "c9"))
    assert len(job.run(Resume(new_only=True))) == 9
    assert job.computed == 9
    document = json.loads(pq.read_schema(job.output / "data/part-00000.parquet").metadata[b"gemma4cli"])
    assert document["fingerprint"] == job.fingerprint
    assert document["earlier"] == [{"model": "m"}]  # the metadata does not claim that all rows are of the new model
    assert len(job.run()) == 9


def test_changed_rows_are_refused_by_name(each: Job) -> None:
    for i in (1, 3, 4, 6):
        each.rows[i] = each.rows[i][0], "other"
    error = each.refusal()
    assert str(error).endswith("4 rows of the input are not what they were: r1, r3, r4, ...")
    assert "--new-only" in error.hint
    records = each.run(Resume(new_only=True))
    assert each.computed == 12
    assert [record["row_index"] for record in records] == list(range(8))
    assert [i for i in range(8) if "other" in records[i]["text"]] == [1, 3, 4, 6]


def test_changed_prompt_is_a_changed_row(job: Job) -> None:
    job.prompts["c2"] = "why?"
    assert str(job.refusal()).endswith("1 row of the input is not what it was: r2")


def test_vanished_rows_are_refused_by_name(each: Job) -> None:
    gone = each.rows.pop(5)
    assert str(each.refusal()).endswith("1 row that it holds is no longer in the input: r5")
    assert len(each.run(Resume(new_only=True))) == 8
    assert each.computed == 8
    each.rows = [("only", "new")]
    records = each.run(Resume(new_only=True))
    assert (len(records), records[-1]["row_index"], records[5]["id"]) == (9, 8, gone[0])


def test_limit_misses_no_rows(job: Job) -> None:
    job.rows = job.rows[:3]
    assert len(job.run(Resume(partial=True))) == 8
    job.rows = [(f"r{i}", f"c{i}") for i in range(12)]
    assert len(job.run(Resume(partial=True))) == 12
    assert job.computed == 12


def test_failed_rows_are_done_again_when_asked(each: Job) -> None:
    each.prompts["c9"] = "fail"
    each.rows.append(("bad", "c9"))
    assert each.run()[8]["status"] == "failed"
    with each.opened() as (_, left):
        assert (left.idle, left.kept_failed) == (True, 1)
    each.run(Resume(retry_failed=True))
    assert each.computed == 10
    each.prompts.clear()  # which changes the row, but that is how it can be mended
    records = each.run(Resume(retry_failed=True))
    assert [record["row_index"] for record in records] == list(range(9))
    assert records[8]["status"] == "ok"
    with each.opened(Resume(retry_failed=True)) as (_, left):
        assert left.idle


def test_finished_data_stays_whole_while_more_is_done(each: Job) -> None:
    before = stored(each.output)
    each.rows += [("x", "new"), ("y", "new too")]
    each.rows[0] = "r0", "other"
    each.run(Resume(new_only=True), rows=2)
    assert stored(each.output) == before
    assert len(each.run(Resume(new_only=True))) == 10
    assert each.computed == 11


def test_keys_of_earlier_rows_are_in_memory_while_they_are_compared_alone(job: Job) -> None:
    job.rows = [(f"r{i}", f"c{i}") for i in range(2000)]
    job.run(part_rows=500)
    job.rows.append(("new", "b"))
    before = pa.total_allocated_bytes()
    with job.opened() as (sink, left):
        assert (left.total, left.kept_ok) == (1, 2000)
        assert pa.total_allocated_bytes() - before < 10_000
        for item in left:
            sink.write(answer(item))
        sink.finish({})
    assert len(stored(job.output)) == 2001


def test_keys_that_go_while_the_job_runs_take_no_rows_with_them(each: Job) -> None:
    job = each
    job.run()
    records = stored(job.output)
    job.rows.append(("new", "b"))
    with job.opened() as (sink, left):
        for item in left:
            sink.write(answer(item))
        (path,) = sink.state.glob("keys-*.parquet")
        path.write_bytes(b"PAR1")
        with pytest.raises(JobError, match=r"keys-\w+\.parquet is damaged"):
            sink.finish({})
    assert stored(job.output)[: len(records)] == records
    assert [record["id"] for record in job.run()] == [*(record["id"] for record in records), "new"]


def test_who_looks_without_the_lock_looks_again_where_files_went(each: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do when a job that runs comes to its end."""
    plainly, moves = ledger.read, 0

    def read(place: Any, *, repair: bool) -> Any:
        nonlocal moves
        found = plainly(place, repair=repair)
        if moves < 2:
            (path,) = place.state.glob("keys-*.parquet")
            path.rename(path.with_name(f"keys-{moves}.parquet"))
            moves += 1
        return found

    monkeypatch.setattr(ledger, "read", read)
    assert len(inspection.keys_of(str(each.output))) == 8
    moves = 0
    assert remaining(str(each.output), each.inputs(), each.fingerprint, Resume(), False).kept_ok == 8
    moves = -1  # each time
    with pytest.raises(JobError, match="cannot be read"):
        inspection.inspect(str(each.output))


def test_columns_of_earlier_rows_are_kept(job: Job) -> None:
    columns = pa.schema({"n": pa.int64()})
    with Sink.open(str(job.output), "caption", columns, {}, resume=Resume(new_only=True)) as sink:
        sink.write(Row(8, "r8", "", "image", "caption", Status.OK, "t", extra={"n": 5}))
        sink.finish({})
    job.rows.append(("r9", "c9"))
    records = job.run(Resume(new_only=True))
    assert [record["n"] for record in records] == [None] * 8 + [5, None]
    features = json.loads(pq.read_schema(job.output / "data/part-00000.parquet").metadata[b"huggingface"])
    assert features["info"]["features"]["n"] == {"dtype": "int64", "_type": "Value"}


def interrupted(tmp_path: Path, name: str = "out") -> tuple[Job, list[Path]]:
    """A job of nine rows that was stopped after its second part of three, and those parts."""
    made = Job(tmp_path / name, [(f"r{i}", f"c{i}") for i in range(9)])
    made.run(rows=6)
    return made, sorted(tmp_path.rglob("part-*.parquet"))


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("left", [0, 5, 1000])
def test_truncated_part_is_set_aside_and_done_again(tmp_path: Path, name: str, left: int) -> None:
    job, found = interrupted(tmp_path, name)
    found[1].write_bytes(found[1].read_bytes()[:left])
    with job.opened() as (sink, pending):
        assert pending.total == 6
        (notice,) = sink.notices
    assert "part-00001.parquet cannot be read" in notice
    assert "will be done again" in notice
    (aside,) = tmp_path.rglob("damaged/*")
    assert aside.stat().st_size == left
    assert [record["id"] for record in job.run()] == [f"r{i}" for i in range(9)]
    assert job.computed == 12
    assert aside.exists()


def test_damage_that_shows_only_when_read_is_set_aside_too(tmp_path: Path) -> None:
    job, found = interrupted(tmp_path)
    data = bytearray(found[0].read_bytes())
    data[4:400] = bytes(396)
    found[0].write_bytes(data)
    with pytest.raises(JobError, match=r"part-00000.parquet is damaged") as caught:
        job.run()
    assert "run the same command again" in caught.value.hint
    assert len(job.run()) == 9


def test_lost_keys_leave_rows_known_by_their_ids(each: Job) -> None:
    each.rows.append(("new", "c99"))
    (path,) = each.output.parent.rglob("keys-*.parquet")
    path.unlink()
    with each.opened() as (sink, left):
        assert left.total == 1
        assert "8 rows are known by their ids alone" in sink.notices[0]
    assert [record["id"] for record in each.run()] == [*(f"r{i}" for i in range(8)), "new"]
    assert each.computed == 9


@pytest.mark.parametrize("damage", [lambda data: data[:50], lambda data: data[:40] + bytes(40) + data[80:]])
def test_damaged_keys_leave_rows_known_by_their_ids(job: Job, damage: Any) -> None:
    (path,) = job.output.parent.rglob("keys-*.parquet")
    path.write_bytes(damage(path.read_bytes()))
    with job.opened() as (sink, left):
        assert left.idle
        assert "damaged" in sink.notices[0]


def test_damaged_line_far_from_the_end_is_mended_by_doing_its_row_again(tmp_path: Path) -> None:
    """Which the seal does not show, as it is of the end alone."""
    job = Job(tmp_path / "x.jsonl", [(f"r{i}", f"{'c' * 300}{i}") for i in range(400)])
    job.run(part_rows=100)
    lines = job.output.read_bytes().splitlines(keepends=True)
    lines[10] = b"#" * (len(lines[10]) - 1) + b"\n"
    job.output.write_bytes(b"".join(lines))
    job.rows[10] = ("r10", "other")
    records = job.run(Resume(new_only=True))
    assert [record["row_index"] for record in records] == list(range(400))
    assert records[10]["text"] == "r10 http://x/other None"
    assert job.computed == 401


def test_damaged_finished_file_is_set_aside(each: Job) -> None:
    data = each.output if each.output.suffix else each.output / "data/part-00000.parquet"
    data.write_bytes(data.read_bytes()[:-100])
    records = each.run()
    assert [record["id"] for record in records] == [f"r{i}" for i in range(8)]
    assert list(each.output.parent.rglob("damaged/*"))


def test_damaged_notes_beside_the_data_do_no_harm(each: Job) -> None:
    for name in ("job.json", "summary.json"):
        (path,) = each.output.parent.rglob(name)
        path.write_text("{")
    with each.opened() as (sink, left):
        assert left.idle
        assert not sink.notices


def test_clock_set_back_changes_nothing(tmp_path: Path) -> None:
    job, found = interrupted(tmp_path)
    for path in found:
        os.utime(path, (4e9, 4e9))
    assert [record["id"] for record in job.run()] == [f"r{i}" for i in range(9)]
    assert job.computed == 9


def test_refused_output_names_its_owner(tmp_path: Path) -> None:
    job = Job(tmp_path / "out", [("a", "a")])
    with job.opened():
        message = str(job.refusal())
    assert f"process {os.getpid()} on " in message
    assert job.run()


def test_dead_owner_gives_way_even_while_its_child_lives(tmp_path: Path) -> None:
    script = """
import os, sys, pyarrow
from gemma4cli.sink import Sink
sink = Sink.open(sys.argv[1], "caption", pyarrow.schema([]), {})
if os.fork() == 0:
    sys.stdin.read()
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    with subprocess.Popen([sys.executable, "-c", script, tmp_path / "out"], stdin=subprocess.PIPE) as process:
        assert process.wait() == -9
        assert Job(tmp_path / "out", [("a", "a")]).run()
        assert process.stdin is not None
        process.stdin.close()


def test_files_are_known_by_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(b"one")
    job = Job(tmp_path / "out", [("a", str(path)), ("b", str(tmp_path / "missing.jpg"))])
    job.run()
    assert job.run()
    os.utime(path, (1, 1))
    assert "not what it was: a" in str(job.refusal())
    (tmp_path / "missing.jpg").touch()
    assert "2 rows of the input are" in str(job.refusal())


def test_equal_bytes_are_duplicates_wherever_they_lie(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).write_bytes(b"x" if name < "c" else b"y")
    job = Job(tmp_path / "out", [(name, str(tmp_path / name)) for name in ("a.jpg", "b.jpg", "c.jpg", "gone.jpg")])
    assert [record["duplicate_of"] for record in job.run(dedupe=True)] == [None, 0, None, None]
    assert job.computed == 3


def test_names_that_are_not_utf8_can_fail(tmp_path: Path) -> None:
    job = Job(tmp_path / "out", [("a", "/caf\udce9.jpg")], prompts={"/caf\udce9.jpg": "fail"})
    assert job.run()[0]["status"] == "failed"
    assert job.run() == stored(job.output)


def test_adding_no_rows_loads_nothing_but_puts_parts_together(tmp_path: Path) -> None:
    job = Job(tmp_path / "out.jsonl", [(f"r{i}", "c") for i in range(4)])
    with job.opened() as (sink, left):
        for item in left:
            sink.write(answer(item))
    with job.opened() as (sink, left):
        assert (left.total, left.idle, left.kept_ok) == (0, False, 4)
        sink.finish({})
    assert len(stored(job.output)) == 4


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_input_that_shrinks_while_the_job_runs_is_no_success(tmp_path: Path, name: str) -> None:
    made = Job(tmp_path / name, [(f"r{i}", f"c{i}") for i in range(5)])
    with made.opened() as (sink, left):
        del made.rows[3:]
        items = iter(left)
        for _ in range(3):
            sink.write(answer(next(items)))
        with pytest.raises(JobError, match="lost 2 rows"):
            next(items)
    made.computed = 0
    assert [record["id"] for record in made.run()] == ["r0", "r1", "r2"]
    assert made.computed == 0
