"""Pictures to the patches that Gemma 4's vision tower takes.

What transformers' `Gemma4ImageProcessor` computes, with its own resize, and from there in one pass over bytes: it
makes 32-bit floats first, and copies them four times. Bit for bit the same in bfloat16 and float32.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Resampling

from gemma4cli.engine.vision_tower import SCALE
from gemma4cli.gemma import PATCH, PATCHES_PER_TOKEN, PIXELS_PER_TOKEN, image_size
from gemma4cli.media.resize import resized


def knows(image_processor: Any) -> bool:
    """Whether a checkpoint's image processor is the one that `patched` stands in for."""
    from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor

    settings = {
        "do_resize": True,
        "resample": Resampling.BICUBIC,
        "do_rescale": True,
        "rescale_factor": SCALE,
        "do_normalize": False,
        "patch_size": PATCH,
        "pooling_kernel_size": PIXELS_PER_TOKEN // PATCH,
    }
    return type(image_processor) is Gemma4ImageProcessor and all(
        getattr(image_processor, name) == value for name, value in settings.items()
    )


def patched(pictures: Sequence[NDArray[np.uint8]], whole: tuple[int, int], budget: int, dtype: Any) -> tuple[Any, Any]:
    """Patches of upright RGB pictures of one size, and where each lies.

    pictures: uint8 (h, w, 3) each.  whole: width and height that they had before anybody scaled them down.
    budget: soft tokens of each at most, to which its patches are filled up with zeros.
    Returns `dtype` (n, budget * 9, 768), in 0 to 1 or in bytes where that is uint8, and int64 (n, budget * 9, 2) of
    column and row, -1 where filled up.
    """
    width, height = image_size(*whole, budget)
    columns, rows = width // PATCH, height // PATCH
    values = torch.empty((len(pictures), budget * PATCHES_PER_TOKEN, PATCH * PATCH * 3), dtype=dtype)
    real = values[:, : rows * columns]
    for picture, into in zip(pictures, real, strict=True):
        grid = torch.from_numpy(resized(picture, width, height)).view(rows, PATCH, columns, PATCH, 3)
        # Bytes are whole numbers in any float type, so that one rounding remains, that of the product.
        into.view(rows, columns, PATCH, PATCH, 3).copy_(grid.transpose(1, 2))
    if dtype != torch.uint8:
        real.mul_(SCALE)
    values[:, rows * columns :] = 0
    return values, _positions(columns, rows, budget).expand(len(pictures), -1, -1)


@functools.lru_cache(maxsize=256)
def _positions(columns: int, rows: int, budget: int) -> Any:
    positions = torch.full((1, budget * PATCHES_PER_TOKEN, 2), -1, dtype=torch.int64)
    grid = positions[0, : rows * columns].view(rows, columns, 2)
    grid[..., 0] = torch.arange(columns)
    grid[..., 1] = torch.arange(rows)[:, None]
    return positions
