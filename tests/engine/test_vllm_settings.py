"""What is refused before vLLM loads anything."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gemma4cli import models
from gemma4cli.engine.vllm_settings import engine_settings
from gemma4cli.errors import ModelError, UsageError
from gemma4cli.overrides import Overrides, build


def platform(kind: str, major: int = 9) -> SimpleNamespace:
    return SimpleNamespace(
        is_cpu=lambda: kind == "cpu",
        is_cuda=lambda: kind == "cuda",
        get_device_capability=lambda: SimpleNamespace(major=major, minor=0),
        get_device_name=lambda: "Some GPU",
    )


def settings(where: SimpleNamespace, *engine_args: str, **overrides: object) -> dict:
    run = build("caption", Overrides(model="tiny", engine_args=engine_args, **overrides))  # type: ignore[arg-type]
    return engine_settings(run, models.find("tiny"), where)


def test_a_gpu_without_bfloat16_is_refused_with_the_reason() -> None:
    with pytest.raises(ModelError, match="Some GPU computes no bfloat16") as refusal:
        settings(platform("cuda", major=7))
    assert "8.0" in refusal.value.hint


def test_a_machine_without_anything_to_run_on_is_told_what_to_do() -> None:
    with pytest.raises(ModelError, match="no accelerator") as refusal:
        settings(platform("none"))
    assert "gemma4 doctor" in refusal.value.hint


def test_the_engine_is_started_with_the_budget_that_the_run_asks_for() -> None:
    assert settings(platform("cuda"), max_soft_tokens=1120)["mm_processor_kwargs"] == {"max_soft_tokens": 1120}


def test_the_users_arguments_win_and_too_small_a_batch_is_refused() -> None:
    assert settings(platform("cpu"), "max_num_seqs=3")["max_num_seqs"] == 3
    with pytest.raises(UsageError, match="max_num_batched_tokens=1024 is too small"):
        settings(platform("cpu"), "max_num_batched_tokens=1024")


def test_engines_on_one_gpu_share_its_memory() -> None:
    assert settings(platform("cuda"), gpus="0,1,0,1")["gpu_memory_utilization"] == 0.46
    assert "gpu_memory_utilization" not in settings(platform("cuda"), gpus="0,1")
    assert settings(platform("cuda"), "gpu_memory_utilization=0.3", gpus="0,0")["gpu_memory_utilization"] == 0.3


@pytest.mark.parametrize("most", [1, 3, 48, 256, 300])
def test_graphs_reach_the_largest_batch_and_the_users_own_win(most: int) -> None:
    graphs = settings(platform("cuda"), f"max_num_seqs={most}")["cudagraph_capture_sizes"]
    assert graphs == sorted(set(graphs))
    assert (graphs[0], graphs[-1]) == (1, most)
    assert settings(platform("cuda"), "cudagraph_capture_sizes=[1, 8]")["cudagraph_capture_sizes"] == [1, 8]
    assert "cudagraph_capture_sizes" not in settings(platform("cpu"))


def test_the_last_layers_read_of_a_prompt_what_they_must_and_no_more_unless_something_needs_the_rest() -> None:
    assert settings(platform("cpu"))["kv_sharing_fast_prefill"] is True
    assert settings(platform("cuda"), "kv_sharing_fast_prefill=false")["kv_sharing_fast_prefill"] is False
    tiny = models.find("tiny")
    layers = {"layer_types": [*["sliding_attention"] * 5, "full_attention"] * 7, "num_kv_shared_layers": 18}
    model = replace(tiny, config={**tiny.config, "text_config": {**layers, "num_hidden_layers": 42}})
    run = build("caption", Overrides(model="tiny", pipeline_parallel=2))
    assert model.shares_kv
    assert "kv_sharing_fast_prefill" not in engine_settings(run, model, platform("cuda"))


@pytest.mark.parametrize(
    ("architecture", "shared", "expected"),
    [
        ("Gemma4ForConditionalGeneration", 18, True),
        ("Gemma4ForConditionalGeneration", 0, False),
        ("Gemma4UnifiedForConditionalGeneration", 18, False),
    ],
)
def test_which_models_share_keys_and_values(architecture: str, shared: int, expected: bool) -> None:
    stored = {"architectures": [architecture], "text_config": {"num_kv_shared_layers": shared}}
    assert replace(models.find("tiny"), config=stored).shares_kv is expected
