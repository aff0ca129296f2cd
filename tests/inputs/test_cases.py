"""The manifests of the corpus of media cases: as many rows as it says, and those fail that it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.records import Kind, Stage

CASES = Path(__file__).parents[2].parent / "shared" / "cases"
OPTIONS = InputOptions(kinds=frozenset(Kind))

pytestmark = [pytest.mark.cases, pytest.mark.skipif(not CASES.is_dir(), reason="no corpus of media cases here")]


def manifests() -> list[Any]:
    if not CASES.is_dir():
        return []
    lines = (CASES / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [case for case in map(json.loads, lines) if case["kind"] == "manifest"]
    return [pytest.param(case, id=Path(case["file"]).name) for case in cases]


@pytest.mark.parametrize("case", manifests())
def test_manifest(case: dict[str, Any], tmp_path: Path) -> None:
    path = CASES / case["file"]
    expect = case["expect"]
    if expect.get("template"):
        text = path.read_text(encoding="utf-8").replace("@CASES@", str(CASES)).replace("@PORT@", "9")
        path = tmp_path / path.name.removesuffix(".in")
        path.write_text(text, encoding="utf-8")
    if expect["outcome"] == "input_error":
        with pytest.raises(UsageError, match=path.name):
            open_inputs([str(path)], OPTIONS)
        return
    inputs = open_inputs([str(path)], OPTIONS)
    items = list(inputs)
    assert inputs.total == len(items) == expect["input_rows"]
    for item, row in zip(items, expect["rows"], strict=True):
        parse_may_fail = "parse" in (row.get("stage"), row.get("stage_also")) or "also_acceptable" in row
        if item.failure is not None:
            assert parse_may_fail, row
            assert item.failure.stage is Stage.PARSE
        else:
            assert row["outcome"] != "row_error" or row["stage"] != "parse", row
            assert len(item.media) == 1
        if row["id"] not in (None, "") and (item.failure is None or row["outcome"] == "ok"):
            assert item.id == str(row["id"])


def test_folder_of_images_is_all_rows() -> None:
    items = list(open_inputs([str(CASES / "images")], InputOptions(kinds=frozenset({Kind.IMAGE}))))
    files = [path for path in (CASES / "images").rglob("*") if path.is_file()]
    assert len(items) == len(files)
