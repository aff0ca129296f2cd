"""From a request to vLLM's engine input. Works in any process, without an engine."""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image as PILImage

from gemma4cli import gemma
from gemma4cli.engine.base import EngineInput, Request
from gemma4cli.errors import RenderError
from gemma4cli.records import Tokens

if TYPE_CHECKING:
    from gemma4cli.media.decoded import Image, Video

Content = tuple[tuple[str, str], ...]
"""Of a turn: kinds of parts in order, with the text of those that are text."""


class VllmRenderer:
    """Renders requests. Pickled, it is its configuration alone, and is built anew where it arrives.

    What form media have is settled where the engine is: on a machine without a GPU `towers.packed` would say otherwise,
    and one batch must not hold two forms.
    """

    preload = (
        "vllm.renderers",
        "vllm.model_executor.models.gemma4_mm",
        "gemma4cli.engine.direct_input",
        "gemma4cli.engine.vllm_render",
    )

    def __init__(self, vllm_config: Any, *, direct: bool = True, packed: bool | None = None) -> None:
        """direct: build the inputs of models that are known here ourselves, several times faster.

        packed: media in the form of `towers.packed`; None asks it, and is for the machine that the engine is on.
        """
        from vllm.renderers import renderer_from_config

        from gemma4cli.engine import towers
        from gemma4cli.engine.direct_input import DirectInput

        self._config = vllm_config
        self._packed = towers.packed(vllm_config) if packed is None else packed
        self._renderer = renderer_from_config(vllm_config)
        self._direct = DirectInput.of(self._renderer, self._packed) if direct else None
        self.exact_frames = self._direct is not None
        tokenizer = self._renderer.get_tokenizer()
        self._control = tuple(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._context: int = vllm_config.model_config.max_model_len
        self._tokenized = functools.lru_cache(maxsize=64)(self._tokenize)

    def __reduce__(self) -> tuple[Callable[..., VllmRenderer], tuple[Any]]:
        return functools.partial(VllmRenderer, packed=self._packed), (self._config,)

    def render(self, request: Request) -> EngineInput:
        return self.render_together([request])[0]

    def render_together(self, requests: Sequence[Request]) -> list[EngineInput]:
        made = _Made(f"row-{requests[0].row_index}-{secrets.token_hex(4)}")
        return [self._rendered(request, made) for request in requests]

    def _rendered(self, request: Request, made: _Made) -> EngineInput:
        from vllm.exceptions import VLLMClientError

        try:
            payload = self._payload(request, made)
        except (ValueError, VLLMClientError) as error:
            if "may be provided in one prompt" in str(error):
                message = f"the row has more media than the engine takes (limit_mm_per_prompt): {first_lines(error)}"
                raise RenderError("too_many_media", message) from error
            raise RenderError(
                "prompt_too_long" if "context length" in str(error) else "rejected",
                f"the model cannot take this row: {first_lines(error)}",
            ) from error
        length = len(payload["prompt_token_ids"])
        if length + request.max_tokens > self._context:
            raise RenderError(
                "prompt_too_long",
                f"the prompt takes {length} tokens, which leaves no room for {request.max_tokens} of output in a "
                f"context of {self._context}; shorten it, lower --max-tokens or --max-soft-tokens, "
                f"or raise the context with --engine-arg max_model_len=N",
            )
        counts = {
            kind: sum(place.get_num_embeds() for place in places)
            for kind, places in payload.get("mm_placeholders", {}).items()
        }
        tokens = Tokens(length, counts.get("image", 0), counts.get("audio", 0), counts.get("video", 0))
        return EngineInput(payload, _tensor_bytes(payload.get("mm_kwargs", {})), tokens)

    def _payload(self, request: Request, made: _Made) -> Any:
        from vllm.inputs import tokens_input

        from gemma4cli.media.decoded import Audio, Image, Video

        self._refuse_control_tokens(request.system)
        budget, kinds = request.max_soft_tokens, {Image: "image", Audio: "audio", Video: "video"}
        media: dict[str, list[Any]] = {}
        names: dict[str, list[str]] = {}
        said: list[Content] = []
        for parts, name in (*((turns.parts, turns.name) for turns in request.turns), (request.parts, made.name)):
            content: list[tuple[str, str]] = []
            for i, part in enumerate(parts):
                if isinstance(part, str):
                    self._refuse_control_tokens(part)
                    content.append(("text", part))
                    continue
                kind = kinds[type(part)]
                content.append((kind, ""))
                media.setdefault(kind, []).append(part)
                names.setdefault(kind, []).append(f"{name}-{i}-{budget}")
            said.append(tuple(content))
        answers = tuple(turns.answer for turns in request.turns)
        prompt, token_ids = self._tokenized(request.system, tuple(said), answers, request.thinking)
        if not media:
            return {**tokens_input(list(token_ids), prompt=prompt), "arrival_time": time.time()}
        if self._direct is not None:
            lasting = frozenset(name for each in names.values() for name in each if not name.startswith(made.name))
            made.media = made.media or self._direct.items(media, budget, names, lasting)
            return self._direct.build(prompt, token_ids, made.media, names)
        (payload,) = self._renderer.render_cmpl([_prompt(prompt, media, budget, names)])
        made.media = payload["mm_kwargs"] = made.media or payload["mm_kwargs"]
        return payload

    def _tokenize(
        self, system: str, said: tuple[Content, ...], answers: tuple[str, ...], thinking: bool
    ) -> tuple[str, tuple[int, ...]]:
        """The chat template's text, and its tokens, with one for each medium. Most rows of a job have the same.

        said: what the user says in each turn, each but the last with its answer.
        """
        messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        for content, answer in zip_longest(said, answers):
            parts = [{"type": kind, "text": text} if kind == "text" else {"type": kind} for kind, text in content]
            messages.append({"role": "user", "content": parts})
            if answer is not None:
                messages.append({"role": "assistant", "content": answer})
        prompt = self._renderer.get_tokenizer().apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=thinking
        )
        (tokenized,) = self._renderer.render_cmpl([{"prompt": prompt}])
        return prompt, tuple(tokenized["prompt_token_ids"])

    def _refuse_control_tokens(self, text: str) -> None:
        for token in self._control:
            if token in text:
                raise RenderError(
                    "control_token",
                    f"the text holds {token}, which the model reads as a command, not as text",
                )


