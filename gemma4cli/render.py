"""From an item to an engine input: fetch, decode, prompt, render. What a worker of the pool does with a row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

from gemma4cli import gemma, media, tasks
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Renderer, Request
from gemma4cli.errors import FetchError, RenderError, RowError
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.models import Model
from gemma4cli.records import Failure, Item, Kind, Media, MediaFacts, Rendered, Split, Stage, Unrendered
from gemma4cli.speech import CutOptions
from gemma4cli.speech.spans import arrange
from gemma4cli.windows import windows

if TYPE_CHECKING:
    from gemma4cli.engine.base import Part

FETCHES = 3  # tries of a fetch that may succeed when it is tried again
FIRST_PAUSE_S = 1.0  # before the second try; doubled for each further one


@dataclass(frozen=True, slots=True)
class RenderJob:
    """All that a worker needs to render any row of a run; can be pickled."""

    config: RunConfig
    model: Model
    renderer: Renderer

    def render(self, item: Item) -> Rendered | Unrendered | Split:
        """Never raises: what goes wrong is the row's failure, with the stage it went wrong at."""
        started, attempts, facts = time.perf_counter(), 1, MediaFacts()
        stage, decode_ms = Stage.DECODE, None
        options = self._options(item)
        whole = item.row_index >= 0  # else a piece of a row, which knows its part
        alone = len(item.content) == 1  # else it cannot be cut without losing what stands beside it
        try:
            parts: list[Part] = []
            for part in item.content:
                if isinstance(part, str):
                    parts.append(part)
                    continue
                medium = self._meant(part) if whole else part
                options = replace(options, start_s=medium.start_s, end_s=medium.end_s, part_only=not whole)
                (loaded, *pages), tries = self._load(medium, options)
                attempts = max(attempts, tries)
                if isinstance(loaded, Audio) and self.config.task == "transcribe" and whole and alone:
                    split = self._split(item.row_index, medium, loaded, options)
                    if split is not None:
                        return replace(split, decode_ms=_ms_since(started), attempts=attempts)
                if isinstance(loaded, Video) and self.config.media.window is not None and whole and alone:
                    split = _windows(item.row_index, medium, loaded, self.config.media.window)
                    if split is not None:
                        return replace(split, decode_ms=_ms_since(started), attempts=attempts)
                self._check_fits(loaded)
                parts += [loaded, *pages]
            decode_ms, started, facts, stage = _ms_since(started), time.perf_counter(), _facts(parts), Stage.RENDER
            config, budget = self.config, options.budget or gemma.DEFAULT_BUDGET
            prompt = tasks.prompt(config, item, _kinds(parts))
            asked = (*parts, prompt) if prompt else tuple(parts)
            request = Request(
                item.row_index,
                asked,
                config.prompts.system if item.system is None else item.system,
                budget,
                config.sampling.max_tokens,
            )
            ready = self.renderer.render(request)
        except Exception as error:
            elapsed = _ms_since(started)
            return Unrendered(
                item.row_index,
                _failure(error, stage),
                facts,
                decode_ms=elapsed if decode_ms is None else decode_ms,
                render_ms=None if decode_ms is None else elapsed,
                attempts=max(attempts, getattr(error, "attempts", 1)),
            )
        return Rendered(
            item.row_index,
            ready.payload,
            ready.nbytes,
            ready.tokens,
            facts,
            _bucket(parts, budget),
            decode_ms,
            _ms_since(started),
            attempts,
        )

    def _meant(self, medium: Media) -> Media:
        """The part of the medium that the run is about."""
        settings = self.config.media
        if settings.start is None and settings.end is None:
            return medium
        return replace(medium, start_s=settings.start, end_s=settings.end)

    def _load(
        self, medium: Media, options: media.MediaOptions
    ) -> tuple[tuple[Image | Audio | Video, *tuple[Image, ...]], int]:
        """The decoded medium, with its further pages, and how many tries fetching it took."""
        for attempt in range(1, FETCHES + 1):
            try:
                loaded = media.load_all(medium, self.config.kinds, options)
                break
            except FetchError as error:
                if attempt == FETCHES or not _passing(error):
                    error.attempts = attempt
                    raise
                time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        return loaded, attempt

    def _check_fits(self, loaded: Image | Audio | Video) -> None:
        if not isinstance(loaded, Audio):
            if not self.model.sees:
                raise RenderError("no_vision_tower", f"{self.model.name} takes no images or video")
            return
        if not self.model.hears:
            raise RenderError("no_audio_tower", f"{self.model.name} takes no audio; E2B, E4B and 12B do")
        if loaded.duration_s > gemma.MAX_AUDIO_SECONDS:
            raise RenderError(
                "audio_too_long",
                f"more than {gemma.MAX_AUDIO_SECONDS} s of sound, which is what the model hears at a time; cut it, "
                "or transcribe it in a row of its own, which cuts by itself",
            )

    def _split(self, row_index: int, medium: Media, loaded: Audio, options: media.MediaOptions) -> Split | None:
        """The spans of a sound that is too long for the model, or in which nobody speaks; None for any other."""
        from gemma4cli.media.audio import stream_audio
        from gemma4cli.speech.activity import measure

        too_long = loaded.duration_s > gemma.MAX_AUDIO_SECONDS
        if not too_long and not self.config.media.vad:
            return None
        activity = measure(stream_audio(medium, options) if too_long else [loaded.samples])
        begins = medium.start_s or 0.0
        spans = tuple(
            replace(span, start_s=begins + span.start_s, end_s=begins + span.end_s)
            for span in arrange(activity, CutOptions())
        )
        return Split(row_index, spans, activity.duration_s, 0.0) if too_long or not spans else None

    def _options(self, item: Item) -> media.MediaOptions:
        """As the run says; half of it for a row that was too much for the engine."""
        settings = self.config.media
        if item.smaller:
            lower = [budget for budget in gemma.BUDGETS if budget < settings.max_soft_tokens]
            settings = replace(
                settings,
                max_soft_tokens=lower[-1] if lower else settings.max_soft_tokens,
                max_frames=max(1, settings.max_frames // 2),
            )
        return media.MediaOptions(
            background=settings.background,
            max_frames=settings.max_frames,
            max_pixels=settings.max_pixels,
            max_duration_s=settings.max_duration,
            max_audio_s=gemma.MAX_AUDIO_SECONDS,
            root=settings.root,
            allow_private_hosts=settings.allow_private_hosts,
            budget=settings.max_soft_tokens,
            fps=settings.fps,
            animation_frames=settings.frames,
            pages=settings.frames or (None if settings.pages else 1),
            channel=settings.channel,
        )


def _windows(row_index: int, medium: Media, loaded: Video, length_s: float) -> Split | None:
    """The windows of a video that is longer than one; None for any other."""
    end_s = min(loaded.duration_s, loaded.duration_s if medium.end_s is None else medium.end_s)
    spans = windows(medium.start_s or 0.0, end_s, length_s)
    return Split(row_index, spans, loaded.duration_s, 0.0, kind=Kind.VIDEO) if len(spans) > 1 else None


def _passing(error: FetchError) -> bool:
    """Whether another try may fare better: a server that is busy or silent, not a file that is not there."""
    return error.type in ("timeout", "server_error")


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
