"""Rows that write go on in the key-value blocks they have without the accounts of blocks being gone through.

vLLM's scheduler goes through them for each row in each step: what has left a window, what is missing, what is new, each
in every group of layers, of which Gemma 4 has up to six. A block holds 16 tokens or more, so that nothing comes of it
but in one step of as many. The accounts were a quarter of what vLLM's one thread did with pictures on an H200, and that
thread is what the GPU waits for. What leaves a window goes back when the next block is needed. (vLLM 0.32.0)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

SWITCH = "GEMMA4_ENGINE_BLOCKS"  # for vLLM's processes: `vllm` leaves the accounts as they are


def install() -> None:
    """Makes vLLM's accounts of blocks wait until a row needs one. Safe to call twice."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    if os.environ.get(SWITCH) != "vllm" and not hasattr(KVCacheManager.allocate_slots, "waits_for_need"):
        KVCacheManager.allocate_slots = waiting_for_need(KVCacheManager.allocate_slots)


def waiting_for_need(allocate_slots: Callable[..., Any]) -> Callable[..., Any]:
    """A manager's `allocate_slots` that does nothing for a row whose blocks have room for its tokens."""

    def allocate(
        self: Any, request: Any, num_new_tokens: int, *more: Any, num_lookahead_tokens: int = 0, **others: Any
    ) -> Any:
        # With nothing more than this it is asked for a row in the batch. Blocks to be found again are put on a list as
        # soon as they are full.
        if not more and not others and not self.enable_caching:
            tokens = request.num_computed_tokens + num_new_tokens + num_lookahead_tokens
            if tokens <= getattr(request, "room", 0):
                return self.empty_kv_cache_blocks
        blocks = allocate_slots(
            self, request, num_new_tokens, *more, num_lookahead_tokens=num_lookahead_tokens, **others
        )
        # A row that lost its blocks comes back by way of the other branch, with more than this said of it.
        request.room = 0 if blocks is None else _room(self, request.request_id)
        return blocks

    allocate.waits_for_need = True  # type: ignore[attr-defined]
    return allocate


def _room(manager: Any, request_id: str) -> int:
    """Tokens that a row's blocks hold in the group in which they hold least."""
    groups = manager.coordinator.single_type_managers
    return min((len(group.req_to_blocks.get(request_id, ())) * group.block_size for group in groups), default=0)
