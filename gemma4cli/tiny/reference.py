"""The tiny checkpoint in transformers, with its own processor and `generate`: what other engines are held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoProcessor, Gemma4ForConditionalGeneration

from gemma4cli.gemma import DEFAULT_BUDGET
from gemma4cli.records import Kind
from gemma4cli.tiny import CHECKPOINT

Medium = npt.NDArray[Any]
"""Pixels, uint8 (height, width, 3); frames, uint8 (frames, height, width, 3); or samples, float32 at 16 kHz."""


class Reference:
    """A loaded checkpoint, on the CPU unless told otherwise."""

    def __init__(
        self,
        checkpoint: Path = CHECKPOINT,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - it is a value
    ) -> None:
        self.device = device
        self.processor = AutoProcessor.from_pretrained(checkpoint)
        self.model = Gemma4ForConditionalGeneration.from_pretrained(checkpoint, dtype=dtype).eval().to(device)

    def inputs(
        self,
        kind: Kind,
        media: Sequence[Medium],
        prompts: Sequence[str],
        budget: int = DEFAULT_BUDGET,
        times: Sequence[Sequence[float]] = (),
    ) -> dict[str, Any]:
        """What the model takes of one medium and one prompt a row, padded on the left.

        budget: soft tokens of a picture, at most; times: seconds of every film's frames.
        """
        template = self.processor.apply_chat_template
        texts = [
            template(
                [{"role": "user", "content": [{"type": str(kind)}, {"type": "text", "text": prompt}]}],
                tokenize=False,
                add_generation_prompt=True,
            )
            for prompt in prompts
        ]
        shown: dict[str, Any]
        if kind is Kind.IMAGE:
            pixels = [torch.from_numpy(np.array(medium)).permute(2, 0, 1) for medium in media]
            shown = {"images": [[one] for one in pixels], "images_kwargs": {"max_soft_tokens": budget}}
        elif kind is Kind.AUDIO:
            shown = {"audio": list(media)}
        else:
            shown = {"videos": list(media), "video_metadata": [_metadata(each) for each in times]}
            shown["videos_kwargs"] = {"do_sample_frames": False}
        # The template has written <bos> already.
        shown["text_kwargs"] = {"add_special_tokens": False, "padding": True}
        made = self.processor(text=texts, return_tensors="pt", **shown)
        kept = {name: value.to(self.device) for name, value in made.items() if isinstance(value, torch.Tensor)}
        return {name: v.to(self.model.dtype) if v.is_floating_point() else v for name, v in kept.items()}

    def answers(
        self,
        kind: Kind,
        media: Sequence[Medium],
        prompts: Sequence[str],
        budget: int = DEFAULT_BUDGET,
        times: Sequence[Sequence[float]] = (),
    ) -> list[str]:
        """The likeliest answers, token by token."""
        inputs = self.inputs(kind, media, prompts, budget, times)
        greedy = {"do_sample": False, "top_k": None, "top_p": None, "temperature": None}
        with torch.inference_mode():
            made = self.model.generate(**inputs, max_new_tokens=48, **greedy)
        answers = made[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self.processor.batch_decode(answers, skip_special_tokens=True)]


def _metadata(times: Sequence[float]) -> dict[str, Any]:
    # At one frame a second an index is a time.
    return {
        "fps": 1.0,
        "frames_indices": list(times),
        "total_num_frames": len(times),
        "duration": float(times[-1]),
        "video_backend": "pyav",
    }
