"""One job from every kind of source, through the installed command: the same thirty rows, whatever they come from."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

FAKE = ("--engine", "fake")
COLUMNS = ("id", "status", "text", "prompt_tokens", "image_tokens", "width", "height", "bucket", "label")
IN_MEMORY = """
import sys, fsspec
from pathlib import Path
from gemma4cli.cli import app
fs = fsspec.filesystem("memory")
root = Path(sys.argv[1])
for path in root.rglob("*.*"):
    fs.pipe("/job/" + str(path.relative_to(root)), path.read_bytes())
app(sys.argv[2:])
"""


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    size = 32 + number, 64 - number
    Image.new("RGB", size, (number * 8, 255 - number * 8, number)).save(buffer, "PNG")
    return buffer.getvalue()


ROWS = [
    {"key": f"{number:03}", "bytes": picture(number), "label": "odd" if number % 2 else "even"} for number in range(30)
]
ROWS[17]["bytes"] = b"no picture"


def as_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for row in ROWS:
        (folder / f"{row['key']}.png").write_bytes(row["bytes"])
    return folder


def as_jsonl(folder: Path) -> Path:
    as_folder(folder / "pictures")
    records = [
        {"id": f"{row['key']}.png", "image": f"pictures/{row['key']}.png", "label": row["label"]} for row in ROWS
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "rows.jsonl"


def as_parquet(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records = [
        {"id": f"{r['key']}.png", "image": {"bytes": r["bytes"], "path": None}, "label": r["label"]} for r in ROWS
    ]
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"id": pa.string(), "image": struct, "label": pa.string()})
    pq.write_table(pa.Table.from_pylist(records, schema), folder / "rows.parquet", row_group_size=7)
    return folder / "rows.parquet"


def as_partitions(folder: Path) -> Path:
    """Hive's folders: the label is in their names."""
    for label in ("even", "odd"):
        (folder / f"label={label}").mkdir(parents=True)
        records = [
            {"id": f"{row['key']}.png", "image": {"bytes": row["bytes"], "path": None}}
            for row in ROWS
            if row["label"] == label
        ]
        pq.write_table(pa.Table.from_pylist(records), folder / f"label={label}" / "part-0.parquet")
    return folder


def as_imagefolder(folder: Path) -> Path:
    """As the hub has it: pictures, and a list with their columns."""
    as_folder(folder)
    records = [{"file_name": f"{row['key']}.png", "label": row["label"]} for row in ROWS]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Thirty pictures\n")
    return folder


