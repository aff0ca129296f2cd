"""From an item to an engine input, beside the engine: fetch and decode in threads, render in one.

Pillow, FFmpeg and soxr release the interpreter's lock while they work. vLLM's processor allows one caller
at a time, so rendering proper has a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import TYPE_CHECKING

from gemma4cli import gemma, media, resources, tasks
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine, Request
from gemma4cli.errors import RenderError, RowError
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.models import Model
from gemma4cli.records import Failure, Item, Kind, Media, MediaFacts, Rendered, Stage, Unrendered

if TYPE_CHECKING:
    from gemma4cli.engine.base import Part

Handover = Callable[[Rendered | Unrendered], None]


class RenderPool:
    """Threads that turn items into engine inputs. Each comes back once, through `deliver`, in any order."""

    def __init__(self, config: RunConfig, model: Model, engine: Engine, deliver: Handover) -> None:
        self._config = config
        self._model = model
        self._engine = engine
        self._deliver = deliver
        self._options = media.MediaOptions(
            background=config.media.background,
            max_frames=config.media.max_frames,
            max_pixels=config.media.max_pixels,
            max_audio_s=gemma.MAX_AUDIO_SECONDS,
            allow_private_hosts=config.media.allow_private_hosts,
            budget=config.media.max_soft_tokens,
        )
        self._decoders = ThreadPoolExecutor(resources.cores(), "decode")
        self._renderer = ThreadPoolExecutor(1, "render")

    def submit(self, item: Item) -> None:
        self._decoders.submit(self._decode, item)

    def close(self) -> None:
        """Drops what has not begun and waits for what has."""
        self._decoders.shutdown(cancel_futures=True)
        self._renderer.shutdown(cancel_futures=True)

    def _decode(self, item: Item) -> None:
        started = time.perf_counter()
        try:
            parts = tuple(self._load(part) if isinstance(part, Media) else part for part in item.content)
        except Exception as error:
            failure = _failure(error, Stage.DECODE)
            self._deliver(Unrendered(item.row_index, failure, MediaFacts(), _ms_since(started)))
            return
        self._renderer.submit(self._render, item, parts, _ms_since(started))

    def _load(self, medium: Media) -> Image | Audio | Video:
        loaded = media.load(medium, self._config.kinds, self._options)
        if isinstance(loaded, Audio):
            if not self._model.hears:
                raise RenderError("no_audio_tower", f"{self._model.name} takes no audio; E2B, E4B and 12B do")
            if loaded.duration_s > gemma.MAX_AUDIO_SECONDS:
                raise RenderError(
                    "audio_too_long",
                    f"more than {gemma.MAX_AUDIO_SECONDS} s of sound, which is what the model hears at a time; cut it",
                )
        return loaded

    def _render(self, item: Item, parts: tuple[Part, ...], decode_ms: float) -> None:
        started, facts = time.perf_counter(), _facts(parts)
        budget = self._config.media.max_soft_tokens
        try:
            prompt = tasks.prompt(self._config, item, _kinds(parts))
            request = Request(
                item.row_index,
                (*parts, prompt),
                self._config.prompts.system,
                budget,
                self._config.sampling.max_tokens,
            )
            ready = self._engine.render(request)
        except Exception as error:
            failure = _failure(error, Stage.RENDER)
            self._deliver(Unrendered(item.row_index, failure, facts, decode_ms, _ms_since(started)))
            return
        self._deliver(
            Rendered(
                item.row_index,
                ready.payload,
                ready.nbytes,
                ready.tokens,
                facts,
                _bucket(parts, budget),
                decode_ms,
                _ms_since(started),
            )
        )


def _kinds(parts: Sequence[Part]) -> list[Kind]:
    names = {Image: Kind.IMAGE, Audio: Kind.AUDIO, Video: Kind.VIDEO}
    return list(dict.fromkeys(names[type(part)] for part in parts if not isinstance(part, str)))


def _facts(parts: Sequence[Part]) -> MediaFacts:
    """Size of the first picture; seconds and frames of everything together."""
    pictures = [part for part in parts if isinstance(part, Image | Video)]
    seconds = [part.duration_s for part in parts if isinstance(part, Audio | Video)]
    frames = [len(part.frames) for part in parts if isinstance(part, Video)]
    return MediaFacts(
        modality="+".join(_kinds(parts)),
        width=pictures[0].width if pictures else None,
        height=pictures[0].height if pictures else None,
        duration_s=sum(seconds) if seconds else None,
        frames=sum(frames) if frames else None,
    )


def _bucket(parts: Sequence[Part], budget: int) -> str:
    """What the encoder pads rows to: the budget, the duration in steps of 5 s, the number of frames."""
    names = []
    for part in parts:
        match part:
            case Image():
                names.append(f"image-{budget}")
            case Audio():
                names.append(f"audio-{ceil(part.duration_s / 5) * 5}s")
            case Video():
                names.append(f"video-{len(part.frames)}f")
    return "+".join(names)


def _failure(error: Exception, stage: Stage) -> Failure:
    if isinstance(error, RowError):
        return error.failure()
    return Failure(stage, "internal", f"{type(error).__name__}: {error}")


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
