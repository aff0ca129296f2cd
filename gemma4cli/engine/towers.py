"""Gemma 4's vision and audio towers without padding and compiled, in vLLM's processes on a GPU.

vLLM 0.32 runs the towers of transformers as they are: op by op, each a pass over memory, with padded pictures under a
mask, pooled one by one. On an H200 that is 14 of the 21 ms that a picture takes. Here the patches of many pictures lie
end to end, flash attention keeps them apart, layers are compiled, and all are pooled in one go. The layers themselves
are still those of transformers with vLLM's weights. `scripts/check_towers` compares and measures.

Nothing here asks the GPU for a number: how much there is of each medium is known from what stayed on the CPU, and so
the CPU runs ahead and lays out the next step meanwhile.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any

SWITCH = "GEMMA4_ENGINE_TOWERS"  # for vLLM's processes: `vllm` leaves the towers to it
SCALE = 1 / 255  # as transformers' processor has it
PATCHES = 65_536  # at a time, 26 pictures of 280 tokens: enough to fill a GPU
ATTENTION = "gemma4cli_packed"
ON_CPU = ("pixel_position_ids", "pixel_position_ids_videos", "input_features_padded", "input_features_mask")
"""Fields of media that come on the CPU: their sizes are read there."""
FEW = 2  # media that are encoded both ways at first: of one alone it does not show if they are mixed up
LOOKS = 3  # at single ones, where there are never two at a time
ALLOWED = 0.1  # mean difference over mean size; bfloat16 alone comes to 1 or 2%, mixed up pictures to more than 100%


def wanted() -> bool:
    """Whether vLLM's processes are to encode by this module: on a GPU, unless the switch is set to `vllm`."""
    from vllm.platforms import current_platform

    by = os.environ.get(SWITCH, "")
    return by == "packed" or (by != "vllm" and current_platform.is_cuda())


def packed(vllm_config: Any) -> bool:
    """Whether media may come in the form that suits this module: pixels as bytes, and `ON_CPU` on the CPU.

    Bytes are half of what pixels are in bfloat16, on every way from a file to the GPU.
    """
    lora = vllm_config.lora_config
    adapted = lora is not None and getattr(lora, "enable_tower_connector_lora", False)
    return wanted() and not adapted and not vllm_config.compilation_config.cudagraph_mm_encoder


def install() -> None:
    """Makes vLLM's Gemma 4 encode by this module. Safe to call twice."""
    from vllm.model_executor.models.gemma4_mm import Gemma4ForConditionalGeneration as Gemma4

    if hasattr(Gemma4, "packs_patches"):
        return
    images, videos, sounds = Gemma4._process_image_input, Gemma4._process_video_input, Gemma4._process_audio_input

    def image_input(model: Any, given: Any) -> list[Any]:
        pixels, places = given["pixel_values"], given["pixel_position_ids"]

        def plainly(few: int | None = None) -> Any:
            held = type(given)(
                pixel_values=_floats(model, pixels[:few]), pixel_position_ids=_sent(places[:few], _device(model))
            )
            return images(model, held)

        kind = f"image in {_form(pixels)}"
        if _agree(model, kind, len(pixels), lambda: encoded(model, pixels[:FEW], places[:FEW]), lambda: plainly(FEW)):
            return encoded(model, pixels, places)
        return plainly()  # type: ignore[no-any-return]

    def video_input(model: Any, given: Any) -> list[Any]:
        import torch

        pixels, places = given["pixel_values_videos"], given["pixel_position_ids_videos"]
        counts = [int(count) for count in given["video_frame_counts"]]

        def end_to_end(few: int | None = None) -> list[Any]:
            frames = sum(counts[:few])
            made = iter(encoded(model, pixels[:frames], places[:frames]))
            return [torch.cat(list(islice(made, count))) for count in counts[:few]]

        def plainly(few: int | None = None) -> Any:
            frames = sum(counts[:few])
            held = type(given)(
                pixel_values_videos=_floats(model, pixels[:frames]),
                pixel_position_ids_videos=_sent(places[:frames], _device(model)),
                video_frame_counts=given["video_frame_counts"][:few],
            )
            return videos(model, held)

        kind = f"video in {_form(pixels)}"
        if _agree(model, kind, len(counts), lambda: end_to_end(FEW), lambda: plainly(FEW)):
            return end_to_end()
        return plainly()  # type: ignore[no-any-return]

    def audio_input(model: Any, given: Any) -> list[Any]:
        features, masks = given["input_features_padded"], given["input_features_mask"]

        def plainly() -> Any:
            device = _device(model)
            return sounds(
                model,
                type(given)(input_features_padded=_sent(features, device), input_features_mask=_sent(masks, device)),
            )

        kind = f"audio in {_form(features)}"
        if _agree(model, kind, len(features), lambda: heard(model, features, masks), plainly):
            return heard(model, features, masks)
        return plainly()  # type: ignore[no-any-return]

    Gemma4.packs_patches = True
    Gemma4._process_image_input = image_input
    Gemma4._process_video_input = video_input
    Gemma4._process_audio_input = audio_input