@dataclass(slots=True)
class _Made:
    """What requests about the same media share.

    name: the engine keeps what it has encoded under it, also after the row: no other row may ever bear it.
    media: as the engine takes them, once the first request has been made.
    """

    name: str
    media: Any = None


def _prompt(
    text: str, media: Mapping[str, Sequence[Any]], budget: int, names: Mapping[str, list[str]]
) -> dict[str, Any]:
    """A prompt with media, as vLLM's renderer takes them.

    names: the encoder's outputs are kept under them. Left to vLLM, they would be counted for each renderer, and two
        renderers' media would be taken for one another.
    """
    as_taken = {"image": lambda image: _picture(image, budget), "audio": lambda audio: audio.samples, "video": _frames}
    return {
        "prompt": text,
        "multi_modal_data": {kind: [as_taken[kind](datum) for datum in data] for kind, data in media.items()},
        "mm_processor_kwargs": {"max_soft_tokens": budget},
        "multi_modal_uuids": dict(names),
    }


def _picture(image: Image, budget: int) -> PILImage.Image:
    # As PIL: an array with a side of 1 or 3 pixels would be read as channels first.
    return _countable(PILImage.fromarray(image.pixels), budget)


def _frames(video: Video) -> tuple[Any, dict[str, Any]]:
    # At one frame a second an index is a time, and so each frame keeps its own, at any frame rate.
    metadata = {
        "fps": 1.0,
        "frames_indices": list(video.times_s),
        "total_num_frames": len(video.times_s),
        "duration": video.duration_s,
        "video_backend": "pyav",
        "do_sample_frames": False,
    }
    shown = (_countable(PILImage.fromarray(frame), gemma.VIDEO_BUDGET) for frame in video.frames)
    return np.stack([np.asarray(frame) for frame in shown]), metadata


def _countable(picture: PILImage.Image, budget: int) -> PILImage.Image:
    """A picture for which vLLM counts as many placeholders as the processor makes tokens.

    For strips whose sides are as 1 to the budget it counts one too few, and the engine would die of it.
    """
    if gemma.engine_agrees(*picture.size, budget):
        return picture
    return picture.resize(gemma.image_size(*picture.size, budget), PILImage.Resampling.BICUBIC)


def _tensor_bytes(value: Any) -> int:
    """Bytes of all tensors inside nested containers of vLLM's."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_tensor_bytes, value))
    return _tensor_bytes(value.data) if hasattr(value, "data") else 0


def first_lines(error: BaseException, most: int = 300) -> str:
    """An error on one line, of no more than `most` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."
