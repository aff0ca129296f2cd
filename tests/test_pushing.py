"""Cards of outputs, and outputs as data sets on a hub that is a folder here."""

from __future__ import annotations

import json
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from gemma4cli import card, outputs
from gemma4cli.errors import JobError, UsageError
from gemma4cli.inputs import Inputs
from gemma4cli.pushing import push
from gemma4cli.records import Item, Media, Row, Status
from gemma4cli.sink import Sink

MADE = {"model": "E4B", "engine": "vllm", "prompt": {"image": "Describe | it."}, "system": "Be `brief`.",
        "sampling": {"max_tokens": 64, "temperature": 0.0, "logprobs": False}, "media": {"fps": None}}  # fmt: skip


class Hub:
    """What `push` uses of `HfApi`, on folders: a data set's branch each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.made: dict[str, Any] = {}
        self.messages: list[str] = []

    def folder(self, repository: str, revision: str | None) -> Path:
        return self.root / repository / (revision or "main")

    def create_repo(self, repo_id: str, *, repo_type: str, private: bool | None, exist_ok: bool) -> None:
        assert (repo_type, exist_ok) == ("dataset", True)
        self.made.setdefault(repo_id, private)
        self.folder(repo_id, None).mkdir(parents=True, exist_ok=True)

    def create_branch(self, repo_id: str, *, branch: str, repo_type: str, exist_ok: bool) -> None:
        self.folder(repo_id, branch).mkdir(parents=True, exist_ok=True)

    def file_exists(self, repo_id: str, filename: str, *, repo_type: str, revision: str | None) -> bool:
        return (self.folder(repo_id, revision) / filename).exists()

    def hf_hub_download(self, repo_id: str, filename: str, *, repo_type: str, revision: str | None) -> str:
        return str(self.folder(repo_id, revision) / filename)

    def upload_folder(self, *, repo_id: str, folder_path: str, repo_type: str, revision: str | None,
                      commit_message: str, delete_patterns: list[str]) -> None:  # fmt: skip
        target = self.folder(repo_id, revision)
        for path in [path for path in target.rglob("*") if path.is_file()]:
            if any(fnmatch(str(path.relative_to(target)), pattern) for pattern in delete_patterns):
                path.unlink()
        shutil.copytree(folder_path, target, dirs_exist_ok=True)
        self.messages.append(commit_message)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path / "hub")


def write(output: Path, rows: int, *, end: bool = True) -> str:
    items = [Item(i, f"r{i}", f"r{i}", (Media(f"/m/{i}.jpg"),), extra={"label": i}) for i in range(rows)]
    inputs = Inputs(rows, pa.schema({"label": pa.int64()}), lambda: iter(items))
    with Sink.open(str(output), "caption", inputs.columns, MADE, part_rows=2, overwrite=True) as sink:
        for item in sink.pending(inputs):
            failed = item.row_index == 1
            sink.write(Row(item.row_index, item.id, item.source, "image", "caption",
                           Status.FAILED if failed else Status.OK, None if failed else "text",
                           error_stage="decode" if failed else None, error_type="bad|type" if failed else None,
                           extra=item.extra))  # fmt: skip
        if end:
            sink.finish({"rows": {}})
    return str(output)


def test_a_card_says_what_the_rows_are(tmp_path: Path) -> None:
    place = outputs.locate(write(tmp_path / "out", 5))
    assert card.write(place)
    text = (tmp_path / "out" / "README.md").read_text()
    head = yaml.safe_load(text.split("---\n")[1])
    assert head["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "data/*.parquet"}]}]
    assert head["size_categories"] == ["n<1K"]
    for said in (
        "Captions by `E4B`", "| rows | 5 |", "| ok | 4 |", "| failed | 1 |", r"| failed at decode: bad\|type | 1 |",
        "**image**\n\n```text\nDescribe | it.\n```", "Be `brief`.", "| max_tokens | `64` |", "| `label` | `int64` |",
    ):  # fmt: skip
        assert said in text
    assert "logprobs" not in text.split("## Features")[0]


def test_a_card_is_made_anew_and_somebodys_own_stays(tmp_path: Path) -> None:
    place = outputs.locate(write(tmp_path / "out", 3))
    readme = tmp_path / "out" / "README.md"
    assert card.write(place)
    first = readme.read_text()
    write(tmp_path / "out", 4)
    assert readme.read_text() == first
    assert card.write(place)
    assert "| rows | 4 |" in readme.read_text()
    for own in (readme.read_text().replace("Figures", "My figures"), "# Mine\n", ""):
        readme.write_text(own)
        assert not card.write(place)
        assert readme.read_text() == own


@pytest.mark.parametrize("name", ["out", "x.parquet", "x.jsonl"])
def test_an_output_becomes_a_data_set(tmp_path: Path, hub: Hub, name: str) -> None:
    done = push(write(tmp_path / name, 5), "me/rows", private=True, message="nightly", api=hub)
    assert (done.address, done.rows, done.carded) == ("https://huggingface.co/datasets/me/rows", 5, True)
    assert (hub.made, hub.messages) == ({"me/rows": True}, ["nightly"])
    there = hub.folder("me/rows", None)
    head = yaml.safe_load((there / "README.md").read_text().split("---\n")[1])
    (found,) = there.glob(head["configs"][0]["data_files"][0]["path"])
    lines = found.read_text().splitlines() if name == "x.jsonl" else []
    ids = [json.loads(line)["id"] for line in lines] or pq.read_table(found)["id"].to_pylist()
    assert ids == [f"r{i}" for i in range(5)]
    assert not (there / ".gemma4cli").exists()


def test_rows_take_the_place_of_those_that_are_there(tmp_path: Path, hub: Hub) -> None:
    (hub.folder("me/rows", "v2") / "data").mkdir(parents=True)
    (hub.folder("me/rows", "v2") / "data" / "part-00007.parquet").write_bytes(b"old")
    (hub.folder("me/rows", "v2") / "README.md").write_text("# Mine\n")
    done = push(write(tmp_path / "out", 5), "me/rows", revision="v2", api=hub)
    assert (done.address, done.carded) == ("https://huggingface.co/datasets/me/rows/tree/v2", False)
    there = hub.folder("me/rows", "v2")
    assert [path.name for path in (there / "data").iterdir()] == ["part-00000.parquet"]
    assert (there / "README.md").read_text() == "# Mine\n"
    (there / "README.md").unlink()
    (tmp_path / "out" / "README.md").write_text("# My own card\n")
    assert push(str(tmp_path / "out"), "me/rows", revision="v2", api=hub).carded
    assert (there / "README.md").read_text() == "# My own card\n"


def test_what_cannot_be_pushed(tmp_path: Path, hub: Hub) -> None:
    with pytest.raises(UsageError, match="no such output"):
        push(str(tmp_path / "nowhere"), "me/rows", api=hub)
    with pytest.raises(UsageError, match="is interrupted: not all of its rows are there"):
        push(write(tmp_path / "half", 5, end=False), "me/rows", api=hub)
    whole = write(tmp_path / "out", 5)
    with pytest.raises(UsageError, match="no name of a data set"):
        push(whole, "rows", api=hub)

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("401 Client Error")

    hub.create_repo = refuse  # type: ignore[method-assign]
    with pytest.raises(JobError, match="cannot push to me/rows: 401 Client Error") as caught:
        push(whole, "me/rows", api=hub)
    assert "HF_TOKEN" in caught.value.hint
