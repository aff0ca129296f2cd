"""Adapters, quantisation, drafters and caches as vLLM's engine arguments, refused where this machine cannot do them."""

from __future__ import annotations

from typing import Any

from gemma4cli import adapters, drafters
from gemma4cli.config import RunConfig
from gemma4cli.errors import ModelError, UsageError
from gemma4cli.features import lacking
from gemma4cli.models import Model

LONG_SYSTEM = 1024  # characters of a system prompt from which on it is computed once for all rows
MOST_ADAPTERS = 8  # in one batch; others wait on the host
_ONLINE = {"fp8": "fp8_per_tensor"}  # vLLM's names for what it makes of weights while it loads them
# transformers gives these layers what goes in by the type of their weights, and of pixels 8 bits would be left.
_AS_THEY_ARE = ("*.patch_embedder.input_proj", "*.patch_dense", "*.embedding_projection")


def feature_settings(config: RunConfig, model: Model, capability: float | None) -> dict[str, Any]:
    """vLLM's engine arguments for what a run uses beyond the usual.

    capability: of the GPU, such as 9.0; None is the CPU.

    Raises:
        UsageError: a flag that cannot work here, or not with this model.
        ModelError: a checkpoint that cannot be computed here.
    """
    features = config.features
    settings: dict[str, Any] = {"enable_prefix_caching": _prefix_caching(config)}
    _refuse_stored(model, capability)
    if config.pipeline_parallel > 1:
        _refuse_stages(config.pipeline_parallel, model, capability)
    if features.quantization is not None:
        if model.quantization is not None:
            message = f"--quantization {features.quantization}: {model.name} is stored as {model.quantization} already"
            raise UsageError(message, "Leave it out.")
        _needs("--quantization", features.quantization, capability)
        settings |= {
            "quantization": _ONLINE[features.quantization],
            "quantization_config": {"ignore": list(_AS_THEY_ARE)},
        }
    if features.kv_cache_dtype not in (None, "auto"):
        _needs("--kv-cache-dtype", features.kv_cache_dtype, capability)
        settings["kv_cache_dtype"] = features.kv_cache_dtype
    if features.encoder_cudagraph:
        _needs("--encoder-cudagraph", None, capability)
        if (model.config.get("vision_config") or {}).get("num_hidden_layers") is None:
            raise UsageError(f"--encoder-cudagraph: {model.name} has no towers to record", "Leave it out.")
        settings["compilation_config"] = {"cudagraph_mm_encoder": True}
    drafter = drafters.find(features, model)
    if drafter is not None:
        settings["speculative_config"] = {
            "model": drafter.location,
            "method": drafter.method,
            "num_speculative_tokens": features.drafted,
        }
    if features.loras:
        loaded = tuple(adapters.load(name, path, model) for name, path in features.loras)
        settings |= {
            "enable_lora": True,
            "max_lora_rank": adapters.room(loaded),
            "max_loras": min(len(loaded), MOST_ADAPTERS),
            "max_cpu_loras": len(loaded),
            "enable_tower_connector_lora": any(adapter.towers for adapter in loaded),
        }
    # Drafters want every token of a prompt, adapters are told by places in the whole batch, and vLLM's way through the
    # last layers alone knows nothing of stages.
    if model.shares_kv and drafter is None and not features.loras and config.pipeline_parallel == 1:
        settings["kv_sharing_fast_prefill"] = True
    if model.bidirectional:
        settings["disable_chunked_mm_input"] = True  # an image that is read in parts would not see all of itself
    return settings


def _prefix_caching(config: RunConfig) -> bool:
    """Whether prompts have a beginning in common that is worth keeping: else hashing them is for nothing.

    What is asked of a row in several ways begins with the same media; samples have all of the prompt in common, and
    all rows begin with the examples.
    """
    if config.features.prefix_caching is not None:
        return config.features.prefix_caching
    asks = config.asks(None)
    return (
        len(asks) > 1
        or bool(config.examples)
        or any(
            (ask.sampling.n or 1) > 1 or ask.sampling.scored or len(ask.prompts.system) >= LONG_SYSTEM for ask in asks
        )
    )


def _refuse_stored(model: Model, capability: float | None) -> None:
    stored = model.quantization or ""
    if capability is None and stored.startswith("NVFP4"):
        raise ModelError(
            f"{model.name} is stored as {stored}, which the CPU build of vLLM does not compute",
            "Take the model as it was published in bfloat16, or a GPU.",
        )


def _refuse_stages(count: int, model: Model, capability: float | None) -> None:
    if capability is None:
        message = "--pipeline-parallel needs GPUs: vLLM's CPU build loses what one part of the layers hands to the next"
        raise UsageError(message, "Take --tensor-parallel, or leave it out.")
    text = model.config.get("text_config") or {}
    kinds, shared = text.get("layer_types") or (), text.get("num_kv_shared_layers") or 0
    if not kinds or not shared:
        return
    from vllm.distributed.utils import get_pp_indices

    own = kinds[:-shared]
    read = min(max(i for i, kind in enumerate(own) if kind == each) for each in set(kinds[-shared:]))
    first, _ = get_pp_indices(len(kinds), count - 1, count)
    if first > read:
        raise UsageError(
            f"--pipeline-parallel {count}: the last {shared} layers of {model.name} read what layer {read} keeps, "
            f"and layers from {first} on would be on another GPU",
            "Take --tensor-parallel.",
        )


def _needs(flag: str, value: str | None, capability: float | None) -> None:
    lacks = lacking(flag, capability)
    if lacks is not None:
        raise UsageError(f"{flag} {value} needs {lacks}" if value else f"{flag} needs {lacks}", "Leave it out.")
