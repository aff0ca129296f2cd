"""Tar shards: samples by key, members by extension, and what a shard may do to a job."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.media.fetch import fetch
from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Item, Kind, Stage

IMAGES = InputOptions(kinds=frozenset({Kind.IMAGE, Kind.VIDEO}))


def write(path: Path, *members: tuple[str, bytes], mode: str = "w") -> str:
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return str(path)


def read(*paths: str, options: InputOptions = IMAGES) -> list[Item]:
    inputs = open_inputs(list(paths), options)
    items = list(inputs)
    assert inputs.total == len(items)
    assert [item.row_index for item in items] == list(range(len(items)))
    assert items == list(inputs)
    return items


def bytes_of(item: Item) -> bytes:
    with fetch(item.media[0], MediaOptions()) as file:
        return file.read()


@pytest.mark.parametrize(("name", "mode"), [("a.tar", "w"), ("a.tar.gz", "w:gz"), ("a.tar.xz", "w:xz")])
def test_members_belong_together_by_the_name_before_the_first_dot(tmp_path: Path, name: str, mode: str) -> None:
    shard = write(
        tmp_path / name,
        ("./x/1.jpg", b"one"), ("./x/1.json", b'{"width": 3, "tags": ["a"]}'), ("./x/1.txt", b"a text\n"),
        ("x/2.jpg", b"two"), ("x/2.cls", b"7"), ("x/2.npy", b"?"),
        ("y/1.png", b"three"),
        mode=mode,
    )  # fmt: skip
    inputs = open_inputs([shard], IMAGES)
    assert sorted(inputs.columns.names) == ["cls", "tags", "txt", "width"]
    first, second, third = items = read(shard)
    assert [item.id for item in items] == ["x/1", "x/2", "y/1"]
    assert [bytes_of(item) for item in items] == [b"one", b"two", b"three"]
    assert dict(first.extra) == {"width": 3, "tags": ["a"], "txt": "a text", "cls": None}
    assert second.extra["cls"] == 7
    assert third.media[0].kind is Kind.IMAGE
    assert first.source == f"{shard} sample x/1"


def test_names_that_lead_out_are_names_and_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    shard = write(tmp_path / "in" / "a.tar", ("../../out.jpg", b"x"), ("/etc/passwd.jpg", b"y"))
    assert [item.id for item in read(shard)] == ["../../out", "/etc/passwd"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "in"]


def test_what_is_no_file_is_no_part_of_a_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, kind in (("1", tarfile.DIRTYPE), ("1.jpg", tarfile.SYMTYPE), ("2.jpg", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        for name in (".hidden.jpg", "noextension", "3.jpg"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    assert [item.id for item in read(str(tmp_path / "a.tar"))] == ["3"]


@pytest.mark.parametrize("keep", [0.35, 0.75, 0.9])
@pytest.mark.parametrize(("ending", "mode"), [("tar", "w"), ("tar.gz", "w:gz")])
def test_a_shard_that_breaks_off_costs_the_sample_it_breaks_off_in(
    tmp_path: Path, ending: str, mode: str, keep: float
) -> None:
    members = [(f"{i}.jpg", bytes([i, i * 7 % 251]) * 3000 + bytes(range(256)) * i) for i in range(1, 8)]
    whole = Path(write(tmp_path / f"whole.{ending}", *members, mode=mode)).read_bytes()
    broken = tmp_path / f"broken.{ending}"
    # Without the padding at the end of a tar, of which nobody misses a part.
    end = len(whole) if ending == "tar.gz" else sum(512 + -(-len(data) // 512) * 512 for _, data in members)
    broken.write_bytes(whole[: int(end * keep)])
    good = write(tmp_path / f"good.{ending}", ("8.jpg", b"x"), mode=mode)
    *before, failed, after = read(str(broken), good)
    assert all(bytes_of(item) == members[i][1] for i, item in enumerate(before))
    assert failed.failure is not None
    assert (failed.failure.stage, failed.failure.type) == (Stage.PARSE, "damaged_shard")
    assert str(broken) in failed.failure.message
    assert after.id == "8"


def test_what_is_wrong_with_a_sample_is_its_own_failure(tmp_path: Path) -> None:
    shard = write(
        tmp_path / "a.tar",
        ("1.jpg", b"x"), ("1.jpg", b"y"),
        ("2.jpg", b"x"), ("2.json", b"{"),
        ("3.jpg", b"x"), ("3.txt", b"\xff"),
        ("4.jpg", b""),
        ("5.json", b"{}"),
        ("6.jpg", b"x"),
    )  # fmt: skip
    items = read(shard)
    found = [item.failure.type if item.failure else None for item in items]
    assert found == ["duplicate_member", "not_json", "not_utf8", "no_media", "no_media", None]
    assert [item.row_index for item in items] == list(range(6))


def test_what_is_no_tar_is_a_failed_row(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"no tar at all" * 100)
    (item,) = read(str(tmp_path / "a.tar"))
    assert item.failure is not None
    assert item.failure.type == "damaged_shard"


def test_a_folder_of_shards_is_one_data_set(tmp_path: Path) -> None:
    write(tmp_path / "s10.tar", ("3.jpg", b"x"))
    write(tmp_path / "s2.tar", ("1.jpg", b"x"), ("2.jpg", b"x"))
    (tmp_path / "README.md").write_text("about")
    assert [item.id for item in read(str(tmp_path))] == ["1", "2", "3"]
    assert [item.id for item in read(f"{tmp_path}/s{{2,10}}.tar")] == ["1", "2", "3"]


def test_damage_within_a_shard_is_not_taken_for_its_end(tmp_path: Path) -> None:
    shard = Path(write(tmp_path / "a.tar", ("1.jpg", b"x"), ("2.jpg", b"y"), ("3.jpg", b"z")))
    data = bytearray(shard.read_bytes())
    data[2048 : 2048 + 100] = b"?" * 100  # the header of 3.jpg
    shard.write_bytes(data)
    first, failed = read(str(shard))
    assert (first.id, first.failure, failed.failure is not None) == ("1", None, True)


def test_members_that_are_too_large_to_hold_are_failed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4cli.inputs.tars._MOST_MEDIUM", 100)
    monkeypatch.setattr("gemma4cli.inputs.tars._MOST_TEXT", 100)
    members = [("1.jpg", b"x" * 101), ("2.jpg", b"x" * 100), ("3.jpg", b"x"), ("3.txt", b"x" * 101)]
    found = [
        [item.failure.type if item.failure else None for item in read(write(tmp_path / name, *members, mode=mode))]
        for name, mode in (("a.tar.gz", "w:gz"), ("a.tar", "w"))
    ]
    assert found == [["too_large", None, "too_large"], [None, None, "too_large"]]
