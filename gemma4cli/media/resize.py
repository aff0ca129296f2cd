"""The resize of transformers' Gemma 4 image processor: torchvision's, bicubic with antialias, on bytes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as transforms


def resized(picture: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """A uint8 (h, w, 3) picture at another size; the same array where it has it already."""
    channels_first = torch.from_numpy(picture).permute(2, 0, 1)
    at_size = transforms.resize(
        channels_first, [height, width], interpolation=InterpolationMode.BICUBIC, antialias=True
    )
    pixels: NDArray[np.uint8] = at_size.permute(1, 2, 0).contiguous().numpy()
    return pixels
