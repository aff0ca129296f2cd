"""Gemma 4's vision and audio towers without padding and compiled, in vLLM's processes on a GPU.

vLLM 0.32 runs the towers of transformers as they are: op by op, each a pass over memory, with padded pictures under a
mask, pooled one by one. On an H200 that is 14 of the 21 ms that a picture takes. Here the patches of many pictures lie
end to end, flash attention keeps them apart, layers are compiled, and all are pooled in one go. The layers themselves
are still those of transformers with vLLM's weights. `scripts/check_towers` compares and measures.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

SWITCH = "GEMMA4_ENGINE_TOWERS"  # for vLLM's processes: `vllm` leaves the towers to it
SCALE = 1 / 255  # as transformers' processor has it
PATCHES = 65_536  # at a time, 26 pictures of 280 tokens: enough to fill a GPU
ATTENTION = "gemma4cli_packed"
FEW = 2  # pictures that are encoded both ways at first
ALLOWED = 0.1  # mean difference over mean size; bfloat16 alone comes to 1 or 2%, mixed up pictures to more than 100%


def wanted() -> bool:
    """Whether vLLM's processes are to encode by this module: on a GPU, unless the switch is set to `vllm`."""
    from vllm.platforms import current_platform

    by = os.environ.get(SWITCH, "")
    return by == "packed" or (by != "vllm" and current_platform.is_cuda())


def take_bytes(vllm_config: Any) -> bool:
    """Whether pixels may come as bytes: half of what they are in bfloat16, on every way from a file to the GPU."""
    lora = vllm_config.lora_config
    adapted = lora is not None and getattr(lora, "enable_tower_connector_lora", False)
    return wanted() and not adapted and not vllm_config.compilation_config.cudagraph_mm_encoder


def install() -> None:
    """Makes vLLM's Gemma 4 encode by this module. Safe to call twice."""
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Gemma4
    from vllm.model_executor.models.gemma4_mm import batch_audio_features

    if hasattr(Gemma4, "packs_patches"):
        return
    images, videos, sounds = Gemma4._process_image_input, Gemma4._process_video_input, Gemma4._process_audio_input

    def image_input(model: Any, given: Any) -> list[Any]:
        pixels, places = given["pixel_values"], given["pixel_position_ids"]

        def plainly(few: int | None = None) -> Any:
            held = type(given)(pixel_values=_floats(model, pixels[:few]), pixel_position_ids=places[:few])
            return images(model, held)

        if _agree(model, "image", lambda: encoded(model, pixels[:FEW], places[:FEW]), lambda: plainly(FEW)):
            return encoded(model, pixels, places)
        return plainly()  # type: ignore[no-any-return]

    def video_input(model: Any, given: Any) -> list[Any]:
        import torch

        pixels, places = given["pixel_values_videos"], given["pixel_position_ids_videos"]
        counts = [int(count) for count in given["video_frame_counts"]]

        def packed(few: int | None = None) -> list[Any]:
            frames = sum(counts[:few])
            made = iter(encoded(model, pixels[:frames], places[:frames]))
            return [torch.cat(list(islice(made, count))) for count in counts[:few]]

        def plainly(few: int | None = None) -> Any:
            frames = sum(counts[:few])
            held = type(given)(
                pixel_values_videos=_floats(model, pixels[:frames]),
                pixel_position_ids_videos=places[:frames],
                video_frame_counts=given["video_frame_counts"][:few],
            )
            return videos(model, held)

        if _agree(model, "video", lambda: packed(1), lambda: plainly(1)):
            return packed()
        return plainly()  # type: ignore[no-any-return]

    def audio_input(model: Any, given: Any) -> list[Any]:
        def hear() -> list[Any]:
            return heard(model, *batch_audio_features(given["input_features_padded"], given["input_features_mask"]))

        if _agree(model, "audio", hear, lambda: sounds(model, given)):
            return hear()
        return sounds(model, given)  # type: ignore[no-any-return]

    Gemma4.packs_patches = True
    Gemma4._process_image_input = image_input
    Gemma4._process_video_input = video_input
    Gemma4._process_audio_input = audio_input


def _floats(model: Any, pixels: Any) -> Any:
    """Pixels in 0 to 1, as vLLM's own way takes them."""
    import torch

    if not isinstance(pixels, torch.Tensor):
        return [_floats(model, picture) for picture in pixels]
    return pixels.to(model.model_dtype).mul_(SCALE) if pixels.dtype == torch.uint8 else pixels


