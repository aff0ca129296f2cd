"""Shares of an input: disjoint, complete, and read without what comes before."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import outputs, shards
from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.inputs.manifests import Wanted
from gemma4cli.inputs.opened import file_at
from gemma4cli.inputs.parquet import open_parquet
from gemma4cli.records import Kind

PICTURES = InputOptions(frozenset({Kind.IMAGE}))


@given(st.integers(0, 10**12), st.integers(1, 2000))
def test_shards_follow_one_another_and_differ_by_a_row_at_most(total: int, of: int) -> None:
    found = [shards.cut(number, of, total) for number in range(of)]
    assert found[0].first == 0
    assert found[-1].stop == total
    assert all(one.stop == other.first for one, other in itertools.pairwise(found))
    assert max(shard.rows for shard in found) - min(shard.rows for shard in found) <= 1


@pytest.mark.parametrize("text", ["", "3", "4/4", "-1/4", "1/0", "a/b", "1/4/2"])
def test_what_is_no_shard_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        shards.parse(text)
    assert "SLURM_ARRAY_TASK_ID" in refused.value.hint


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The same 50 rows, a line of them damaged where lines can be, as each kind of input."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "images").mkdir()
    for i in range(50):
        (folder / "images" / f"{i}.jpg").touch()
    lines = [json.dumps({"id": f"r{i}", "image": f"images/{i}.jpg"}) for i in range(50)]
    lines[17] = "{"
    for name, part in (("a", lines[:20]), ("b", ["", *lines[20:]])):
        (folder / f"{name}.jsonl").write_text("\n".join(part) + "\n")
    table = pa.table({"id": [f"r{i}" for i in range(50)], "image": [f"images/{i}.jpg" for i in range(50)]})
    pq.write_table(table.slice(0, 31), folder / "a.parquet", row_group_size=7)
    pq.write_table(table.slice(31), folder / "b.parquet", row_group_size=7)
    names = {"folder": ["images"], "jsonl": ["a.jsonl", "b.jsonl"], "parquet": ["a.parquet", "b.parquet"]}
    return {kind: [str(folder / name) for name in found] for kind, found in names.items()}


@pytest.mark.parametrize("kind", ["folder", "jsonl", "parquet"])
@pytest.mark.parametrize("limit", [None, 40])
@given(st.integers(0, 50), st.integers(0, 50))
def test_a_part_of_an_input_is_that_part_of_its_rows(
    manifests: dict[str, list[str]], kind: str, limit: int | None, first: int, stop: int
) -> None:
    whole = open_inputs(manifests[kind], InputOptions(PICTURES.kinds, limit=limit))
    part = whole.part(first, max(first, stop))
    assert list(part) == list(whole)[first : max(first, stop)]


def test_row_groups_before_a_part_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": pa.array(range(40))}), path, row_group_size=10, compression="none")
    data = bytearray(path.read_bytes())
    begin = pq.read_metadata(path).row_group(1).column(0).dictionary_page_offset or 4
    data[begin : begin + 20] = b"\xff" * 20
    path.write_bytes(data)
    table = open_parquet([file_at(str(path))])
    found = list(table.read(Wanted(frozenset({"n"}), first=20)))
    assert [(entry.number, entry.record) for entry in found] == [(n, {"n": n}) for n in range(20, 40)]
    assert sum(isinstance(entry.record, Exception) for entry in table.read(Wanted(frozenset({"n"}), first=13))) == 7


def test_one_process_a_shard_and_none_for_the_whole_meanwhile(tmp_path: Path) -> None:
    place = outputs.locate(str(tmp_path / "out"))
    one, other = (shards.cut(number, 2, 10) for number in range(2))
    _, locks = shards.claim(place, one, overwrite=False)
    _, others = shards.claim(place, other, overwrite=False)
    with pytest.raises(UsageError, match="another gemma4 is writing"):
        shards.claim(place, one, overwrite=False)
    with pytest.raises(UsageError, match="one or more of its shards"):
        outputs.claim(place, overwrite=True)
    for lock in (*locks, *others):
        outputs.release(lock)
    whole = outputs.claim(place, overwrite=False)
    with pytest.raises(UsageError, match="another gemma4 is writing"):
        shards.claim(place, one, overwrite=False)
    outputs.release(whole)


def test_shards_of_another_number_or_another_input_are_refused(tmp_path: Path) -> None:
    place = outputs.locate(str(tmp_path / "out"))
    for lock in shards.claim(place, shards.cut(0, 2, 10), overwrite=False)[1]:
        outputs.release(lock)
    with pytest.raises(UsageError, match="in other shards than 3: it holds 0-of-2"):
        shards.claim(place, shards.cut(0, 3, 10), overwrite=False)
    for number in range(2):
        with pytest.raises(UsageError, match="was cut from 10 rows, and the input has 11 now"):
            shards.claim(place, shards.cut(number, 2, 11), overwrite=False)
