"""LoRA adapters in peft's format: what one is, and whether it fits a model, before any weights load.

Only the configuration and the names and sizes of tensors are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.models import Model

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM makes room for
_TOWERS = ("vision_tower", "audio_tower", "embed_vision", "embed_audio")
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?:model\.)?(.+)\.lora_(embedding_)?([AB])(?:\.[^.]+)?(?:\.weight)?")
_LAYER = re.compile(r"language_model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)$")
_READS_HIDDEN = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias",
    "modules_to_save": "whole modules beside the adapter (modules_to_save)",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "invocation tokens (aLoRA)",
}


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits the model. rank: the largest of its modules.  towers: whether it changes those too."""

    name: str
    folder: str
    rank: int
    towers: bool


def load(name: str, path: str, model: Model) -> Adapter:
    """Reads an adapter's folder.

    Raises:
        UsageError: it is none, or does not fit the model or vLLM.
    """
    shown = f"--lora {printable(name)}={printable(path)}"
    folder = Path(path).expanduser()
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        shapes = _shapes(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        what = Path(str(getattr(error, "filename", None) or folder)).name
        message = f"{shown}: {printable(what)} cannot be read: {reason}"
        raise UsageError(message, f"Name a folder as peft saves it, with {CONFIG} and {WEIGHTS}.") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise UsageError(f"{shown} is no LoRA adapter", f"Its {CONFIG} should say peft_type LORA.")
    for key, what in _UNSUPPORTED.items():
        if config.get(key):
            raise UsageError(f"{shown} has {what}, which vLLM does not take", "Train or convert it without.")
    if config.get("bias", "none") != "none":
        raise UsageError(f"{shown} has biases, which vLLM does not take", "Train it with bias='none'.")
    rank, modules = _checked(shown, shapes, model)
    if rank > RANKS[-1]:
        raise UsageError(f"{shown}: its rank, {rank}, is too large", f"vLLM takes up to {RANKS[-1]}.")
    towers = any(module.startswith(_TOWERS) for module in modules)
    return Adapter(name, str(folder.resolve()), rank, towers)


def room(adapters: tuple[Adapter, ...]) -> int:
    """The rank that vLLM is to make room for."""
    most = max(adapter.rank for adapter in adapters)
    return next(rank for rank in RANKS if rank >= most)


def _checked(shown: str, shapes: Mapping[str, list[int]], model: Model) -> tuple[int, set[str]]:
    """The largest rank, and the modules that are changed, each of which the model has with that size."""
    text = model.config.get("text_config") or {}
    layers, hidden = text.get("num_hidden_layers"), text.get("hidden_size")
    rank, modules = 0, set()
    for name, shape in shapes.items():
        match = _TENSOR.fullmatch(name)
        if match is None or match[2] or re.search(r"(?:^|\.)(?:embed_tokens\w*|lm_head)$", match[1]):
            raise UsageError(
                f"{shown}: vLLM takes no adapter for {printable(name)}", "It takes those of linear layers alone."
            )
        module, side = match[1], match[3]
        modules.add(module)
        rank = max(rank, shape[0] if side == "A" else 0)
        tower = module.partition(".")[0]
        if tower in _TOWERS and model.config.get(f"{_kind(tower)}_config") is None:
            raise UsageError(f"{shown} is for another model: {model.name} has no {tower}", "Train one for this model.")
        layer = _LAYER.search(module)
        if layer is None:
            continue
        if layers is not None and int(layer[1]) >= layers:
            message = f"{shown} is for another model: it has a layer {layer[1]}, and {model.name} has {layers}"
            raise UsageError(message, "Train one for this model.")
        wide = shape[1] if side == "A" and layer[2] in _READS_HIDDEN else None
        wide = shape[0] if side == "B" and layer[2] in ("o_proj", "down_proj") else wide
        if wide is not None and hidden is not None and wide != hidden:
            message = f"{shown} is for another model: it is {wide} wide, and {model.name} is {hidden}"
            raise UsageError(message, "Train one for this model.")
    if not modules:
        raise UsageError(f"{shown} changes nothing: {WEIGHTS} holds no tensors", "Save it again.")
    return rank, modules


def _kind(tower: str) -> str:
    return "audio" if "audio" in tower else "vision"


def _shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file, by its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= 100_000_000:
            raise ValueError("it is no safetensors file")
        header: Any = json.loads(file.read(length))
    try:
        return {name: list(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (AttributeError, KeyError, TypeError):
        raise ValueError("it is no safetensors file") from None