def _agree(model: Any, kind: str, packed: Callable[[], list[Any]], plainly: Callable[[], list[Any]]) -> bool:
    """Whether this module encodes a kind of media: where its first ones come out as vLLM's own way makes them.

    On a machine where a kernel is missing, or wrong, the job goes on in vLLM's way, and the log says so.
    """
    # An adapter of the towers maps rows to adapters by their places in vLLM's own batches.
    if getattr(model, "_enable_mm_lora", False):
        return False
    verdicts = model.__dict__.setdefault("encodes_packed", {})
    if kind not in verdicts:
        import torch
        from vllm.logger import init_logger

        expected = torch.cat(list(plainly())).float()
        try:
            off = float((torch.cat(packed()).float() - expected).abs().mean() / expected.abs().mean().clamp(min=1e-6))
            reason = f"embeddings are off by {off:.1%}"
        except Exception as error:  # whatever a compiler or a kernel may say
            off, reason = math.inf, f"{type(error).__name__}: {error}"
        verdicts[kind] = off <= ALLOWED
        if not verdicts[kind]:
            for layer in getattr(model.audio_tower, "layers", ()) if kind == "audio" else ():
                layer.__dict__.pop("forward", None)
            init_logger("vllm.gemma4cli").warning("The %s tower runs in vLLM's own, slower way: %s", kind, reason)
    return bool(verdicts[kind])


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    if not torch.cuda.is_available():
        return function
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def encoded(model: Any, pixels: Any, positions: Any) -> list[Any]:
    """The embeddings of pictures, or frames: of each, `(its soft tokens, width of the language model)`.

    pixels: `(n, patches, 3 * 16 * 16)` in 0 to 1, or bytes, or one tensor a picture where sizes differ.
    positions: of each patch, column and row, `(n, patches, 2)` or a list as well; padding has -1.
    """
    import torch

    tower = model.vision_tower
    if isinstance(positions, torch.Tensor):
        used = (positions[..., 0] >= 0).sum(dim=1).tolist()
    else:
        used = torch.stack([(position[:, 0] >= 0).sum() for position in positions]).tolist()
    square = tower.config.pooling_kernel_size**2
    soft: list[int] = [count // square for count in used]
    pooled = []
    for first, last in _passes(used, _most(tower)):
        pooled.append(_pass(model, pixels[first:last], positions[first:last], used[first:last]))
    states = torch.cat(pooled).to(model.model_dtype)
    embeddings = model.embed_vision(inputs_embeds=states.unsqueeze(0)).squeeze(0)
    return list(embeddings.split(soft))


def heard(model: Any, features: Any, masks: Any) -> list[Any]:
    """The embeddings of sounds: of each, `(its soft tokens, width of the language model)`.

    features: log-mel `(n, frames, 128)`.  masks: which frames are sound, `(n, frames)`.
    """
    import torch

    tower, n = model.audio_tower, len(features)
    if not hasattr(tower, "compiled_layers"):
        tower.compiled_layers = True
        for layer in tower.layers:
            _ = layer.lconv1d.depthwise_conv1d.left_pad  # cached: its first reading takes a lock, where compilers stop
            layer.forward = _compiled(layer.forward)
    # One sound, one block, or nothing but full blocks: a compiler would make a special case of each, in mid-job.
    block = 4 * tower.config.attention_chunk_size  # two convolutions make one token of four frames
    frames = features.shape[1]
    more = max(0, block + 4 - frames)
    if not -(-(frames + more) // 4) % tower.config.attention_chunk_size:
        more += 4
    beside = (0, more, 0, 1 if n == 1 else 0)
    features = torch.nn.functional.pad(features, (0, 0, *beside))
    masks = torch.nn.functional.pad(masks, beside)
    output = tower(features, masks)
    states, kept = output.last_hidden_state[:n], output.attention_mask[:n]
    counts = kept.sum(dim=1).tolist()
    return list(model.embed_audio(inputs_embeds=states[kept].unsqueeze(0)).squeeze(0).split(counts))


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


def _passes(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
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

    tower, device = model.vision_tower, positions[0].device
    # Padding is at the end of a picture.
    patches = torch.cat([picture[:count] for picture, count in zip(pixels, counts, strict=True)]).unsqueeze(0)
    patches = _floats(model, patches)
    places = torch.cat([position[:count] for position, count in zip(positions, counts, strict=True)]).unsqueeze(0)
    padding = torch.zeros(places.shape[:2], dtype=torch.bool, device=device)
    edges = torch.tensor([0, *accumulate(counts)], dtype=torch.int32).to(device, non_blocking=True)
    longest = torch.tensor(max(counts), dtype=torch.int32)  # on the CPU, where flash attention wants it
    states = tower.patch_embedder(patches, places, padding).to(model.model_dtype)
    rotary = tower.encoder.rotary_emb(states, places)
    own, tower.config._attn_implementation = tower.config._attn_implementation, ATTENTION
    try:
        for layer in _layers(tower):
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
    return _pooled(tower, states.squeeze(0), places.squeeze(0), counts)


def _layers(tower: Any) -> tuple[Callable[..., Any], ...]:
    if not hasattr(tower, "packed_layers"):
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, _attention(tower.config.head_dim))
        # In a tuple, or the tower would count its layers twice.
        tower.packed_layers = tuple(_compiled(layer.forward) for layer in tower.encoder.layers)
    layers: tuple[Callable[..., Any], ...] = tower.packed_layers
    return layers


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


def _pooled(tower: Any, states: Any, places: Any, counts: list[int]) -> Any:
    """The mean of each square of patches, scaled as transformers' pooler does: `(soft tokens, width)` in float32."""
    import torch

    config, device = tower.config, states.device
    side = config.pooling_kernel_size
    sizes = torch.tensor(counts).to(device, non_blocking=True)
    picture = torch.repeat_interleave(torch.arange(len(counts), device=device), sizes, output_size=len(states))
    x, y = places[:, 0], places[:, 1]
    widest = torch.zeros(len(counts), dtype=x.dtype, device=device).scatter_reduce(0, picture, x, "amax") + 1
    square = x // side + (widest // side)[picture] * (y // side)
    # Every square is full, for sides of pictures are whole squares: put in order, nine make one.
    order = (square + picture * (square.numel() + 1)).argsort(stable=True)
    means = states[order].view(-1, side * side, states.shape[-1]).float().mean(dim=1)
    scaled = means.to(states.dtype).float() * config.hidden_size**0.5
    if getattr(config, "standardize", False):
        scaled = (scaled - tower.std_bias) * tower.std_scale
    return scaled