def as_hub_parquet(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Thirty pictures\n")
    shutil.move(as_parquet(folder / "data"), folder / "data" / "train-00000-of-00001.parquet")
    return folder


def as_saved(folder: Path) -> Path:
    import datasets

    features = datasets.Features(
        id=datasets.Value("string"), image=datasets.Image(decode=False), label=datasets.Value("string")
    )
    records = [
        {"id": f"{r['key']}.png", "image": {"bytes": r["bytes"], "path": None}, "label": r["label"]} for r in ROWS
    ]
    data = datasets.Dataset.from_list(records, features=features).cast_column("image", datasets.Image())
    data.save_to_disk(str(folder))
    return folder


def as_shards(folder: Path, ending: str = "tar") -> str:
    folder.mkdir(parents=True)
    for shard in range(3):
        with tarfile.open(folder / f"shard-{shard:03}.{ending}", "w:gz" if ending.endswith("gz") else "w") as tar:
            for row in ROWS[shard * 10 : shard * 10 + 10]:
                about = json.dumps({"id": f"{row['key']}.png", "label": row["label"]}).encode()
                for name, data in ((f"{row['key']}.png", row["bytes"]), (f"{row['key']}.json", about)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return f"{folder}/shard-{{000..002}}.{ending}"


def rows(output: Path, columns: tuple[str, ...] = COLUMNS) -> list[dict[str, Any]]:
    table = pq.read_table(output / "data")
    return table.select([name for name in columns if name in table.column_names]).to_pylist()


@pytest.fixture(scope="module")
def expected(gemma4_once, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("jsonl")
    done = gemma4_once("caption", as_jsonl(folder / "in"), *FAKE, "-o", folder / "out")
    assert done.returncode == 3, done.stderr
    found = rows(folder / "out")
    assert len(found) == 30
    assert [row["status"] for row in found].count("failed") == 1
    assert len({row["text"] for row in found}) == 30, "the answers tell pictures apart"
    return found


@pytest.mark.parametrize(
    "made", [as_parquet, as_imagefolder, as_hub_parquet, as_saved, as_shards, lambda f: as_shards(f, "tar.gz")]
)
def test_the_same_rows_come_from_every_source(gemma4, tmp_path: Path, expected, made) -> None:
    source = made(tmp_path / "in")
    done = gemma4("caption", source, *FAKE, "-o", "out")
    assert done.returncode == 3, done.stderr
    assert rows(tmp_path / "out") == expected
    again = gemma4("caption", source, *FAKE, "-o", "out")
    assert "nothing is left to do" in again.stderr, again.stderr
    plan = json.loads(gemma4("plan", source, *FAKE, "-o", "elsewhere", "--json").stdout)
    assert plan["rows"] == 30


def test_a_folder_gives_the_same_rows_without_columns(gemma4, tmp_path: Path, expected) -> None:
    gemma4("caption", as_folder(tmp_path / "in"), *FAKE, "-o", "out")
    assert rows(tmp_path / "out") == [{name: row[name] for name in COLUMNS if name != "label"} for row in expected]


def test_partitions_are_columns(gemma4, tmp_path: Path, expected) -> None:
    gemma4("caption", as_partitions(tmp_path / "in"), *FAKE, "-o", "out")
    assert sorted(rows(tmp_path / "out"), key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("source", ["rows.jsonl", "pictures", "pictures/*.png", "shards/shard-{000..002}.tar"])
def test_the_same_rows_come_from_a_file_system_in_memory(tmp_path: Path, expected, source: str) -> None:
    as_jsonl(tmp_path / "in")
    as_shards(tmp_path / "in" / "shards")
    command = [
        sys.executable,
        "-c",
        IN_MEMORY,
        tmp_path / "in",
        "caption",
        f"memory://job/{source}",
        *FAKE,
        "-o",
        "out",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=None, timeout=60)
    assert done.returncode == 3, done.stderr
    found = rows(tmp_path / "out")
    if source.startswith("pictures"):
        expected = [{name: row[name] for name in COLUMNS if name != "label"} for row in expected]
    if "*" in source:
        expected = [{**row, "id": f"memory://job/pictures/{row['id']}"} for row in expected]
    assert found == expected
    assert "files fetched" in done.stderr


OUT_OF_MEMORY = """
import sys, fsspec
from gemma4cli.cli import app
for command in (["caption", sys.argv[1]], ["plan", sys.argv[1]], ["inspect"]):
    end = ["memory://job/out"] if command == ["inspect"] else ["--engine", "fake", "-o", "memory://job/out"]
    try:
        app([*command, *end])
    except SystemExit as code:
        print("exit", code.code)
fsspec.filesystem("memory").get("/job/out", sys.argv[2], recursive=True)
"""


def test_an_output_in_memory(tmp_path: Path, expected) -> None:
    command = [sys.executable, "-c", OUT_OF_MEMORY, as_folder(tmp_path / "in"), tmp_path / "copy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 3", "exit 0", "exit 0"]
    assert "29 of 30 rows ok, 1 failed -> memory://job/out" in done.stderr
    assert "29 ok, 1 failed, in memory://job/out" in done.stdout
    assert "memory://job/out: finished" in done.stdout
    assert rows(tmp_path / "copy") == [{name: row[name] for name in COLUMNS if name != "label"} for row in expected]
    assert {"engine.log", "summary.json", "job.json"} <= {p.name for p in (tmp_path / "copy" / ".gemma4cli").iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "in"]
