from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cli import models
from gemma4cli.errors import ModelError, UsageError
from gemma4cli.records import Kind


def checkpoint(folder: Path, **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    document = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "vision_config": {},
        "audio_config": None,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def test_tiny_comes_with_the_package_and_takes_everything() -> None:
    tiny = models.find("tiny")
    assert Path(tiny.location).is_dir()
    assert tiny.hears
    assert tiny.sees


def test_a_folder_is_described_from_its_configuration(tmp_path: Path) -> None:
    model = models.find(str(checkpoint(tmp_path / "m", text_config={"max_position_embeddings": 4096})))
    assert (model.hears, model.sees, model.context) == (False, True, 4096)


def test_a_model_without_an_audio_tower_cannot_transcribe(tmp_path: Path) -> None:
    model = models.find(str(checkpoint(tmp_path / "m")))
    with pytest.raises(UsageError, match="it has no audio tower") as refusal:
        model.require("transcribe", frozenset({Kind.AUDIO}))
    assert "--model E4B" in refusal.value.hint
    model.require("annotate", frozenset(Kind))


def test_a_folder_without_a_configuration_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no config\.json"):
        models.find(str(tmp_path))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="LlamaForCausalLM"):
        models.find(str(checkpoint(tmp_path / "m", architectures=["LlamaForCausalLM"])))


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_configuration_is_a_model_error(tmp_path: Path, text: str) -> None:
    checkpoint(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(text)
    with pytest.raises(ModelError) as failure:
        models.find(str(tmp_path / "m"))
    assert failure.value.hint


@pytest.mark.parametrize("name", ["E5B", "no/such/folder", "./nowhere"])
def test_a_name_that_is_none_lists_what_there_is(name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        models.find(name)
    assert "E4B" in refusal.value.hint


def test_a_snapshot_with_missing_shards_is_not_whole(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "m")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    )
    (folder / "1.safetensors").touch()
    assert not models._whole(folder)
    (folder / "2.safetensors").touch()
    assert models._whole(folder)
