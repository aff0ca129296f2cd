"""Real vLLM on the CPU, through the installed command: one engine start for each test, so each does a lot."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gemma4cli import demo
from gemma4cli.tiny import CLIPS, prompts, scenes

pytestmark = pytest.mark.vllm
STARTED = 400  # seconds for a run with a start of the engine, on two slow cores


def by_id(path: Path) -> dict[str, dict]:
    return {row["id"]: row for row in pq.read_table(path).to_pylist()}


def test_annotate_answers_each_row_of_a_mixed_manifest_and_fails_what_does_not_fit(gemma4, tmp_path: Path) -> None:
    scene = scenes.random_scene(23, count=2)  # of two shapes, so that one can be asked about
    scenes.draw(scene).save(tmp_path / "scene.png")
    clip = demo.clips()[0]
    first = scene.things[0]
    rows = [
        {"id": "colour", "image": "scene.png", "q": f"What colour is the {first.shape}?"},
        {"id": "both", "image": "scene.png", "audio": str(CLIPS / clip["file"]), "q": "How many shapes are there?"},
        {"id": "long", "image": "scene.png", "q": "why " * 9000},
        {"id": "command", "image": "scene.png", "q": "What is <|image|> this?"},
        {"id": "gone", "image": "missing.png", "q": "What?"},
        {"id": "none", "q": "What?"},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = gemma4(
        "annotate", "rows.jsonl", "--prompt-column", "q", "--model", "tiny", "--temperature", "0", timeout=STARTED
    )
    assert done.returncode == 3, done.stderr
    found = by_id(tmp_path / "gemma4-annotate" / "data")
    assert found["colour"]["text"] == first.colour
    assert found["both"]["status"] == "ok"
    assert found["both"]["image_tokens"] > 0
    assert found["both"]["audio_tokens"] > 0
    stages = {
        name: (found[name]["error_stage"], found[name]["error_type"]) for name in ("long", "command", "gone", "none")
    }
    assert stages == {
        "long": ("render", "prompt_too_long"),
        "command": ("render", "control_token"),
        "gone": ("fetch", "not_found"),
        "none": ("parse", "no_media"),
    }
    summary = json.loads((tmp_path / "gemma4-annotate" / ".gemma4cli" / "summary.json").read_text())
    assert summary["engine"]["vllm"].startswith("0.32")


def test_annotate_reads_two_hundred_scenes_into_typed_columns(gemma4, tmp_path: Path) -> None:
    """Free answers to the same scenes are right 199 times of 200."""
    (tmp_path / "scenes").mkdir()
    shown = [scenes.random_scene(seed) for seed in range(600_000, 600_200)]
    for i, scene in enumerate(shown):
        scenes.draw(scene).save(tmp_path / "scenes" / f"{i:03}.png")
    properties = {"shape": {"enum": list(scenes.SHAPES)}, "colour": {"type": "string"}, "relation": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    (tmp_path / "scene.json").write_text(json.dumps(schema))
    done = gemma4(
        "annotate", "scenes", "-p", prompts.JSON_ANSWER[0], "--schema", "scene.json", "--model", "tiny",
        "--temperature", "0", "--max-soft-tokens", "70", "-o", "out.parquet", timeout=STARTED,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = pq.read_table(tmp_path / "out.parquet")["answer"].to_pylist()
    assert all(answer["shape"] in scenes.SHAPES for answer in answers)
    assert sum(answer == json.loads(s.json_answer) for answer, s in zip(answers, shown, strict=True)) >= 190


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("model=other", "--engine-arg model is not yours to set"),
        ("max_num_sequences=3", "Did you mean max_num_seqs?"),
        ("max_num_batched_tokens=1024", "is too small"),
        ("dtype=float3", "vLLM refuses these settings"),
    ],
)
def test_engine_arguments_are_refused_by_name(gemma4, photos: Path, argument: str, said: str) -> None:
    done = gemma4("caption", photos, "--model", "tiny", "--engine-arg", argument, timeout=STARTED)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_doctor_finds_nothing_wrong_here(gemma4) -> None:
    done = gemma4("doctor", "--model", "tiny", timeout=STARTED)
    assert done.returncode == 0, done.stderr
    for subject in ("gemma4", "packages", "cpu", "memory", "disk", "accelerator", "vllm", "codecs", "model tiny"):
        assert subject in done.stdout
