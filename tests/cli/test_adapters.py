"""Adapters and other features of the engine, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ANNOTATE = ("annotate", "rows.jsonl", "-p", "What?", "--engine", "fake", "--model", "tiny")


@pytest.fixture
def job(tmp_path: Path, photos: Path) -> Path:
    rows = [
        {"id": str(i), "image": str(photos / "a.jpg"), "style": style} for i, style in enumerate(["a", "b", None, "c"])
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name, rank in (("a", 4), ("b", 8)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8}')
        module = "base_model.model.model.language_model.layers.0.mlp.up_proj.lora_A.weight"
        save_file({module: np.zeros((rank, 128), np.float32)}, folder / "adapter_model.safetensors")
    return tmp_path


def test_rows_name_their_adapters_and_one_that_there_is_not_is_a_failed_row(gemma4, job: Path) -> None:
    done = gemma4(*ANNOTATE, "--lora", "a=a", "--lora", "b=b", "--lora-column", "style", "-o", "-")
    assert done.returncode == 3, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "failed"]
    assert (rows[3]["error_stage"], rows[3]["error_type"]) == ("parse", "unknown_adapter")
    assert "names the adapter 'c'; there are a, b" in rows[3]["error_message"]
    assert [row["style"] for row in rows] == ["a", "b", None, "c"]


def test_an_adapter_is_part_of_what_made_the_rows(gemma4, job: Path) -> None:
    assert gemma4(*ANNOTATE, "--lora", "a=a", "-o", "out").returncode == 0
    assert "nothing is left" in gemma4(*ANNOTATE, "--lora", "a=a", "-o", "out").stderr
    for flags, said in (((), "--lora a was"), (("--lora", "a=b"), "--lora a was"), (("--lora", "b=b"), "--lora b")):
        done = gemma4(*ANNOTATE, *flags, "-o", "out")
        assert done.returncode == 2
        assert said in done.stderr


def test_a_row_with_another_adapter_is_another_row(gemma4, job: Path) -> None:
    command = (*ANNOTATE, "--lora", "a=a", "--lora", "b=b", "--lora-column", "style")
    assert gemma4(*command, "-o", "out", "--limit", "3").returncode == 0
    rows = [json.loads(line) for line in (job / "rows.jsonl").read_text().splitlines()]
    rows[0]["style"] = "b"
    (job / "rows.jsonl").write_text("\n".join(map(json.dumps, rows[:3])))
    assert gemma4(*command, "-o", "out").returncode == 2
    assert gemma4(*command, "-o", "out", "--new-only").returncode == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lora", "a"], "is not NAME=FOLDER"),
        (["--lora", "a=gone"], "adapter_config.json cannot be read"),
        (["--lora", "a=a", "--lora", "b=b"], "--lora-column"),
        (["--lora", "a=a", "--lora", "a=b"], "given twice"),
        (["--lora-column", "style"], "there are none"),
        (["--lora", "a=a", "--lora-column", "gone"], "no such column"),
        (["--quantization", "fp4"], "It takes one of fp8"),
        (["--kv-cache-dtype", "int2"], "It takes one of auto, fp8"),
        (["--drafted", "3"], "Add --speculative"),
        (["--suppress-tokens", "a,,b"], "--suppress-tokens 'a,,b' has an empty"),
    ],
)
def test_what_cannot_be_is_refused_at_once(gemma4, job: Path, flags: list[str], said: str) -> None:
    done = gemma4(*ANNOTATE, *flags)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_column_of_adapters_needs_a_manifest(gemma4, job: Path, photos: Path) -> None:
    done = gemma4("annotate", photos, "-p", "?", "--engine", "fake", "--lora", "a=a", "--lora-column", "style")
    assert done.returncode == 2
    assert "the inputs are files" in done.stderr
