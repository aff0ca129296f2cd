"""Rows have room for all of their tokens at every step, whatever is not gone through on the way."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.engine import blocks

WINDOW = 64
POOL = 600

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]


def manager(sliding: int) -> Any:
    """vLLM's own, for layers that see everything and groups of layers that see a window."""
    import torch
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec

    shape: dict[str, Any] = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
    groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(block_size=16, **shape))]
    spec = SlidingWindowSpec(block_size=32, sliding_window=WINDOW, **shape)
    groups += [KVCacheGroupSpec([f"window {i}"], spec) for i in range(sliding)]
    return KVCacheManager(
        KVCacheConfig(num_blocks=POOL, kv_cache_tensors=[], kv_cache_groups=groups),
        max_model_len=2048,
        scheduler_block_size=32,
        hash_block_size=16,
        enable_caching=False,
    )


def row(number: int, prompt: int) -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=1000)
    return Request(request_id=str(number), prompt_token_ids=[1] * prompt, sampling_params=params, pooling_params=None)


def held(manager: Any, rows: list[Any], ahead: int) -> set[int]:
    """The blocks that rows hold, after a look at whether these are theirs alone and enough for what they have."""
    taken: list[int] = []
    for own in rows:
        for group, each in enumerate(manager.coordinator.single_type_managers):
            table = each.req_to_blocks[own.request_id]
            assert len(table) * each.block_size >= own.num_computed_tokens + ahead
            first = 0 if group == 0 else max(0, own.num_computed_tokens + 1 - WINDOW) // each.block_size
            assert not any(block.is_null for block in table[first:])
            taken += [block.block_id for block in table if not block.is_null]
    assert len(set(taken)) == len(taken)
    return set(taken)


@settings(deadline=None, max_examples=40)
@given(sliding=st.integers(0, 3), seed=st.integers(0, 2**32), ahead=st.integers(0, 3))
def test_rows_hold_what_they_need_and_give_all_of_it_back(sliding: int, seed: int, ahead: int) -> None:
    blocks.install()
    accounts, rng = manager(sliding), random.Random(seed)
    whole = accounts.block_pool.get_num_free_blocks()
    rows: list[Any] = []
    for number in range(400):
        if rng.random() < 0.1 and len(rows) < 12:
            new = row(number, rng.randrange(1, 200))
            part = rng.randrange(1, new.num_prompt_tokens + 1)
            empty = accounts.empty_kv_cache_blocks
            if accounts.allocate_slots(new, part, new_computed_blocks=empty, num_lookahead_tokens=ahead) is not None:
                new.num_computed_tokens = part
                rows.append(new)
        for own in list(rows):
            tokens = min(max(1, own.num_prompt_tokens - own.num_computed_tokens), rng.randrange(1, 50))
            if accounts.allocate_slots(own, tokens, num_lookahead_tokens=ahead) is None or rng.random() < 0.01:
                accounts.free(own)
                rows.remove(own)
                continue
            own.num_computed_tokens += tokens
            if own.num_computed_tokens >= own.num_prompt_tokens:
                own.append_output_token_ids(1)
        assert len(held(accounts, rows, ahead)) == whole - accounts.block_pool.get_num_free_blocks()
    for own in rows:
        accounts.free(own)
    assert accounts.block_pool.get_num_free_blocks() == whole


def test_between_blocks_nothing_is_gone_through() -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    blocks.install()
    blocks.install()
    accounts, own = manager(2), row(0, 100)
    looked = 0
    through = accounts.coordinator.remove_skipped_blocks

    def counting(*args: Any, **more: Any) -> Any:
        nonlocal looked
        looked += 1
        return through(*args, **more)

    accounts.coordinator.remove_skipped_blocks = counting
    accounts.allocate_slots(own, 100, new_computed_blocks=accounts.empty_kv_cache_blocks)
    for own.num_computed_tokens in range(100, 260):
        assert accounts.allocate_slots(own, 1) is not None
        own.append_output_token_ids(1)
    assert looked == 1 + 160 // 16
    assert hasattr(KVCacheManager.allocate_slots, "waits_for_need")
