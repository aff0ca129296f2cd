"""Names of buckets: rows of one bucket are alike to the encoder, which pads what it takes together to one size."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

AUDIO_STEP_S = 5


def image(budget: int) -> str:
    """Pictures are padded to their budget of soft tokens, whatever their size."""
    return f"image-{budget}"


def audio(duration_s: float) -> str:
    """Sounds are padded to the longest: names go up in steps of 5 s."""
    return f"audio-{audio_step(duration_s)}s"


def audio_step(duration_s: float) -> int:
    return ceil(duration_s / AUDIO_STEP_S) * AUDIO_STEP_S


def video(frames: int) -> str:
    """All frames are padded to one budget, so that their number is what counts."""
    return f"video-{frames}f"


def joined(names: Iterable[str]) -> str:
    """The bucket of a row of several media, in their order."""
    return "+".join(names)


def kind_of(bucket: str) -> str:
    """The kinds of media of a bucket, each once: `image` of `image-280+image-280`."""
    return "+".join(dict.fromkeys(name.partition("-")[0] for name in bucket.split("+")))
