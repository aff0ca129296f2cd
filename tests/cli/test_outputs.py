"""Several prompts to a row, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

RECIPE = """
task = "annotate"
engine = "fake"

[outputs.caption]
prompt = "Describe it."

[outputs.colour]
prompt = "Which colour?"
choices = ["red", "green", "light, blue"]
logprobs = true
max_tokens = 3

[outputs.scene]
prompt = "As JSON."
schema = { type = "object", properties = { size = { type = "integer", minimum = 1 } }, required = ["size"] }
"""


@pytest.fixture
def job(tmp_path: Path, photos: Path) -> Path:
    (tmp_path / "several.toml").write_text(RECIPE)
    rows = [{"id": name, "image": str(photos / name), "outputs": "mine"} for name in ("a.jpg", "b.png", "more/c.webp")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def alone(gemma4, prompt: str, *flags: str) -> list[dict]:
    done = gemma4("annotate", "rows.jsonl", "--engine", "fake", "-p", prompt, *flags, "-o", "-")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("output", ["out", "out.parquet", "out.jsonl", "-"])
def test_each_output_has_the_answer_that_its_prompt_alone_has(gemma4, written, job: Path, output: str) -> None:
    done = gemma4("run", "several.toml", "rows.jsonl", "-o", output)
    assert done.returncode == 0, done.stderr
    rows, schema = written(done, output)
    if schema is not None:
        counted = {"finish_reason": pa.string(), "output_tokens": pa.int64()}
        answer = pa.struct({"size": pa.int64()})
        each = pa.struct(dict.fromkeys(("red", "green", "light, blue"), pa.float64()))
        assert schema.field("outputs").type == pa.struct(
            {
                "caption": pa.struct({"text": pa.string(), **counted}),
                "colour": pa.struct({"text": pa.string(), "logprob": pa.float64(), "choice_logprobs": each, **counted}),
                "scene": pa.struct({"text": pa.string(), "answer": answer, **counted}),
            }
        )
    captions, colours = alone(gemma4, "Describe it."), alone(gemma4, "Which colour?", "--max-tokens", "3")
    assert [row["outputs"]["caption"]["text"] for row in rows] == [row["text"] for row in captions]
    for row, one, other in zip(rows, captions, colours, strict=True):
        found = row["outputs"]
        assert found["colour"]["text"] in ("red", "green", "light, blue")
        assert found["colour"]["logprob"] < 0
        assert found["scene"]["answer"] == json.loads(found["scene"]["text"])
        assert row["input_outputs"] == "mine"
        assert (row["text"], row["status"], row["finish_reason"], row["task"]) == (None, "ok", "stop", "annotate")
        assert row["output_tokens"] == sum(each["output_tokens"] for each in found.values())
        assert row["image_tokens"] == 3 * one["image_tokens"]
        assert row["prompt_tokens"] == one["prompt_tokens"] + other["prompt_tokens"] + one["image_tokens"] + 2
        assert (row["width"], row["height"], row["bucket"]) == (one["width"], one["height"], one["bucket"])


def test_datasets_reads_outputs_typed(gemma4, job: Path) -> None:
    assert gemma4("run", "several.toml", "rows.jsonl").returncode == 0
    files = str(job / "gemma4-several/data/*.parquet")
    data = datasets.load_dataset("parquet", data_files=files, cache_dir=str(job / "cache"), split="train")
    assert data[0]["outputs"]["scene"]["answer"]["size"] >= 1


def test_a_row_of_which_one_output_fails_is_failed_and_keeps_the_others(gemma4, job: Path) -> None:
    command = ("run", "several.toml", "rows.jsonl", "-o", "out.parquet")
    done = gemma4(*command, "--engine-arg", "fail_on=As JSON", "--engine-arg", "broken_on=Which")
    assert done.returncode == 3
    for row in pq.read_table(job / "out.parquet").to_pylist():
        assert (row["status"], row["error_stage"]) == ("failed", "parse")
        assert row["error_message"].startswith("outputs.colour: the answer is none of the choices")
        assert "; outputs.scene: failed, as --engine-arg fail_on asked" in row["error_message"]
        assert row["outputs"]["caption"]["text"].startswith("image ")
        assert row["outputs"]["scene"]["text"] is None
    assert gemma4(*command, "--retry-failed").returncode == 0
    assert {row["status"] for row in pq.read_table(job / "out.parquet").to_pylist()} == {"ok"}


def test_an_output_that_does_not_do_is_asked_for_again_alone(gemma4, job: Path) -> None:
    done = gemma4("run", "several.toml", "rows.jsonl", "-o", "-", "--engine-arg", "break_on=As JSON")
    assert done.returncode == 0, done.stderr
    assert {json.loads(line)["attempts"] for line in done.stdout.splitlines()} == {2}


def test_an_output_that_the_engine_dies_on_is_tried_smaller(gemma4, job: Path) -> None:
    """The fake engine dies of prompts above 100 tokens that hold a text: half the budget of an image saves the row."""
    done = gemma4(
        "run", "several.toml", "rows.jsonl", "-o", "-", "--max-soft-tokens", "140",
        "--engine-arg", "die_on=Which colour?", "--engine-arg", "die_above=100",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["bucket"] for row in rows} == {"image-140+image-70"}
    assert all(set(row["outputs"]) == {"caption", "colour", "scene"} for row in rows)


def test_a_row_that_cannot_be_read_has_no_outputs(gemma4, job: Path) -> None:
    (job / "rows.jsonl").write_text('{"image": "gone.png"}')
    done = gemma4("run", "several.toml", "rows.jsonl", "-o", "-")
    row = json.loads(done.stdout)
    assert (row["error_type"], row["outputs"]) == ("not_found", None)


def test_copies_of_a_row_have_its_outputs(gemma4, job: Path, photos: Path) -> None:
    rows = [{"id": str(i), "image": str(photos / "a.jpg")} for i in range(2)]
    (job / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert gemma4("run", "several.toml", "rows.jsonl", "--dedupe", "-o", "out.parquet").returncode == 0
    first, second = pq.read_table(job / "out.parquet").to_pylist()
    assert (second["duplicate_of"], second["outputs"]) == (0, first["outputs"])


def test_another_prompt_of_an_output_is_another_job(gemma4, job: Path) -> None:
    command = ("run", "several.toml", "rows.jsonl", "-o", "out")
    assert gemma4(*command).returncode == 0
    assert "nothing is left" in gemma4(*command).stderr
    done = gemma4(*command, "--set", "outputs.caption.prompt=Another")
    assert done.returncode == 2
    assert "outputs.caption.prompt was" in done.stderr
    done = gemma4(*command, "--set", "outputs.colour.choices=a,b")
    assert "outputs.colour.choices was" in done.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["-p", "What?"], "--prompt is about one answer"),
        (["--choices", "a,b"], "--choices is about one answer"),
        (["--window", "9"], "--window is about one answer"),
        (["--prompt-column", "id"], "--prompt-column is about one answer"),
        (["--format", "openai"], "--format openai is about one answer"),
        (["--set", "outputs.more.max_tokens=3"], "outputs.more has no prompt"),
        (["--set", "outputs.caption.max_tokens=0"], "outputs.caption: --max-tokens 0"),
        (["--set", "outputs.caption.choices=a,b", "--set", "outputs.caption.regex=a"], "contradict each other"),
        (["--set", "outputs.a-b+.prompt=x"], "cannot be the name of a column"),
        (["--set", "outputs.Caption.prompt=x"], "outputs.caption and outputs.Caption differ in case alone"),
        (["--set", "outputs.feature.prompt=x"], "cannot be the name of a column"),
    ],
)
def test_what_cannot_be_is_refused_at_once(refused, job: Path, flags: list[str], said: str) -> None:
    assert said in refused("run", "several.toml", "rows.jsonl", *flags)
    assert not (job / "gemma4-several").exists()


def test_captions_of_several_kinds_write_no_sidecars_and_transcripts_have_no_outputs(refused, job: Path) -> None:
    (job / "caption.toml").write_text(RECIPE.replace("annotate", "caption"))
    assert "--sidecar is about one answer" in refused("run", "caption.toml", "rows.jsonl", "--sidecar", "txt")
    (job / "speech.toml").write_text('task = "transcribe"\n[outputs.a]\nprompt = "x"')
    assert "transcribe has one output" in refused("run", "speech.toml", "rows.jsonl")


def test_the_plan_counts_each_prompt(gemma4, job: Path) -> None:
    done = gemma4("run", "several.toml", "rows.jsonl", "--dry-run")
    assert done.returncode == 0, done.stderr
    ran = gemma4("run", "several.toml", "rows.jsonl", "-o", "-")
    image = sum(json.loads(line)["image_tokens"] for line in ran.stdout.splitlines())
    assert f"({image:,} image" in done.stdout
    assert "at most 3,081" in done.stdout  # of three rows with 512, 3 and 512 tokens
