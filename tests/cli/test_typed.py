"""Answers of a form, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ANNOTATE = ("annotate", "rows.jsonl", "-p", "What is it?", "--engine", "fake")
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "size": {"type": ["number", "null"], "minimum": 5},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
        "notes": {"type": "object"},
    },
    "required": ["colour"],
    "$defs": {"Part": {"properties": {"name": {"type": "string"}, "box_2d": {"type": "array", "items": {}}}}},
}
TYPE = pa.struct(
    {
        "colour": pa.string(),
        "size": pa.float64(),
        "parts": pa.list_(
            pa.struct({"name": pa.string(), "box_2d": pa.struct(dict.fromkeys(("x1", "y1", "x2", "y2"), pa.float64()))})
        ),
        "notes": pa.string(),
    }
)


@pytest.fixture
def job(tmp_path: Path, photos: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    names = ["a.jpg", "b.png", "more/c.webp", "a.jpg"]
    rows = [{"id": str(i), "image": str(photos / name), "answer": f"mine {i}"} for i, name in enumerate(names)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def check(rows: list[dict]) -> None:
    assert [row["input_answer"] for row in rows] == [f"mine {i}" for i in range(4)]
    for row in rows:
        said, answer = json.loads(row["text"]), row["answer"]
        assert answer["colour"] == said["colour"]
        assert answer["size"] == said["size"]
        (part,), (told,) = answer["parts"], said["parts"]
        assert part["name"] == told["name"]
        y1, x1, y2, x2 = told["box_2d"]
        expected = (
            x1 * row["width"] / 1000,
            y1 * row["height"] / 1000,
            x2 * row["width"] / 1000,
            y2 * row["height"] / 1000,
        )
        assert tuple(part["box_2d"].values()) == pytest.approx(expected)
        assert json.loads(answer["notes"]) == said["notes"]
    assert rows[0]["answer"] == rows[3]["answer"]


@pytest.mark.parametrize("output", ["out", "out.parquet", "out.jsonl", "-"])
def test_every_output_has_typed_answers_and_the_text_beside_them(gemma4, written, job: Path, output: str) -> None:
    done = gemma4(*ANNOTATE, "--schema", "schema.json", "--logprobs", "-o", output)
    assert done.returncode == 0, done.stderr
    rows, schema = written(done, output)
    assert (schema is None) is (output in ("-", "out.jsonl"))
    if schema is not None:
        assert schema.field("answer").type == TYPE
        assert schema.field("logprob").type == pa.float64()
    check(rows)
    assert all(row["logprob"] < 0 for row in rows)


def test_datasets_reads_answers_typed(gemma4, job: Path) -> None:
    assert gemma4(*ANNOTATE, "--schema", "schema.json", "-o", "out").returncode == 0
    data = datasets.load_dataset(
        "parquet", data_files=str(job / "out/data/*.parquet"), cache_dir=str(job / "cache"), split="train"
    )
    assert data.features.arrow_schema.field("answer").type == TYPE


def test_duplicates_get_the_answer_too(gemma4, job: Path) -> None:
    for output in ("out", "out.jsonl"):
        done = gemma4(*ANNOTATE, "--schema", "schema.json", "--logprobs", "--dedupe", "-o", output)
        assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (job / "out.jsonl").read_text().splitlines()]
    for found in (rows, pq.read_table(job / "out/data").to_pylist()):
        check(found)
        assert (found[3]["duplicate_of"], found[3]["logprob"]) == (0, found[0]["logprob"])


def test_an_answer_that_does_not_do_is_asked_for_again(gemma4, job: Path) -> None:
    broken = (*ANNOTATE, "--schema", "schema.json", "--engine-arg", "break_on=What")
    assert gemma4(*broken, "-o", "out").returncode == 0
    rows = pq.read_table(job / "out/data").to_pylist()
    check(rows)
    assert {row["attempts"] for row in rows} == {2}
    assert gemma4(*broken, "--answer-retries", "0", "-o", "none").returncode == 3


def test_an_answer_that_never_does_is_a_failed_row_that_a_retry_can_mend(gemma4, job: Path) -> None:
    command = (*ANNOTATE, "--schema", "schema.json", "-o", "out")
    done = gemma4(*command, "--engine-arg", "broken_on=What", "--answer-retries", "2")
    assert done.returncode == 3
    assert "4 failed: parse invalid_json" in done.stderr
    rows = pq.read_table(job / "out/data").to_pylist()
    assert {(row["status"], row["error_stage"], row["error_type"], row["attempts"]) for row in rows} == {
        ("failed", "parse", "invalid_json", 3)
    }
    assert all(row["answer"] is None and row["text"].startswith('{"colour"') for row in rows)
    report = json.loads(gemma4("inspect", "out", "--json").stdout)
    assert [(group["type"], group["rows"]) for group in report["failures"]] == [("invalid_json", 4)]
    assert gemma4(*command, "--retry-failed").returncode == 0
    check(pq.read_table(job / "out/data").to_pylist())


def test_an_answer_that_is_cut_off_says_so(gemma4, job: Path) -> None:
    done = gemma4(*ANNOTATE, "--schema", "schema.json", "--max-tokens", "3", "-o", "-")
    assert done.returncode == 3
    row = json.loads(done.stdout.splitlines()[0])
    assert (row["error_type"], row["finish_reason"]) == ("cut_off", "length")
    assert "--max-tokens 3" in row["error_message"]


def test_choices_and_patterns(gemma4, job: Path) -> None:
    (job / "labels.txt").write_text("cat\n\ndog, wet\n")
    done = gemma4(*ANNOTATE, "--choices", "@labels.txt", "-o", "-")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["text"] for row in rows} <= {"cat", "dog, wet"}
    assert [row["answer"] for row in rows] == [f"mine {i}" for i in range(4)]  # no column of ours takes the name
    done = gemma4(*ANNOTATE, "--regex", r"image 64x48, \w{12}", "-o", "-")
    assert [json.loads(line)["error_type"] for line in done.stdout.splitlines()] == [None, "no_match", "no_match", None]


def test_openai_lines_hold_the_text(gemma4, job: Path) -> None:
    assert gemma4(*ANNOTATE, "--schema", "schema.json", "--format", "openai", "-o", "out").returncode == 0
    rows = pq.read_table(job / "out/data").to_pylist()
    for line, row in zip((job / "out/openai.jsonl").read_text().splitlines(), rows, strict=True):
        assert json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] == row["text"]


def test_another_schema_is_another_job(gemma4, job: Path) -> None:
    command = (*ANNOTATE, "-o", "out", "--limit", "2")
    assert gemma4(*command, "--schema", "schema.json").returncode == 0
    assert "nothing is left" in gemma4(*command, "--schema", "schema.json").stderr
    SCHEMA_2 = {"type": "object", "properties": {"colour": {"type": "string"}, "new": {"type": "integer"}}}  # noqa: N806
    (job / "schema.json").write_text(json.dumps(SCHEMA_2))
    done = gemma4(*ANNOTATE, "-o", "out", "--schema", "schema.json")
    assert done.returncode == 2
    assert "--schema was" in done.stderr
    assert gemma4(*ANNOTATE, "-o", "out", "--schema", "schema.json", "--new-only").returncode == 0
    rows = pq.read_table(job / "out/data").to_pylist()
    assert [(row["answer"]["new"] is None, row["answer"]["size"] is None) for row in rows] == [
        (True, False), (True, False), (False, True), (False, True)
    ]  # fmt: skip


def test_answers_of_another_type_cannot_join_those_that_are_there(gemma4, job: Path) -> None:
    assert gemma4(*ANNOTATE, "-o", "out", "--limit", "2", "--schema", "schema.json").returncode == 0
    (job / "schema.json").write_text('{"type": "array", "items": {"type": "integer"}}')
    done = gemma4(*ANNOTATE, "-o", "out", "--schema", "schema.json", "--new-only")
    assert done.returncode == 2
    assert "other types" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--schema", "gone.json"], "--schema gone.json: No such file"),
        (["--schema", "schema.json", "--choices", "a,b"], "--schema and --choices contradict each other"),
        (["--choices", "a,,b"], "empty choice"),
        (["--choices", "a,a"], "twice"),
        (["--choices", '["a", 1]'], "--choices: 1 is no text"),
        (["--choices", "@gone"], "No such file"),
        (["--regex", "("], "no pattern"),
        (["--regex", ""], "--regex is empty"),
        (["--schema", "schema.json", "--window", "9"], "--window makes several"),
        (["--logprobs", "--window", "9"], "--window makes several"),
        (["--answer-retries", "-1"], "--answer-retries -1"),
    ],
)
def test_what_cannot_be_is_refused_at_once(gemma4, job: Path, flags: list[str], said: str) -> None:
    done = gemma4(*ANNOTATE, *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (job / "gemma4-annotate").exists()
