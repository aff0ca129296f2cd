"""The frames of an animated GIF, PNG, WebP or AVIF, for a row that asks for a video."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from gemma4cli.errors import DecodeError
from gemma4cli.media.colour import to_rgb
from gemma4cli.media.decoded import Video
from gemma4cli.media.image import open_picture, reading
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.timeline import frames_between
from gemma4cli.media.video import kept_size, shrunk

_LEAST_MS = 10
_DEFAULT_MS = 100  # what browsers make of a delay of 10 ms or less


def is_moving(file: BinaryIO, options: MediaOptions) -> bool:
    """Whether a picture has several frames. Raises what `decode_image` raises."""
    with reading():
        moving = bool(getattr(open_picture(file, options), "n_frames", 1) > 1)
    file.seek(0)
    return moving


def decode_animation(file: BinaryIO, options: MediaOptions) -> Video:
    """Decodes at most `options.max_frames` even frames; a still picture is a clip of one frame.

    Two passes, as frames build on each other and tell their length only when they are reached. Raises what
    `decode_image` raises.
    """
    with reading():
        picture = open_picture(file, options)
        total = getattr(picture, "n_frames", 1)
        starts, clock = [], 0.0
        for index in range(total):
            picture.seek(index)
            picture.load()
            starts.append(round(clock))
            length = float(picture.info.get("duration") or 0)
            clock += length if length > _LEAST_MS else _DEFAULT_MS
        wanted = frames_between(starts, round(clock), 1000, options) if starts else ()
        width, height = picture.size
        size = (width, height) if options.exact_frames else kept_size(width, height, options.frame_scale)
        frames = []
        picture.seek(0)
        for index in wanted:
            picture.seek(index)
            picture.load()
            rgb = to_rgb(picture, options.background)
            frame = np.array(rgb if rgb.size == size else rgb.resize(size))
            frames.append(shrunk(frame, width, height) if options.exact_frames else frame)
    if not frames:
        raise DecodeError("no_frames", "the file holds no frames")
    return Video(
        frames=np.stack(frames),
        times_s=tuple(starts[index] / 1000 for index in wanted),
        frame_indices=wanted,
        duration_s=clock / 1000,
        width=width,
        height=height,
        fps=total / clock * 1000,
        total_frames=total,
    )
