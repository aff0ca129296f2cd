"""Rows of several media with texts between them, and OpenAI's batches, through the installed command."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

FAKE = ("--engine", "fake")


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def write(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def image(path: Path) -> dict:
    return {"type": "image_url", "image_url": {"url": str(path)}}


@pytest.fixture
def batch(photos: Path, clip: Path, tmp_path: Path) -> Path:
    def request(name: str, *messages: dict) -> dict:
        return {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": list(messages)},
        }

    sound = {"data": base64.b64encode(clip.read_bytes()).decode(), "format": "wav"}
    return write(
        tmp_path / "batch.jsonl",
        [
            request("a", {"role": "user", "content": [image(photos / "a.jpg"), {"type": "text", "text": "What?"}]}),
            request("b", {"role": "user", "content": "Hello"}),
            request("c", {"role": "user", "content": [{"type": "input_audio", "input_audio": sound}]}),
            request("d", {"role": "user", "content": [image(Path("missing.jpg"))]}),
        ],
    )


def test_a_batch_goes_in_and_comes_out_as_one(gemma4, batch: Path) -> None:
    done = gemma4("annotate", batch, *FAKE, "--format", "openai", "-o", "-")
    assert done.returncode == 3, done.stderr
    found = lines(done.stdout)
    assert [line["custom_id"] for line in found] == ["a", "b", "c", "d"]
    assert [line["response"] is None for line in found] == [False, False, False, True]
    answers = [line["response"]["body"]["choices"][0]["message"]["content"] for line in found[:3]]
    assert [answer.split()[0] for answer in answers] == ["image", "text,", "audio"]
    assert found[0]["response"]["body"]["usage"]["prompt_tokens"] > 0
    assert found[3]["error"]["code"] == "not_found"


def test_beside_a_data_set_lies_the_batch_with_the_rows_of_all_runs(gemma4, batch: Path, tmp_path: Path) -> None:
    write(batch, lines(batch.read_text())[:3])
    run = ("annotate", batch, *FAKE, "--format", "openai", "-o", "out")
    assert gemma4(*run, "--limit", "2").returncode == 0
    assert len(lines((tmp_path / "out" / "openai.jsonl").read_text())) == 2
    assert gemma4(*run).returncode == 0
    (tmp_path / "out" / "openai.jsonl").unlink()
    assert "nothing is left to do" in gemma4(*run).stderr
    found = lines((tmp_path / "out" / "openai.jsonl").read_text())
    rows = pq.read_table(tmp_path / "out" / "data").to_pylist()
    assert [line["custom_id"] for line in found] == [row["id"] for row in rows] == ["a", "b", "c"]
    assert gemma4(*run[:-1], "x.jsonl").returncode == 2


def test_order_texts_and_system_prompts_make_the_answer(gemma4, photos: Path, tmp_path: Path) -> None:
    a, b, between = image(photos / "a.jpg"), image(photos / "b.png"), {"type": "text", "text": "and"}
    contents = [[a, between, b], [b, between, a], [a, b, between], [a, between, b]]
    rows = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    rows.append({"messages": [{"role": "system", "content": "Be brief."}, rows[0]["messages"][0]]})
    found = lines(gemma4("annotate", write(tmp_path / "rows.jsonl", rows), *FAKE, "-o", "-").stdout)
    assert {row["status"] for row in found} == {"ok"}
    texts = [row["text"] for row in found]
    assert texts[0] == texts[3]
    assert len(set(texts)) == 4
    said = [row["text"] for row in lines(gemma4("annotate", "rows.jsonl", *FAKE, "-p", "Why?", "-o", "-").stdout)]
    assert not set(said) & set(texts)


def test_parts_are_asked_the_jobs_prompt_or_their_own_text(gemma4, photos: Path, tmp_path: Path) -> None:
    rows = [{"content": [image(photos / "a.jpg"), "Which colour?"]}, {"content": [image(photos / "a.jpg")]}]
    write(tmp_path / "rows.jsonl", rows)
    first, second = lines(gemma4("annotate", "rows.jsonl", *FAKE, "-o", "-").stdout)
    assert (first["status"], second["error_type"]) == ("ok", "no_prompt")
    asked = lines(gemma4("caption", "rows.jsonl", *FAKE, "-o", "-").stdout)
    assert [row["status"] for row in asked] == ["ok", "ok"]
    assert asked[0]["text"] != first["text"]


def test_sound_that_cannot_be_cut_for_what_stands_beside_it(gemma4, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.zeros(31 * 16_000, "float32"), 16_000)
    part = {"type": "audio_url", "audio_url": "long.wav"}
    write(tmp_path / "rows.jsonl", [{"content": [part, "Only the end."]}, {"content": [part, part]}])
    done = gemma4("transcribe", "rows.jsonl", *FAKE, "-o", "-")
    assert [row["error_type"] for row in lines(done.stdout)] == ["audio_too_long"] * 2
