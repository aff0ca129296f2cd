"""What vLLM is told: its environment before it is imported, and its engine arguments for batch work."""

from __future__ import annotations

import os
from typing import Any

from gemma4cli import resources
from gemma4cli.config import RunConfig
from gemma4cli.engine.plugin import OWNER
from gemma4cli.engine.vllm_features import feature_settings
from gemma4cli.errors import ModelError, UsageError
from gemma4cli.models import Model
from gemma4cli.records import Sampling

# Arguments of vLLM that follow from flags of ours, or on whose values the line relies.
OWNED = {
    "model": "--model",
    "tokenizer": "--model",
    "revision": "--model",
    "seed": "--seed",
    "mm_processor_kwargs": "--max-soft-tokens",
    "trust_remote_code": "nothing: code from a checkpoint is never run",
    "enable_log_requests": "-v",
    "disable_log_stats": "-v",
    "runner": "nothing",
    "reasoning_parser": "--thinking",
    "enable_lora": "--lora",
    "max_lora_rank": "--lora",
    "enable_tower_connector_lora": "--lora",
    "quantization": "--quantization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "speculative_config": "--speculative",
    "enable_prefix_caching": "--prefix-caching",
    "tensor_parallel_size": "--tensor-parallel",
    "pipeline_parallel_size": "--pipeline-parallel",
    "data_parallel_size": "--gpus",
}
CONTEXT = 8192  # tokens; beyond it KV memory goes to length that captions and transcripts do not use
MEMORY = 0.92  # the part of a GPU's memory that vLLM takes by itself
MOST_ITEM_TOKENS = 2496  # one video of 32 frames: the largest item that must fit a batch


def prepare_environment(verbose: bool, engines: int = 1) -> None:
    """What vLLM reads from the environment at import, for so many engines; a value that the user set stays."""
    settings = {
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": "INFO",
        # A fork of this process would copy locks that its threads hold.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        OWNER: str(os.getpid()),
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, min(4, resources.available_memory() // 2**30 // 8) // engines)),
        "TOKENIZERS_PARALLELISM": "false",
        # What an engine's processes leave when they are ended is cleared away, and said to be leaked.
        "PYTHONWARNINGS": "ignore:resource_tracker:UserWarning",
    }
    if not verbose:
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def engine_settings(config: RunConfig, model: Model, platform: Any) -> dict[str, Any]:
    """vLLM's engine arguments for batch work on this machine, the user's own over them."""
    settings: dict[str, Any] = {
        "model": model.location,
        "dtype": "bfloat16",
        "max_model_len": min(model.context, CONTEXT),
        "mm_processor_kwargs": {"max_soft_tokens": config.media.max_soft_tokens},
        # One pass over the data: no medium comes twice, so none is worth hashing.
        "mm_processor_cache_gb": 0,
        "seed": 0,
    }
    for recipe in config.asks(None):
        settings |= _asked(recipe.sampling, settings)
    capability = platform.get_device_capability() if platform.is_cuda() else None
    if platform.is_cpu():
        settings |= {"max_num_seqs": 16, "max_num_batched_tokens": 4096, "enforce_eager": True}
    elif platform.is_cuda():
        if capability is not None and capability.major < 8:
            raise ModelError(
                f"{platform.get_device_name()} computes no bfloat16, and Gemma 4 gives pad tokens in float16",
                "Use a GPU of compute capability 8.0 (Ampere) or later.",
            )
        settings |= {"max_num_seqs": 256, "max_num_batched_tokens": 16384}
        if config.gpus is not None and config.gpus.engines_on_one > 1:
            settings["gpu_memory_utilization"] = round(MEMORY / config.gpus.engines_on_one, 3)
    else:
        raise ModelError(
            "vLLM finds no accelerator here, and this build of it does not run on the CPU",
            "gemma4 doctor tells what is wrong. For the CPU: pip install 'gemma4cli[cpu]'",
        )
    if config.gpus_per_engine > 1:
        settings |= {
            "tensor_parallel_size": config.tensor_parallel,
            "pipeline_parallel_size": config.pipeline_parallel,
        }
    settings |= feature_settings(config, model, None if capability is None else _number(capability))
    for name, value in config.engine_args.items():
        both = isinstance(value, dict) and isinstance(settings.get(name), dict)
        settings[name] = {**settings[name], **value} if both else value
    # A drafter makes several tokens of a row at a time: vLLM knows how many.
    if platform.is_cuda() and not settings.keys() & {
        "cudagraph_capture_sizes",
        "compilation_config",
        "speculative_config",
    }:
        settings["cudagraph_capture_sizes"] = _graphs(settings["max_num_seqs"])
    if settings["max_num_batched_tokens"] < MOST_ITEM_TOKENS:
        raise UsageError(
            f"--engine-arg max_num_batched_tokens={settings['max_num_batched_tokens']} is too small",
            f"One video takes {MOST_ITEM_TOKENS} tokens, and an item must fit a batch.",
        )
    return settings


def _asked(sampling: Sampling, so_far: dict[str, Any]) -> dict[str, Any]:
    """What a way of drawing answers needs, beside what others need."""
    needed: dict[str, Any] = {}
    if sampling.thinking_budget is not None:
        needed["reasoning_parser"] = "gemma4"  # a constraint then holds for what follows the thoughts
    if sampling.logprobs and sampling.constraint is not None and sampling.constraint.choices is not None:
        # As many tokens as can begin a choice: each of its bytes may end one, or two, for a letter is a byte as well.
        beginnings = 2 * sum(len(choice.encode()) for choice in sampling.constraint.choices) + 8
        needed["max_logprobs"] = max(20, beginnings, so_far.get("max_logprobs", 0))
    return needed


def _number(capability: Any) -> float:
    """9.0 of a major and a minor number."""
    return float(capability.major) + float(capability.minor) / 10


def _graphs(most: int) -> list[int]:
    """Numbers of rows for which decoding is recorded. A job is at the largest, but for its end.

    vLLM's own choice has 51 sizes, and takes a minute of a start.
    """
    return sorted({*(2**i for i in range(6) if 2**i <= most), *range(64, most + 1, 32), most})
