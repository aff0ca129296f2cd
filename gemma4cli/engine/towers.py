"""Gemma 4's vision and audio towers without padding and compiled, in vLLM's processes on a GPU.

vLLM 0.32 runs the towers of transformers as they are: op by op, each a pass over memory, with padded pictures under a
mask, pooled one by one. On an H200 that is 14 of the 21 ms that a picture takes. Here the patches of many pictures lie
end to end, flash attention keeps them apart, layers are compiled, and all are pooled in one go. The layers themselves
are still those of transformers with vLLM's weights. `scripts/check_towers` compares and measures.

Nothing here asks the GPU for a number: how much there is of each medium is known from what stayed on the CPU, and so
the CPU runs ahead and lays out the next step meanwhile.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

from gemma4cli.engine.audio_tower import heard
from gemma4cli.engine.end_to_end import sent
from gemma4cli.engine.vision_tower import device_of, encoded, floats

SWITCH = "GEMMA4_ENGINE_TOWERS"  # for vLLM's processes: `vllm` leaves the towers to it
ON_CPU = ("pixel_position_ids", "pixel_position_ids_videos", "input_features_mask")
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
                pixel_values=floats(model, pixels[:few]), pixel_position_ids=sent(places[:few], device_of(model))
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
                pixel_values_videos=floats(model, pixels[:frames]),
                pixel_position_ids_videos=sent(places[:frames], device_of(model)),
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
            device = device_of(model)
            return sounds(
                model,
                type(given)(input_features_padded=sent(features, device), input_features_mask=sent(masks, device)),
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
