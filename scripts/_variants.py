"""Small random checkpoints of every Gemma 4 family, and of what goes with them: adapters, drafters, quantised weights.

Structure, names and special cases are those of the published checkpoints; sizes are a fraction, yet such that a GPU's
kernels take them. Answers are noise, but the same noise wherever the same is computed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from gemma4cli.tiny import blueprint

FAMILIES = ("E2B", "E4B", "12B", "26B-A4B", "31B")
HEARS = ("E2B", "E4B", "12B")
WIDTH = 512
_SLIDING, _FULL = "sliding_attention", "full_attention"
_ROPE = {
    _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}


def config(family: str) -> dict[str, Any]:
    """Contents of config.json."""
    made = blueprint.config()
    text = made["text_config"] | {
        "hidden_size": WIDTH, "intermediate_size": 1024, "head_dim": 256, "global_head_dim": 512,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": _ROPE,
    }  # fmt: skip
    vision = made["vision_config"] | {
        "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "head_dim": 64,
    }  # fmt: skip
    if family in ("E2B", "E4B"):
        text["layer_types"] = [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL]
        text |= {"hidden_size_per_layer_input": 64, "use_double_wide_mlp": family == "E2B"}
        text["num_key_value_heads"] = 1 if family == "E2B" else 2
        made["audio_config"] |= {"hidden_size": 256, "num_hidden_layers": 2, "output_proj_dims": 384}
        return made | {"text_config": text, "vision_config": vision}
    text |= {
        "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _SLIDING, _FULL], "num_hidden_layers": 6,
        "num_kv_shared_layers": 0, "sliding_window": 1024, "use_bidirectional_attention": "vision",
        "attention_k_eq_v": True, "num_global_key_value_heads": 1,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
    }  # fmt: skip
    if family == "12B":
        for key in ("hidden_size_per_layer_input", "vocab_size_per_layer_input", "enable_moe_block"):
            del text[key]
        return made | {
            "architectures": ["Gemma4UnifiedForConditionalGeneration"],
            "model_type": "gemma4_unified",
            "text_config": text | {"model_type": "gemma4_unified_text"},
            "vision_config": {
                "model_type": "gemma4_unified_vision", "patch_size": 16, "pooling_kernel_size": 3,
                "mm_embed_dim": WIDTH, "mm_posemb_size": 1120, "output_proj_dims": WIDTH, "num_soft_tokens": 280,
                "rms_norm_eps": 1e-6,
            },
            "audio_config": {"model_type": "gemma4_unified_audio", "audio_embed_dim": 640, "rms_norm_eps": 1e-6},
        }  # fmt: skip
    if family == "26B-A4B":
        text |= {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 256}
    # As the large tower's 4304: no multiple of 64, so that it cannot be quantised by every kernel.
    vision |= {"intermediate_size": 528, "use_clipped_linears": False, "standardize": True}
    return made | {"text_config": text, "vision_config": vision, "audio_config": None}


def processor_config(family: str) -> dict[str, Any]:
    """Contents of processor_config.json."""
    made = blueprint.processor_config()
    if family != "12B":
        return made
    made["processor_class"] = "Gemma4UnifiedProcessor"
    made["image_processor"]["image_processor_type"] = "Gemma4UnifiedImageProcessor"
    made["video_processor"]["video_processor_type"] = "Gemma4UnifiedVideoProcessor"
    made["feature_extractor"] = {
        "feature_extractor_type": "Gemma4UnifiedAudioFeatureExtractor", "feature_size": 640,
        "sampling_rate": 16000, "audio_samples_per_token": 640, "padding_value": 0.0,
    }  # fmt: skip
    return made


def write(family: str, folder: Path, seed: int = 0, bidirectional: bool = True) -> Path:
    """Writes a whole checkpoint of a family and returns its folder.

    bidirectional: whether the tokens of an image attend to one another both ways, where the family's do. vLLM's CPU
        build cannot do that, and says nothing.
    """
    from transformers import AutoConfig, AutoModelForImageTextToText

    blueprint.write(folder)
    about = config(family)
    if not bidirectional:
        about["text_config"]["use_bidirectional_attention"] = None
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n")
    (folder / "processor_config.json").write_text(json.dumps(processor_config(family), indent=1) + "\n")
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    tokens["processor_class"] = processor_config(family)["processor_class"]
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens, indent=1) + "\n")
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith(("position_embedding_table", "pos_embedding")):
            torch.nn.init.normal_(tensor.data, std=0.5)
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            # Attention here has no 1 / sqrt(d) of its own; at first it would be a lottery, in which rounding decides.
            torch.nn.init.constant_(tensor.data, tensor.numel() ** -0.25)
        elif name.endswith("language_model.norm.weight"):
            tensor.data.mul_(8.0)  # answers that are sure of themselves tell faults from rounding
    made = folder / "made"
    model.save_pretrained(made)
    (made / "model.safetensors").rename(folder / "model.safetensors")
    for left in made.iterdir():
        left.unlink()
    made.rmdir()
    return folder


def adapter(base: Path, folder: Path, seed: int, towers: bool, rank: int = 8, scale: float = 2.0) -> Path:
    """A random LoRA adapter in peft's format for all projections of the language model, and of the towers."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        last = module.removesuffix(".linear").rpartition(".")[2]
        seen = "language_model" in name or (towers and "vision_tower.encoder" in name) or (towers and "embed_" in name)
        if not seen or weight.ndim != 2 or not last.endswith(("_proj", "embedding_projection")):
            continue
        rows, columns = weight.shape
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, columns, generator=draw) / columns**0.5
        tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, rank, generator=draw) * 0.02
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    about = {
        "peft_type": "LORA", "r": rank, "lora_alpha": scale * rank, "target_modules": modules, "bias": "none",
        "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "use_dora": False, "modules_to_save": None,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(about, indent=1) + "\n")
    return folder


def merge(state: dict[str, Tensor], folder: Path) -> None:
    """Adds an adapter to the weights of a model in transformers."""
    about = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    for name, low in tensors.items():
        if ".lora_A." in name:
            weight = state[name.removeprefix("base_model.model.").replace(".lora_A", "")]
            delta = tensors[name.replace(".lora_A.", ".lora_B.")] @ low * (about["lora_alpha"] / about["r"])
            weight += delta.to(weight)


def drafter(base: Path, folder: Path, seed: int = 1) -> Path:
    """A random drafter of the kind that is published with the suffix -assistant."""
    from transformers import AutoConfig, AutoModelForCausalLM

    about = json.loads((base / "config.json").read_text())
    text = {
        **about["text_config"],
        "num_hidden_layers": 4, "layer_types": [_SLIDING, _SLIDING, _SLIDING, _FULL], "num_kv_shared_layers": 4,
        "hidden_size": 256, "intermediate_size": 512, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0,
        "use_double_wide_mlp": False, "enable_moe_block": False, "dtype": "bfloat16",
    }  # fmt: skip
    folder.mkdir(parents=True)
    made = {
        "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "dtype": "bfloat16",
        "backbone_hidden_size": about["text_config"]["hidden_size"], "text_config": text, "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(made, indent=1) + "\n")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    model.save_pretrained(folder)
    return folder


def eagle3(base: Path, folder: Path, seed: int = 2) -> Path:
    """A random Eagle3 head for every second word: a layer of Llama's kind, over three layers' states of the model."""
    text = json.loads((base / "config.json").read_text())["text_config"]
    hidden, words = text["hidden_size"], text["vocab_size"]
    heads, head, wide, drafted = 4, 128, 1024, words // 2
    folder.mkdir(parents=True)
    made = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "dtype": "bfloat16", "hidden_size": hidden,
        "intermediate_size": wide, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": head, "vocab_size": words, "draft_vocab_size": drafted, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0,
        "bos_token_id": text["bos_token_id"], "eos_token_id": text["eos_token_id"], "target_hidden_size": hidden,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 4],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(made, indent=1) + "\n")
    draw = torch.Generator().manual_seed(seed)
    shapes = {
        "fc.weight": (hidden, 3 * hidden), "lm_head.weight": (drafted, hidden), "norm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (heads * head, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head), "midlayer.mlp.gate_proj.weight": (wide, hidden),
        "midlayer.mlp.up_proj.weight": (wide, hidden), "midlayer.mlp.down_proj.weight": (hidden, wide),
        "midlayer.hidden_norm.weight": (hidden,), "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
    }  # fmt: skip
    tensors = {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=draw) / shape[-1] ** 0.5
        for name, shape in shapes.items()
    }
    saved = {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
    saved["d2t"] = torch.arange(drafted)  # how far the model's word is from the head's
    saved["t2d"] = torch.arange(words) % 2 == 0
    save_file(saved, folder / "model.safetensors")
    return folder


def thinking(base: Path, folder: Path) -> Path:
    """The same model, which where it may think finds a thought begun: a random one begins none."""
    shutil.copytree(base, folder)
    template = folder / "chat_template.jinja"
    begun = "{%- if add_generation_prompt and enable_thinking -%}{{- '<|channel>' -}}{%- endif -%}"
    template.write_text(template.read_text() + begun)
    return folder


def quantised(base: Path, folder: Path, scheme: str) -> Path:
    """The same weights as compressed-tensors has them: `fp8`, `nvfp4` or `w4a16`. Only the language model's."""
    folder.mkdir(parents=True)
    for path in base.iterdir():
        if path.suffix not in (".safetensors", "") and path.name != "config.json":
            (folder / path.name).write_bytes(path.read_bytes())
    saved = dict[str, Tensor]()
    for name, weight in load_file(base / "model.safetensors").items():
        if _is_quantised(name, weight):
            saved |= {name.removesuffix("weight") + part: t for part, t in _PACKERS[scheme](weight.float())}
        else:
            saved[name] = weight
    save_file({name: tensor.contiguous() for name, tensor in saved.items()}, folder / "model.safetensors")
    about = json.loads((base / "config.json").read_text())
    towers = ["re:.*vision_tower.*", "re:.*audio_tower.*", "re:.*embed_vision.*", "re:.*embed_audio.*"]
    about["quantization_config"] = {
        "quant_method": "compressed-tensors", "quantization_status": "compressed", **_SCHEMES[scheme],
        "ignore": ["lm_head", "re:.*per_layer.*", "re:.*vision_embedder.*", *towers],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(about, indent=1) + "\n")
    return folder


def round_to_w4a16(state: dict[str, Tensor]) -> None:
    """Makes of the weights of a model in transformers what four bits leave of them."""
    for name, weight in state.items():
        if _is_quantised(name, weight):
            groups = weight.float().unflatten(1, (-1, 128))
            scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 7
            kept = (groups / scale).round().clamp(-8, 7) * scale.to(torch.bfloat16).float()
            weight.copy_(kept.flatten(1))


def _is_quantised(name: str, weight: Tensor) -> bool:
    layer = ".layers." in name and "language_model" in name and "per_layer" not in name
    return layer and weight.ndim == 2 and name.endswith("_proj.weight")


def _fp8(weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-8) / 448
    yield "weight", (weight / scale).to(torch.float8_e4m3fn)
    yield "weight_scale", scale.to(torch.bfloat16)


def _nvfp4(weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Four bits in groups of 16: a scale in 8 bits for each, and one for them all."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    whole = 448 * 6 / weight.abs().max()
    groups = weight.unflatten(1, (-1, 16))
    scale = (groups.abs().amax(-1) / 6 * whole).clamp(2**-9, 448).to(torch.float8_e4m3fn)
    scaled = groups / (scale.float() / whole)[..., None]
    codes = (scaled.abs()[..., None] - values).abs().argmin(-1) | ((scaled < 0).long() << 3)
    low, high = codes.flatten(1).unflatten(1, (-1, 2)).unbind(-1)
    yield "weight_packed", (low | high << 4).to(torch.uint8)
    yield "weight_scale", scale
    yield "weight_global_scale", whole.reshape(1)
    yield "input_global_scale", torch.tensor([448 * 6 / 16.0])


def _w4a16(weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Four bits in groups of 128, eight of them to a word."""
    groups = weight.unflatten(1, (-1, 128))
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-8) / 7
    codes = ((groups / scale).round().clamp(-8, 7) + 8).long().flatten(1).unflatten(1, (-1, 8))
    packed = sum(codes[..., i] << (4 * i) for i in range(8))
    assert isinstance(packed, Tensor)
    yield "weight_packed", torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    yield "weight_scale", scale.squeeze(-1).to(torch.bfloat16)
    yield "weight_shape", torch.tensor(weight.shape)


_PACKERS = {"fp8": _fp8, "nvfp4": _nvfp4, "w4a16": _w4a16}
_LINEAR = {"targets": ["Linear"], "output_activations": None}
_FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
_FP4 = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group"}
_SCHEMES: Mapping[str, dict[str, Any]] = {
    "fp8": {
        "format": "float-quantized",
        "config_groups": {
            "group_0": _LINEAR
            | {
                "weights": _FP8 | {"strategy": "channel", "dynamic": False},
                "input_activations": _FP8 | {"strategy": "token", "dynamic": True},
            }
        },
    },
    "nvfp4": {
        "format": "nvfp4-pack-quantized",
        "config_groups": {
            "group_0": _LINEAR
            | {"weights": _FP4 | {"dynamic": False}, "input_activations": _FP4 | {"dynamic": "local"}}
        },
    },
    "w4a16": {
        "format": "pack-quantized",
        "config_groups": {
            "group_0": _LINEAR
            | {
                "weights": {
                    "num_bits": 4, "type": "int", "symmetric": True, "group_size": 128, "strategy": "group",
                    "dynamic": False,
                },
                "input_activations": None,
            }
        },
    },
}  # fmt: skip
