"""Rows of runs without Ray, dealt out to shards: each where its row_index says, the latest one counting."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gemma4cli import keys, ledger, models, outputs, shards
from gemma4cli.cluster.dealing import deal, dealt
from gemma4cli.cluster.work import Work
from gemma4cli.cluster.writing import finish, write
from gemma4cli.errors import JobError, UsageError
from gemma4cli.identity import Key, id_key
from gemma4cli.overrides import Overrides, build
from gemma4cli.pending import Resume
from gemma4cli.records import Row, Status
from gemma4cli.schema import output_schema
from gemma4cli.sink import Sink

COLUMNS = pa.schema({"n": pa.int64()})
TOTAL = 30


def row(row_index: int, text: str = "first") -> Row:
    return Row(
        row_index, f"i{row_index}", f"{row_index}.jpg", "image", "caption", Status.OK, text, extra={"n": row_index}
    )


def fill(output: Path, rows: Iterable[Row], *, done: bool) -> None:
    with Sink.open(str(output), "caption", COLUMNS, {}, fingerprint={"m": 1}, part_rows=7) as sink:
        for each in rows:
            sink.write(each)
        if done:
            sink.finish({})


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """Three shards of thirty rows."""
    made = build("caption", Overrides(engine="fake"))
    return Work(
        config=made, model=models.find("tiny"), place=outputs.locate(str(tmp_path / "out")),
        schema=output_schema(COLUMNS, {"task": "caption"}), columns=COLUMNS, answers=(), fingerprint={"m": 1},
        resume=Resume(), of=3, total=TOTAL, part=1000, folder=str(tmp_path),
    )  # fmt: skip


def texts(work: Work, number: int) -> dict[int, str]:
    found = ledger.read_whole(work.place_of(number), repair=False)
    live, replaced = found.live()
    texts: dict[int, str] = {}
    for source, without in zip(found.sources, replaced, strict=True):
        for record in pq.read_table(source.path).to_pylist():
            if record["row_index"] not in without:
                texts[record["row_index"]] = record["text"]
    assert sorted(texts) == keys.column(live, "row_index").tolist()
    return texts


@pytest.mark.parametrize("done", [False, True])
def test_rows_go_where_their_row_index_says_and_the_latest_one_counts(work: Work, tmp_path: Path, done: bool) -> None:
    order = random.Random(1).sample(range(TOTAL), 25)
    fill(tmp_path / "out", [row(i) for i in order], done=done)
    fill(tmp_path / "out", [row(i, "second") for i in order[:5]], done=False)
    deal(work, ledger.read_whole(work.place, repair=False))
    found = [texts(work, number) for number in range(3)]
    assert {i for each in found for i in each} == set(order)
    assert all(i * 3 // TOTAL == number for number, each in enumerate(found) for i in each)
    assert {i for each in found for i, text in each.items() if text == "second"} == set(order[:5])
    left = ledger.read_whole(work.place, repair=False)
    assert left.finished == done  # what is finished stays until the whole is there
    assert not left.added
    assert dealt(work) == done
    live, _ = ledger.read(work.place, repair=False).live()
    assert keys.column(live, "row_index").tolist() == sorted(order)  # and a run without Ray finds all of it


def test_rows_that_the_input_has_no_longer_are_refused(work: Work, tmp_path: Path) -> None:
    fill(tmp_path / "out", [row(TOTAL)], done=False)
    with pytest.raises(UsageError, match="rows that the input has no longer"):
        deal(work, ledger.read_whole(work.place, repair=False))
    assert keys.column(ledger.read(work.place, repair=False).live()[0], "row_index").tolist() == [TOTAL]


def batch(rows: Iterable[Row]) -> pa.Table:
    made = list(rows)
    packed = [pickle.dumps((each, Key(id_key(each.id), 7), None)) for each in made]
    return pa.table(
        {
            "row_index": pa.array([each.row_index for each in made]),
            "row": pa.array(packed, pa.large_binary()),
            "ready": pa.array([0.0] * len(made)),
        }
    )


def test_what_is_written_twice_is_there_once(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work.folder)
    outputs.release(outputs.claim(work.place, overwrite=False))
    for number in range(3):
        work.place_of(number).state.mkdir(parents=True)
        shards.note(work.place_of(number), work.shard(number))
    for first, stop in ((5, 25), (5, 25), (0, 12), (20, 30)):  # the same again, and others that overlap
        tally = write(batch(row(i) for i in range(first, stop)), work)
        assert len(tally["tally"]) == 1
    for number in range(3):
        finish(work, number)
        live, replaced = ledger.read_whole(work.place_of(number), repair=False).live()
        assert keys.column(live, "row_index").tolist() == list(range(10 * number, 10 * number + 10))
        assert not any(len(rows) for rows in replaced)


def test_shards_of_rows_are_those_of_their_spans(work: Work) -> None:
    assert work.numbers(np.array([0, 9, 10, 29])).tolist() == [0, 0, 1, 2]


def test_another_version_is_refused_where_it_arrives(work: Work) -> None:
    with pytest.raises(JobError, match="a machine of the cluster has gemma4cli"):
        replace(work, version="0").arrive()