def _form(given: Any) -> str:
    """Of media: what vLLM tries itself with before a job has another form than what readers send."""
    return f"{given[0].dtype} on {given[0].device.type}"


def _floats(model: Any, pixels: Any) -> Any:
    """Pixels in 0 to 1, as vLLM's own way takes them."""
    import torch

    if not isinstance(pixels, torch.Tensor):
        return [_floats(model, picture) for picture in pixels]
    return pixels.to(model.model_dtype).mul_(SCALE) if pixels.dtype == torch.uint8 else pixels


def _device(model: Any) -> Any:
    return model.vision_tower.patch_embedder.input_proj.weight.device


def _sent(given: Any, device: Any) -> Any:
    """A tensor, or each of a list, to the GPU without waiting for what the GPU has in hand."""
    if isinstance(given, list):
        return [_sent(each, device) for each in given]
    if given.device == device or device.type == "cpu":
        return given.to(device)
    return given.pin_memory().to(device, non_blocking=True)


def _agree(model: Any, kind: str, count: int, here: Callable[[], list[Any]], plainly: Callable[[], list[Any]]) -> bool:
    """Whether this module encodes a kind of media: where its first ones come out as vLLM's own way makes them.

    On a machine where a kernel is missing, or wrong, the job goes on in vLLM's way, and the log says so.

    count: of the media at hand.
    """
    # An adapter of the towers maps rows to adapters by their places in vLLM's own batches.
    if getattr(model, "_enable_mm_lora", False):
        return False
    verdicts = model.__dict__.setdefault("encodes_packed", {})
    if kind in verdicts:
        return bool(verdicts[kind])
    reason = _difference(here, plainly)
    if reason is not None:
        from vllm.logger import init_logger

        verdicts[kind] = False
        init_logger("vllm.gemma4cli").warning("The tower for %s runs in vLLM's own, slower way: %s", kind, reason)
        return False
    looks = model.__dict__.setdefault("looks", Counter())
    looks[kind] += 1
    if count >= FEW or looks[kind] >= LOOKS:
        verdicts[kind] = True
    return True


