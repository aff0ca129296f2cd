"""What decoding yields: upright pixels and 16 kHz samples, with what was found out about the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """A picture. `pixels` is uint8 (h, w, 3), RGB, upright; width and height are those of the upright file.

    `pixels` is smaller than the file only where MediaOptions.budget allowed it.
    """

    pixels: NDArray[np.uint8]
    width: int
    height: int


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """A sound. `samples` is float32 (n,), mono, 16 kHz, finite; `duration_s` is the source's whole length.

    `samples` ends before the source does only where MediaOptions.max_audio_s stopped the decoding.
    """

    samples: NDArray[np.float32]
    duration_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """Frames of a clip. `frames` is uint8 (n, h, w, 3), RGB, upright, scaled down from width x height if large.

    times_s: when each frame is shown, in seconds from the clip's first frame.
    frame_indices: which of the clip's frames they are, from 0 in the order of showing.
    duration_s: from the first frame to the end of the last. fps: mean over the clip. total_frames: in the clip.
    """

    frames: NDArray[np.uint8]
    times_s: tuple[float, ...]
    frame_indices: tuple[int, ...]
    duration_s: float
    width: int
    height: int
    fps: float
    total_frames: int
