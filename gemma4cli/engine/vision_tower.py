"""Pictures and frames through Gemma 4's vision tower: patches end to end, no padding, all pooled in one go.

The layers are those of transformers with vLLM's weights, compiled; flash attention keeps the pictures apart.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from gemma4cli.engine.end_to_end import compiled_layers, laid_out, sent, used_of

SCALE = 1 / 255  # as transformers' processor has it
PATCHES = 98_304  # at a time: a group of 32 rows (`admission`) with a picture of 280 tokens each, and some
ATTENTION = "gemma4cli_packed"


def encoded(model: Any, pixels: Any, positions: Any) -> list[Any]:
    """The embeddings of pictures, or frames: of each, `(its soft tokens, width of the language model)`.

    pixels: `(n, patches, 3 * 16 * 16)` in 0 to 1, or bytes, or one tensor a picture where sizes differ.
    positions: of each patch, column and row, `(n, patches, 2)` or a list as well; padding has -1 and is at the end.
    """
    import torch

    tower = model.vision_tower
    stacked = isinstance(positions, torch.Tensor)
    used = used_of(positions[..., 0] >= 0 if stacked else [position[:, 0] >= 0 for position in positions])
    square = tower.config.pooling_kernel_size**2
    soft: list[int] = [count // square for count in used]
    pooled = []
    for first, last in passes(used, _most(tower)):
        pooled.append(_pass(model, pixels[first:last], positions[first:last], used[first:last]))
    states = torch.cat(pooled).to(model.model_dtype)
    embeddings = model.embed_vision(inputs_embeds=states.unsqueeze(0)).squeeze(0)
    return list(embeddings.split(soft))


def floats(model: Any, pixels: Any) -> Any:
    """Pixels in 0 to 1, as vLLM's own way takes them."""
    import torch

    if not isinstance(pixels, torch.Tensor):
        return [floats(model, picture) for picture in pixels]
    return pixels.to(model.model_dtype).mul_(SCALE) if pixels.dtype == torch.uint8 else pixels


def device_of(model: Any) -> Any:
    """Where the tower's weights are."""
    return model.vision_tower.patch_embedder.input_proj.weight.device


def _most(tower: Any) -> int:
    """Patches that fit half of the free memory, at about what a compiled layer holds of each."""
    import torch

    config = tower.config
    if not torch.cuda.is_available():
        return PATCHES
    nbytes = 2 * (16 * config.hidden_size + 4 * config.intermediate_size)
    free, _ = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    room: int = (free + reserved) // 2 // nbytes
    return max(1, min(PATCHES, room))


def passes(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Ranges of pictures whose patches come to at most `most`; one picture at least in each."""
    first = total = 0
    for i, count in enumerate(counts):
        if i > first and total + count > most:
            yield first, i
            first, total = i, 0
        total += count
    if counts:
        yield first, len(counts)


def _pass(model: Any, pixels: Any, positions: Any, counts: list[int]) -> Any:
    """Pooled states of pictures, end to end, in float32."""
    import torch

    tower, device = model.vision_tower, device_of(model)
    picture, used = laid_out(counts, len(pixels[0]), device)
    if not isinstance(pixels, torch.Tensor):
        pixels = floats(model, pixels)  # each by its own type
    patches = floats(model, _end_to_end(pixels, counts, used)).unsqueeze(0)
    places = _end_to_end(positions, counts, used).unsqueeze(0)
    padding = torch.zeros(places.shape[:2], dtype=torch.bool, device=device)
    edges = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cpu").to(device, non_blocking=True)
    longest = torch.tensor(max(counts), dtype=torch.int32, device="cpu")  # where flash attention wants it
    states = tower.patch_embedder(patches, places, padding).to(model.model_dtype)
    rotary = tower.encoder.rotary_emb(states, places)
    own, tower.config._attn_implementation = tower.config._attn_implementation, _attention_name(tower.config.head_dim)
    try:
        for layer in compiled_layers(tower, tower.encoder.layers):
            states = layer(
                states,
                attention_mask=None,
                position_embeddings=rotary,
                position_ids=places,
                edges=edges,
                longest=longest,
            )
    finally:
        tower.config._attn_implementation = own
    return _pooled(tower, states.squeeze(0), places.squeeze(0), picture, len(counts))


def _end_to_end(given: Any, counts: list[int], used: Any) -> Any:
    """The used parts of rows one after another, on the GPU. used: their places, as of `laid_out`."""
    import torch

    if isinstance(given, torch.Tensor) and given.device == used.device:
        flat = given.flatten(0, 1)
        return flat if len(flat) == len(used) else flat[used]
    return sent(torch.cat([row[:count] for row, count in zip(given, counts, strict=True)]), used.device)


@functools.cache
def _attention_name(head_size: int) -> str:
    """What transformers knows `_attention` of this size by, once it has been told of it."""
    from transformers import AttentionInterface

    name = f"{ATTENTION}_{head_size}"
    AttentionInterface.register(name, _attention(head_size))
    return name


def _attention(head_size: int) -> Callable[..., Any]:
    """Attention within each picture, in the form that transformers asks of one: heads before patches."""
    import torch

    if torch.cuda.is_available():
        from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
        from vllm.v1.attention.ops.vit_attn_wrappers import vit_flash_attn_wrapper

        version = get_flash_attn_version(head_size=head_size)

        def flash(
            module: Any, query: Any, key: Any, value: Any, mask: Any, *, edges: Any, longest: Any, **options: Any
        ) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            out = vit_flash_attn_wrapper(q, k, v, 1, False, version, options["scaling"], edges, longest)
            return out, None

        return flash

    def apart(module: Any, query: Any, key: Any, value: Any, mask: Any, *, edges: Any, **options: Any) -> Any:
        parts = [
            torch.nn.functional.scaled_dot_product_attention(
                query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], scale=options["scaling"]
            )
            for a, b in pairwise(edges.tolist())
        ]
        return torch.cat(parts, dim=2).transpose(1, 2), None

    return apart


def _pooled(tower: Any, states: Any, places: Any, picture: Any, n: int) -> Any:
    """The mean of each square of patches, scaled as transformers' pooler does: `(soft tokens, width)` in float32.

    picture: to which of the `n` each patch belongs.
    """
    import torch

    config = tower.config
    side = config.pooling_kernel_size
    x, y = places[:, 0], places[:, 1]
    widest = torch.zeros(n, dtype=x.dtype, device=states.device).scatter_reduce(0, picture, x, "amax") + 1
    square = x // side + (widest // side)[picture] * (y // side)
    # Every square is full, for sides of pictures are whole squares: put in order, nine make one.
    order = (square + picture * (square.numel() + 1)).argsort(stable=True)
    means = states[order].view(-1, side * side, states.shape[-1]).float().mean(dim=1)
    scaled = means.to(states.dtype).float() * config.hidden_size**0.5
    if getattr(config, "standardize", False):
        scaled = (scaled - tower.std_bias) * tower.std_scale
    return scaled