def _difference(here: Callable[[], list[Any]], plainly: Callable[[], list[Any]]) -> str | None:
    """What is wrong with embeddings that are made here; None where nothing is."""
    import torch

    expected = torch.cat(list(plainly())).float()
    try:
        off = float((torch.cat(here()).float() - expected).abs().mean() / expected.abs().mean().clamp(min=1e-6))
    except Exception as error:  # whatever a compiler or a kernel may say
        return f"{type(error).__name__}: {error}"
    return None if off <= ALLOWED else f"embeddings are off by {off:.1%}"


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    if not torch.cuda.is_available():
        return function
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def encoded(model: Any, pixels: Any, positions: Any) -> list[Any]:
    """The embeddings of pictures, or frames: of each, `(its soft tokens, width of the language model)`.

    pixels: `(n, patches, 3 * 16 * 16)` in 0 to 1, or bytes, or one tensor a picture where sizes differ.
    positions: of each patch, column and row, `(n, patches, 2)` or a list as well; padding has -1 and is at the end.
    """
    import torch

    tower = model.vision_tower
    stacked = isinstance(positions, torch.Tensor)
    used = _counts(positions[..., 0] >= 0 if stacked else [position[:, 0] >= 0 for position in positions])
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

    features: log-mel `(n, frames, 128)`, or one tensor a sound where lengths differ.
    masks: which frames are sound, `(n, frames)` or a list as well; they come before those that are not.
    """
    import torch

    tower = model.audio_tower
    chunk, device = tower.config.attention_chunk_size, tower.output_proj.weight.device
    frames = _counts(masks)
    # One sound, one block, or nothing but full blocks: a compiler would make a special case of each, in mid-job.
    length = max(4 * chunk + 4, max(frames))  # two convolutions make one token of four frames
    length += 4 * (-(-length // 4) % chunk == 0)
    n = max(2, len(frames))
    waiting = {"pin_memory": True} if device.type == "cuda" and features[0].device.type == "cpu" else {}
    batch = features[0].new_zeros((n, length, features[0].shape[-1]), **waiting)
    for row, sound, count in zip(batch, features, frames, strict=False):
        row[:count] = sound[:count]
    lengths = torch.tensor([*frames, *[0] * (n - len(frames))], device="cpu").to(device, non_blocking=True)
    there = torch.arange(length, device=device) < lengths[:, None]
    states, _ = tower.subsample_conv_projection(batch.to(device, non_blocking=True), there)
    positions = tower.rel_pos_enc(states)
    mask = _near(tower.config, -(-lengths // 4), states.shape[1])
    for layer in _layers(tower, tower.layers):
        states = layer(states, attention_mask=mask, position_embeddings=positions)
    counts = [-(-count // 4) for count in frames]
    kept = states.flatten(0, 1)[_places(counts, states.shape[1], device)[1]]
    return list(model.embed_audio(inputs_embeds=tower.output_proj(kept).unsqueeze(0)).squeeze(0).split(counts))


def _counts(used: Any) -> list[int]:
    """How much of each medium is used, asked for at once. used: `(n, length)`, or one tensor a medium."""
    import torch

    counts = used.sum(dim=1) if isinstance(used, torch.Tensor) else torch.stack([each.sum() for each in used])
    return counts.tolist()  # type: ignore[no-any-return]


def _near(config: Any, lengths: Any, most: int) -> Any:
    """Which tokens each token of a sound hears, by block, as the layers take it: `(n, 1, blocks, chunk, context)`.

    lengths: in tokens, `(n,)`.  most: the longest, padded.
    """
    import torch

    chunk, past, future = config.attention_chunk_size, config.attention_context_left - 1, config.attention_context_right
    starts = torch.arange(-(-most // chunk), device=lengths.device)[:, None] * chunk
    hearing = starts + torch.arange(chunk, device=lengths.device)
    spoken = starts + torch.arange(-past, chunk + future, device=lengths.device)
    apart = hearing[:, :, None] - spoken[:, None, :]
    near = (apart < past) & (-apart < max(future, 1))
    there = (spoken >= 0) & (spoken < lengths[:, None, None])
    return (near & there[:, :, None, :])[:, None]


def _places(counts: Sequence[int], padded: int, device: Any) -> tuple[Any, Any]:
    """Of each used part of rows that are padded to one length: its row, and its place where all rows lie end to end."""
    import torch

    n, total = len(counts), sum(counts)
    shifts = [i * padded - before for i, before in zip(range(n), accumulate(counts, initial=0), strict=False)]
    sizes, ahead = torch.tensor([counts, shifts], device="cpu").to(device, non_blocking=True)
    row = torch.repeat_interleave(torch.arange(n, device=device), sizes, output_size=total)
    return row, torch.arange(total, device=device) + ahead[row]


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

    tower, device = model.vision_tower, _device(model)
    picture, used = _places(counts, len(pixels[0]), device)
    if not isinstance(pixels, torch.Tensor):
        pixels = _floats(model, pixels)  # each by its own type
    patches = _floats(model, _end_to_end(pixels, counts, used)).unsqueeze(0)
    places = _end_to_end(positions, counts, used).unsqueeze(0)
    padding = torch.zeros(places.shape[:2], dtype=torch.bool, device=device)
    edges = torch.tensor([0, *accumulate(counts)], dtype=torch.int32, device="cpu").to(device, non_blocking=True)
    longest = torch.tensor(max(counts), dtype=torch.int32, device="cpu")  # where flash attention wants it
    states = tower.patch_embedder(patches, places, padding).to(model.model_dtype)
    rotary = tower.encoder.rotary_emb(states, places)
    own, tower.config._attn_implementation = tower.config._attn_implementation, _attention_name(tower.config.head_dim)
    try:
        for layer in _layers(tower, tower.encoder.layers):
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
    """The used parts of rows one after another, on the GPU. used: their places, as of `_places`."""
    import torch

    if isinstance(given, torch.Tensor) and given.device == used.device:
        flat = given.flatten(0, 1)
        return flat if len(flat) == len(used) else flat[used]
    return _sent(torch.cat([row[:count] for row, count in zip(given, counts, strict=True)]), used.device)


def _layers(tower: Any, layers: Any) -> tuple[Callable[..., Any], ...]:
    if not hasattr(tower, "packed_layers"):
        for layer in layers:
            if hasattr(layer, "lconv1d"):
                # Cached: its first reading takes a lock, where compilers stop.
                _ = layer.lconv1d.depthwise_conv1d.left_pad
        # In a tuple, or the tower would count its layers twice.
        tower.packed_layers = tuple(_compiled(layer.forward) for layer in layers)
    compiled: tuple[Callable[..., Any], ...] = tower.packed_layers
    return compiled


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
