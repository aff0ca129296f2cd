"""Thoughts, samples and probabilities of choices, through the installed command, on the fake engine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ANNOTATE = ("annotate", "rows.jsonl", "-p", "What is it?", "--engine", "fake")
SCHEMA = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}


@pytest.fixture
def job(tmp_path: Path, photos: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    rows = [{"id": str(i), "image": str(photos / name)} for i, name in enumerate(["a.jpg", "b.png", "more/c.webp"])]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_samples_are_a_typed_column_and_the_first_is_the_answer(gemma4, job: Path) -> None:
    done = gemma4(*ANNOTATE, "--schema", "schema.json", "--n", "3", "--thinking", "-o", "out")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(job / "out/data")
    sample = {
        "text": pa.string(),
        "answer": pa.struct({"size": pa.int64()}),
        "logprob": pa.float64(),
        "finish_reason": pa.string(),
        "output_tokens": pa.int64(),
        "thinking": pa.string(),
        "thinking_tokens": pa.int64(),
    }
    assert table.schema.field("samples").type == pa.list_(pa.struct(sample))
    for row in table.to_pylist():
        samples = row["samples"]
        assert len(samples) == 3
        assert all(row[name] == samples[0][name] for name in ("text", "answer", "thinking", "thinking_tokens"))
        assert row["output_tokens"] == sum(sample["output_tokens"] for sample in samples)
        assert [sample["answer"] for sample in samples] == [json.loads(sample["text"]) for sample in samples]
        assert all(sample["logprob"] < 0 for sample in samples)
        assert row["thinking"].startswith("What is there")
    data = datasets.load_dataset(
        "parquet", data_files=str(job / "out/data/*.parquet"), cache_dir=str(job / "cache"), split="train"
    )
    assert data.features.arrow_schema.field("samples").type == table.schema.field("samples").type
    summary = json.loads((job / "out/.gemma4cli/summary.json").read_text())
    assert summary["tokens"]["thinking"] == sum(row["thinking_tokens"] for row in table.to_pylist())


def test_each_choice_has_its_probability(gemma4, job: Path) -> None:
    done = gemma4(*ANNOTATE, "--choices", "yes,no,not sure", "--logprobs", "-o", "out")
    assert done.returncode == 0, done.stderr
    table = pq.read_table(job / "out/data")
    assert table.schema.field("choice_logprobs").type == pa.struct(
        dict.fromkeys(("yes", "no", "not sure"), pa.float64())
    )
    for row in table.to_pylist():
        shares = {choice: math.exp(logprob) for choice, logprob in row["choice_logprobs"].items()}
        assert sum(shares.values()) == pytest.approx(1)
        assert max(shares, key=shares.__getitem__) == row["text"]
    assert gemma4(*ANNOTATE, "--choices", "yes,no", "-o", "none").returncode == 0
    assert not {"choice_logprobs", "samples", "thinking"} & set(pq.read_table(job / "none/data").column_names)


def test_thinking_without_end_is_a_failed_row(gemma4, job: Path) -> None:
    endless = ("--engine-arg", "ponder_on=What", "--max-tokens", "5")
    done = gemma4(*ANNOTATE, *endless, "--thinking", "--thinking-budget", "9", "-o", "-")
    assert done.returncode == 3
    row = json.loads(done.stdout.splitlines()[0])
    assert (row["status"], row["error_stage"], row["error_type"]) == ("failed", "parse", "cut_off")
    assert "thought for 22 tokens" in row["error_message"]
    assert row["thinking"].startswith("hm hm")
    assert not row["text"]
    assert row["attempts"] == 2
    assert gemma4(*ANNOTATE, *endless, "-o", "out").returncode == 0  # it may not think, so it does not


def test_a_run_with_other_drawing_is_another_job(gemma4, job: Path) -> None:
    assert gemma4(*ANNOTATE, "-o", "out", "--limit", "1").returncode == 0
    for flags, said in ((("--n", "2"), "--n was not set, is 2"), (("--thinking",), "--thinking-budget was not set")):
        done = gemma4(*ANNOTATE, "-o", "out", *flags)
        assert done.returncode == 2
        assert said in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--n", "0"], "--n 0 is out of range"),
        (["--n", "2", "--temperature", "0"], "temperature 0 makes all the same"),
        (["--n", "2", "--window", "9"], "--window makes several"),
        (["--thinking", "--window", "9"], "--window makes several"),
        (["--thinking-budget", "9"], "Add --thinking"),
        (["--thinking", "--thinking-budget", "0"], "--thinking-budget 0 is out of range"),
    ],
)
def test_what_cannot_be_is_refused_at_once(gemma4, job: Path, flags: list[str], said: str) -> None:
    done = gemma4(*ANNOTATE, *flags)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (job / "gemma4-annotate").exists()
