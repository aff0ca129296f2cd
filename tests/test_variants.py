"""Families of models and adapters on real vLLM: two cases of scripts/check_variants, each a start of the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "check_variants"


@pytest.mark.slow
@pytest.mark.vllm
def test_experts_without_ears_and_adapters_by_row_answer_as_in_transformers(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--only", "26B-A4B,lora", "--jobs", "1", "--json", tmp_path / "results.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    results = json.loads((tmp_path / "results.json").read_text())
    assert [(result["case"], result["state"]) for result in results] == [("26B-A4B", "ok"), ("lora", "ok")], done.stdout


def test_the_small_checkpoints_have_what_the_families_are_told_by() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import _variants
    finally:
        sys.path.pop(0)
    made = {family: _variants.config(family) for family in _variants.FAMILIES}
    assert {family for family, config in made.items() if config["audio_config"]} == set(_variants.HEARS)
    assert made["12B"]["architectures"] == ["Gemma4UnifiedForConditionalGeneration"]
    assert made["26B-A4B"]["text_config"]["enable_moe_block"]
    both_ways = {f for f, config in made.items() if config["text_config"]["use_bidirectional_attention"] == "vision"}
    assert both_ways == {"12B", "26B-A4B", "31B"}
