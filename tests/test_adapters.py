"""LoRA adapters: which are taken, and why others are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4cli import adapters, models
from gemma4cli.adapters import Adapter
from gemma4cli.errors import UsageError

TINY = models.find("tiny")
LAYER = "base_model.model.model.language_model.layers.0"
GOOD = {
    f"{LAYER}.self_attn.q_proj.lora_A.weight": (8, 128),
    f"{LAYER}.self_attn.q_proj.lora_B.weight": (128, 8),
    f"{LAYER}.mlp.down_proj.lora_A.weight": (8, 256),
    f"{LAYER}.mlp.down_proj.lora_B.weight": (128, 8),
}
TOWER = "base_model.model.model.vision_tower.encoder.layers.0.self_attn.q_proj.linear"


def write(folder: Path, shapes: dict[str, tuple[int, ...]] = GOOD, **about: Any) -> Path:
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / adapters.WEIGHTS)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none", **about}
    (folder / adapters.CONFIG).write_text(json.dumps(config))
    return folder


def test_an_adapter_tells_its_rank_and_whether_it_changes_the_towers(tmp_path: Path) -> None:
    folder = write(tmp_path / "a")
    assert adapters.load("a", str(folder), TINY) == Adapter("a", str(folder.resolve()), 8, False)
    tower = {f"{TOWER}.lora_A.weight": (24, 96), f"{TOWER}.lora_B.weight": (96, 24)}
    found = adapters.load("b", str(write(tmp_path / "b", GOOD | tower)), TINY)
    assert (found.rank, found.towers) == (24, True)
    assert adapters.room((found,)) == 32


@pytest.mark.parametrize(
    ("shapes", "about", "said"),
    [
        (GOOD, {"use_dora": True}, "DoRA"),
        (GOOD, {"bias": "all"}, "biases"),
        (GOOD, {"modules_to_save": ["lm_head"]}, "modules_to_save"),
        (GOOD, {"peft_type": "IA3"}, "no LoRA adapter"),
        ({}, {}, "changes nothing"),
        ({f"{LAYER}.mlp.up_proj.lora_A.weight": (600, 128)}, {}, "600, is too large"),
        ({f"{LAYER}.mlp.up_proj.lora_A.weight": (8, 1536)}, {}, "another model: it is 1536 wide, and tiny is 128"),
        ({f"{LAYER}.mlp.down_proj.lora_B.weight": (1536, 8)}, {}, "1536 wide"),
        ({f"{LAYER[:-1]}30.mlp.up_proj.lora_A.weight": (8, 128)}, {}, "a layer 30, and tiny has 5"),
        ({"base_model.model.lm_head.lora_A.weight": (8, 128)}, {}, "vLLM takes no adapter for"),
        ({f"{LAYER}.mlp.up_proj.weight": (8, 128)}, {}, "vLLM takes no adapter for"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(tmp_path: Path, shapes: Any, about: Any, said: str) -> None:
    folder = write(tmp_path / "a", shapes, **about)
    with pytest.raises(UsageError, match=f"--lora a=.*{said}"):
        adapters.load("a", str(folder), TINY)


def test_folders_that_hold_no_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"adapter_config\.json cannot be read: No such file"):
        adapters.load("a", str(tmp_path), TINY)
    folder = write(tmp_path / "a")
    (folder / adapters.WEIGHTS).write_bytes(b"\xff" * 100)
    with pytest.raises(UsageError, match="no safetensors file"):
        adapters.load("a", str(folder), TINY)
    (folder / adapters.WEIGHTS).unlink()
    with pytest.raises(UsageError, match=r"adapter_model\.safetensors cannot be read"):
        adapters.load("a", str(folder), TINY)


def test_a_tower_that_the_model_has_not_is_another_models(tmp_path: Path) -> None:
    from dataclasses import replace

    deaf = replace(TINY, config={**TINY.config, "audio_config": None})
    sound = {"base_model.model.model.audio_tower.layers.0.self_attn.q_proj.linear.lora_A.weight": (8, 96)}
    folder = str(write(tmp_path / "a", sound))
    assert adapters.load("a", folder, TINY).towers
    with pytest.raises(UsageError, match="has no audio_tower"):
        adapters.load("a", folder, deaf)
