"""Folders of Gemma 4 checkpoints without weights, in the shapes of the published ones, to measure with.

vLLM fills them with random weights (`load_format=dummy`): speeds are those of the real model, answers are noise. Layer
counts and widths follow the published configurations; tokenizer and processor are those of the bundled tiny model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemma4cli.tiny import blueprint

VOCABULARY = 262_144


def _layers(count: int, every: int) -> list[str]:
    return ["full_attention" if i % every == every - 1 else "sliding_attention" for i in range(count)]


TEXT: dict[str, dict[str, Any]] = {
    "E2B": {
        "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "layer_types": _layers(35, 5),
        "num_attention_heads": 8, "num_key_value_heads": 1, "num_kv_shared_layers": 20,
        "hidden_size_per_layer_input": 256, "use_double_wide_mlp": True,
    },
    "E4B": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "layer_types": _layers(42, 6),
        "num_attention_heads": 8, "num_key_value_heads": 2, "num_kv_shared_layers": 18,
        "hidden_size_per_layer_input": 256,
    },
}  # fmt: skip
VISION = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 12, "head_dim": 64, "position_embedding_size": 10240,
}  # fmt: skip
AUDIO = {"hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "output_proj_dims": 1536}


def write(shape: str, folder: Path) -> Path:
    """Writes the checkpoint's files, all but the weights, and returns its folder."""
    blueprint.write(folder)
    config = blueprint.config()
    config["text_config"] |= TEXT[shape] | {
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 512,
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "max_position_embeddings": 131_072,
    }
    config["vision_config"] |= VISION
    config["audio_config"] |= AUDIO
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return folder
