"""Features of the engine as its arguments, and where they are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4cli import models
from gemma4cli.engine.vllm_features import LONG_SYSTEM, feature_settings
from gemma4cli.errors import ModelError, UsageError
from gemma4cli.models import Model
from gemma4cli.overrides import Overrides, build

TINY = models.find("tiny")


def settings(capability: float | None = 9.0, model: Model = TINY, **overrides: Any) -> dict[str, Any]:
    return feature_settings(build("annotate", Overrides(prompt="?", **overrides)), model, capability)


def stored(**about: Any) -> Model:
    return replace(TINY, config={**TINY.config, "quantization_config": about})


def group(**weights: Any) -> dict[str, Any]:
    return {"config_groups": {"group_0": {"weights": weights}}}


NVFP4 = stored(quant_method="compressed-tensors", format="nvfp4-pack-quantized", **group(num_bits=4, type="float"))


def test_nothing_asked_for_is_nothing_set() -> None:
    usual = {"enable_prefix_caching": False, "kv_sharing_fast_prefill": True}
    assert settings() == settings(None) == usual


def test_a_beginning_in_common_is_kept_where_that_is_worth_it() -> None:
    assert settings(system="x" * LONG_SYSTEM)["enable_prefix_caching"]
    assert settings(n=4)["enable_prefix_caching"]
    assert settings(choices="a,b", logprobs=True)["enable_prefix_caching"]
    assert not settings(n=4, prefix_caching=False)["enable_prefix_caching"]
    assert settings(prefix_caching=True)["enable_prefix_caching"]


@pytest.mark.parametrize(
    ("overrides", "key", "least"),
    [
        ({"quantization": "fp8"}, "quantization", 8.9),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype", 8.9),
        ({"encoder_cudagraph": True}, "compilation_config", 8.0),
    ],
)
def test_what_needs_a_gpu_says_which(
    overrides: dict[str, Any], key: str, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert key in settings(least, **overrides)
    monkeypatch.setattr("torch.cpu._is_avx512_supported", lambda: False)
    monkeypatch.setattr("torch.cpu._is_amx_tile_supported", lambda: False)
    with pytest.raises(UsageError, match=r"needs a GPU, (and there is none here|or a processor with AVX-512)$"):
        settings(None, **overrides)
    with pytest.raises(UsageError, match=f"compute capability {least:g}; this one has 7.5"):
        settings(7.5, **overrides)


def test_keys_and_values_take_8_bits_on_a_processor_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cpu._is_avx512_supported", lambda: True)
    assert settings(None, kv_cache_dtype="fp8")["kv_cache_dtype"] == "fp8"


def test_layers_that_are_given_pixels_by_the_type_of_their_weights_keep_theirs() -> None:
    from fnmatch import fnmatch

    made = settings(9.0, quantization="fp8")
    left = made["quantization_config"]["ignore"]
    names = (
        "vision_tower.patch_embedder.input_proj",
        "embed_vision.embedding_projection",
        "vision_embedder.patch_dense",
    )
    assert all(any(fnmatch(name, pattern) for pattern in left) for name in names)
    assert not any(fnmatch("vision_tower.encoder.layers.0.mlp.up_proj", pattern) for pattern in left)


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
def test_what_weights_become_is_known_to_vllm() -> None:
    from vllm.config.quantization import resolve_quantization_config

    made = settings(9.0, quantization="fp8")
    resolved = resolve_quantization_config(made["quantization"], made["quantization_config"])
    assert resolved is not None
    assert resolved.linear is not None
    assert resolved.moe is not None
    assert resolved.ignore == made["quantization_config"]["ignore"]


def test_weights_are_not_quantised_twice_and_not_where_they_cannot_be_computed() -> None:
    with pytest.raises(UsageError, match=r"is stored as NVFP4 \(compressed-tensors\) already"):
        settings(model=NVFP4, quantization="fp8")
    with pytest.raises(ModelError, match="which the CPU build of vLLM does not compute"):
        settings(None, model=NVFP4)
    assert "quantization" not in settings(model=NVFP4)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"quant_method": "compressed-tensors", **group(num_bits=8, type="float")}, "FP8 (compressed-tensors)"),
        ({"quant_method": "compressed-tensors", **group(num_bits=4, type="int")}, "w4a16 (compressed-tensors)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4 (modelopt)"),
        ({"quant_method": "gptq", "bits": 4}, "w4a16 (gptq)"),
        ({"quant_method": "fp8"}, "FP8 (fp8)"),
        ({"quant_method": "other"}, "other"),
        ({}, None),
    ],
)
def test_what_weights_are_stored_as_is_read_from_the_configuration(about: dict[str, Any], said: str | None) -> None:
    assert stored(**about).quantization == said


def test_pictures_that_see_all_of_themselves_are_not_cut() -> None:
    text = {**TINY.config["text_config"], "use_bidirectional_attention": "vision"}
    assert settings(model=replace(TINY, config={**TINY.config, "text_config": text}))["disable_chunked_mm_input"]


def drafter(folder: Path, **about: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(about))
    return str(folder)


def test_drafters_are_told_by_their_configuration_and_have_to_fit(tmp_path: Path) -> None:
    assistant = drafter(tmp_path / "a", model_type="gemma4_assistant", backbone_hidden_size=128)
    eagle = drafter(tmp_path / "e", architectures=["LlamaForCausalLMEagle3"], hidden_size=128)
    found = settings(speculative=assistant, drafted=2)["speculative_config"]
    assert "kv_sharing_fast_prefill" not in settings(speculative=assistant)
    assert found == {"model": assistant, "method": "mtp", "num_speculative_tokens": 2}
    assert settings(speculative=eagle)["speculative_config"]["method"] == "eagle3"
    for name, said in (
        (
            drafter(tmp_path / "w", model_type="gemma4_assistant", backbone_hidden_size=1536),
            "1536 wide, and tiny is 128",
        ),
        (drafter(tmp_path / "n", architectures=["LlamaForCausalLM"]), "is no drafter"),
        ("auto", "no drafter is known"),
        (str(tmp_path / "gone"), "no such folder"),
    ):
        with pytest.raises(UsageError, match=said):
            settings(speculative=name)
    with pytest.raises(UsageError, match="drafts by mtp"):
        settings(speculative=assistant, speculative_method="eagle3")
    assert (
        settings(None, speculative=assistant)["speculative_config"]
        == settings(speculative=assistant)["speculative_config"]
    )


def layered(kinds: str, shared: int) -> Model:
    """A model of sliding (s) and full (f) layers, the last of which read what earlier ones keep."""
    names = [{"s": "sliding_attention", "f": "full_attention"}[kind] for kind in kinds]
    text = {"layer_types": names, "num_kv_shared_layers": shared, "num_hidden_layers": len(names)}
    return replace(TINY, config={**TINY.config, "text_config": text})


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("kinds", "shared", "stages", "read"),
    [
        ("ssssf" * 7, 20, 2, 13),  # E2B: layers from 18 on
        ("sssssf" * 7, 18, 2, None),  # E4B: layers from 21 on
        ("sssssf" * 7, 18, 3, 22),
        ("sssssf" * 5, 0, 2, None),
    ],
)
def test_layers_are_not_parted_from_those_whose_keys_they_read(
    kinds: str, shared: int, stages: int, read: int | None
) -> None:
    if read is None:
        settings(model=layered(kinds, shared), pipeline_parallel=stages)
        return
    with pytest.raises(UsageError, match=f"the last {shared} layers of tiny read what layer {read} keeps"):
        settings(model=layered(kinds, shared), pipeline_parallel=stages)


def test_pipelines_are_refused_where_vllm_loses_what_is_handed_on() -> None:
    with pytest.raises(UsageError, match="--pipeline-parallel needs GPUs"):
        settings(None, pipeline_parallel=2)
