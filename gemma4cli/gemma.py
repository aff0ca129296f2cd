"""Gemma 4's arithmetic: how many tokens a picture, a sound or a video takes, and which frames of it are shown.

Pure functions over sizes and lengths, so that a job can be planned from headers. Every formula is that of the
Hugging Face processors (transformers, `models/gemma4`), down to the order of its float operations, because a
placeholder count that differs from the encoder's by one is a row that fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

BUDGETS = (70, 140, 280, 560, 1120)
"""Soft tokens that an image may take at most; the processor accepts these alone."""
DEFAULT_BUDGET = 280
VIDEO_BUDGET = 70
"""Soft tokens of one video frame, at most."""
MAX_FRAMES = 32
PATCH = 16
"""Side of a patch in pixels."""
PIXELS_PER_TOKEN = 48
"""Side of the square of pixels behind one soft token: patches of 16, pooled 3 by 3."""
PATCHES_PER_TOKEN = (PIXELS_PER_TOKEN // PATCH) ** 2

AUDIO_RATE = 16_000
MAX_AUDIO_SECONDS = 30
MAX_AUDIO_TOKENS = 750
MIN_AUDIO_SAMPLES = 161
"""Fewer make no feature frame and so no token."""
UNIFIED_SAMPLES_PER_TOKEN = 640

_HOP = 160  # samples from one feature frame to the next, 10 ms
_TIMESTAMP_TOKENS = 7  # " mm:ss " is one token a character
FRAME_MARKS = 2 + _TIMESTAMP_TOKENS
"""Tokens around a video frame: its begin, its end and its timestamp."""


def image_size(width: int, height: int, budget: int) -> tuple[int, int]:
    """Width and height in pixels after the processor's resize, for an upright image.

    Raises ValueError for a budget that the processor refuses, or a size below 1.
    """
    if budget not in BUDGETS:
        raise ValueError(f"the token budget is one of {BUDGETS}, not {budget}")
    if width < 1 or height < 1:
        raise ValueError(f"an image of {width}x{height} has no pixels")
    factor = math.sqrt(budget * PIXELS_PER_TOKEN**2 / (height * width))
    rows = math.floor(factor * height / PIXELS_PER_TOKEN)
    columns = math.floor(factor * width / PIXELS_PER_TOKEN)
    # A strip thinner than one token is widened to one; its length then follows the whole ratio of its sides.
    if rows == 0:
        rows, columns = 1, min(width // height, budget)
    elif columns == 0:
        rows, columns = min(height // width, budget), 1
    return columns * PIXELS_PER_TOKEN, rows * PIXELS_PER_TOKEN


def image_tokens(width: int, height: int, budget: int) -> int:
    """Soft tokens of an upright image, at most `budget`; begin and end of image are two more."""
    resized_width, resized_height = image_size(width, height, budget)
    return (resized_width // PIXELS_PER_TOKEN) * (resized_height // PIXELS_PER_TOKEN)


def auto_budget(width: int, height: int, most: int) -> int:
    """The largest budget up to `most` at which an upright image has no side enlarged; the smallest one if none is so.

    More tokens would be spent on pixels that the image does not have.
    """
    for budget in reversed(BUDGETS):
        if budget <= most:
            resized_width, resized_height = image_size(width, height, budget)
            if resized_width <= width and resized_height <= height:
                return budget
    return BUDGETS[0]


def row_budget(sizes: Iterable[tuple[int, int]], most: int) -> int:
    """The budget that the images of a row share, which is what the largest of them can use; `most` without any.

    sizes: upright width and height of each.
    """
    return max((auto_budget(width, height, most) for width, height in sizes), default=most)


def smaller_budget(budget: int) -> int:
    """The next budget below; the smallest has none."""
    return max((each for each in BUDGETS if each < budget), default=budget)


def audio_tokens(samples: int) -> int:
    """Soft tokens of 16 kHz mono sound; what is past 30 s adds none. Begin and end of audio are two more.

    Feature frames start every 10 ms and need 161 samples after their start; two convolutions of stride 2 follow.
    """
    if samples < MIN_AUDIO_SAMPLES:
        return 0
    frames = (samples - MIN_AUDIO_SAMPLES) // _HOP + 1
    halved = (frames + 1) // 2
    return min((halved + 1) // 2, MAX_AUDIO_TOKENS)


def unified_audio_tokens(samples: int) -> int:
    """Soft tokens of 16 kHz mono sound for the variants without an audio tower, which read the samples raw."""
    return -(-samples // UNIFIED_SAMPLES_PER_TOKEN)


def video_frame_tokens(width: int, height: int) -> int:
    """Soft tokens of one upright video frame, without its begin, end and timestamp."""
    return image_tokens(width, height, VIDEO_BUDGET)


def video_prompt_tokens(width: int, height: int, frames: int) -> int:
    """All that a video takes of the prompt: each frame's soft tokens, begin, end and timestamp.

    Exact for clips under 100 minutes up to the first timestamp, which is one token shorter than the others.
    """
    return frames * (video_frame_tokens(width, height) + FRAME_MARKS)


def even_frames(total: int, count: int = MAX_FRAMES) -> tuple[int, ...]:
    """Indices of at most `count` frames out of `total`, evenly spread and starting with the first."""
    if total <= count:
        return tuple(range(total))
    return tuple(i * total // count for i in range(count))


def timestamp(seconds: float) -> str:
    """A frame's time as the prompt writes it: whole minutes and seconds, cut, never rounded."""
    return f"{int(seconds // 60):02d}:{int(seconds % 60):02d}"


def engine_agrees(width: int, height: int, budget: int) -> bool:
    """Whether vLLM 0.32 reserves as many placeholders for an image as the processor fills.

    `Gemma4ProcessingInfo._compute_num_soft_tokens` orders its float operations otherwise, and comes to one token
    less for some strips such as 17x1190 at 70. Pixels brought to `image_size` beforehand always agree.
    """
    scale = math.sqrt(budget * PATCHES_PER_TOKEN / ((height / PATCH) * (width / PATCH)))
    rows = max(1, math.floor(height * scale / PIXELS_PER_TOKEN))
    columns = max(1, math.floor(width * scale / PIXELS_PER_TOKEN))
    return min(rows * columns, budget) == image_tokens(width, height, budget)
