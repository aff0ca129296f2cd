"""From an item to an engine input: fetch, decode, prompt, render. What a worker of the pool does with a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from gemma4cli import buckets, examples, gemma, media, tasks
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Renderer, Request
from gemma4cli.errors import DecodeError, FetchError, RenderError, RowError
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.models import Model
from gemma4cli.recipes import Recipe
from gemma4cli.records import (
    Failure,
    Item,
    Kind,
    Media,
    MediaFacts,
    Rendered,
    Split,
    Stage,
    Tokens,
    Unrendered,
)
from gemma4cli.speech import CutOptions, Span, hear
from gemma4cli.speech.spans import SHORTEST_S
from gemma4cli.windows import windows

if TYPE_CHECKING:
    from gemma4cli.engine.base import Part

T = TypeVar("T")

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
        try:
            parts: list[Part] = []
            for part in item.content:
                if isinstance(part, str):
                    parts.append(part)
                    continue
                loaded, tries = self._tried(partial(self._read, item, part, options))
                attempts = max(attempts, tries)
                if isinstance(loaded, Split):
                    return replace(loaded, decode_ms=_ms_since(started), attempts=attempts)
                self._check_fits(loaded[0])
                parts += loaded
            decode_ms, started, facts, stage = _ms_since(started), time.perf_counter(), _facts(parts), Stage.RENDER
            adapter = tasks.adapter(self.config, item)
            budget = self._budget(item, parts)
            requests = [self._request(item, parts, recipe, budget) for recipe in self.config.asks(item.task)]
            ready = self.renderer.render_together(requests)
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
        several = item.task is None and bool(self.config.outputs)
        return Rendered(
            item.row_index,
            tuple(each.payload for each in ready) if several else ready[0].payload,
            ready[0].nbytes,
            sum((each.tokens for each in ready), Tokens()),
            facts,
            _bucket(parts, budget),
            decode_ms,
            _ms_since(started),
            attempts,
            tuple(each.tokens for each in ready) if several else (),
            adapter=adapter,
        )

    def _request(self, item: Item, parts: Sequence[Part], recipe: Recipe, budget: int) -> Request:
        prompt = tasks.prompt(recipe.prompts, item, _kinds(parts))
        return Request(
            item.row_index,
            (*parts, prompt) if prompt else tuple(parts),
            tasks.system(recipe.prompts, item),
            budget,
            recipe.sampling.most_tokens,
            thinking=recipe.sampling.thinking_budget is not None,
            turns=examples.turns(recipe.examples, self.config.kinds, self._options(item)) if recipe.examples else (),
        )

    def _read(
        self, item: Item, medium: Media, options: media.MediaOptions
    ) -> Split | tuple[Image | Audio | Video, *tuple[Image, ...]]:
        """The decoded medium with its further pages, or, for a row that goes to the engine in pieces, those."""
        whole = medium.start_s is None and medium.end_s is None  # else a piece of a row, which knows its part
        if whole:
            medium = replace(medium, start_s=self.config.media.start, end_s=self.config.media.end)
        options = replace(options, start_s=medium.start_s, end_s=medium.end_s, part_only=not whole)
        options = replace(options, keep=self.config.cuts)
        if item.row_index >= 0 and len(item.media) == 1:  # else it cannot be cut without losing what stands beside it
            if self.config.task == "transcribe" and len(item.content) == 1 and medium.kind in (None, Kind.AUDIO):
                return self._heard(item.row_index, medium, options)
            if self.config.sound is not None or self.config.media.window is not None:
                split = self._split(item, medium, options)
                if split is not None:
                    return split
        return media.load_all(medium, tasks.kinds_of(self.config, item), options)

    def _tried(self, read: Callable[[], T]) -> tuple[T, int]:
        """What `read` gives, and how many tries at fetching it took."""
        for attempt in range(1, FETCHES + 1):
            try:
                return read(), attempt
            except FetchError as error:
                if attempt == FETCHES or not _passing(error):
                    error.attempts = attempt
                    raise
                time.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("the last try returns or raises")

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

    def _heard(self, row_index: int, medium: Media, options: media.MediaOptions) -> Split | tuple[Audio]:
        """A sound that the model can hear, or the parts of one that it cannot hear whole or in which nobody speaks."""
        from gemma4cli.media.audio import stream_audio

        cutting = CutOptions.up_to(self.config.media.max_segment)
        found = hear(stream_audio(medium, options), medium.start_s or 0.0, cutting, vad=self.config.media.vad)
        return (found,) if isinstance(found, Audio) else Split(row_index, (), found.spans, found.duration_s)

    def _split(self, item: Item, medium: Media, options: media.MediaOptions) -> Split | None:
        """The windows of a video and the parts of its sound; None for all else, and for what needs neither."""
        from gemma4cli.media.audio import stream_audio

        length_s = media.video_length(medium, self.config.kinds, options)
        if length_s is None:
            return None
        begins, window = medium.start_s or 0.0, self.config.media.window
        ends = length_s if medium.end_s is None else min(length_s, medium.end_s)
        shown: tuple[Span, ...] = (Span(begins, ends),)
        if window is not None and len(item.content) == 1:
            shown = windows(begins, ends, window)
        if self.config.sound is None:
            return Split(item.row_index, shown, None, length_s) if len(shown) > 1 else None
        longest = self.config.media.max_segment
        if len(shown) > 1 and window is not None:  # so that what was said can be told apart by windows
            longest = min(longest, max(window, SHORTEST_S))
        try:
            sound = stream_audio(replace(medium, kind=Kind.AUDIO), options)
            found = hear(sound, begins, CutOptions.up_to(longest), vad=self.config.media.vad)
        except DecodeError as error:
            if error.type not in ("no_audio_stream", "no_samples", "too_short"):
                raise
            heard: tuple[Span, ...] = ()
        else:
            heard = (Span(begins, begins + found.duration_s),) if isinstance(found, Audio) else found.spans
        return Split(item.row_index, shown, heard, length_s if len(shown) > 1 else None)

    def _budget(self, item: Item, parts: Sequence[Part]) -> int:
        """The soft tokens that each image of the row may take."""
        settings = self.config.media
        budget = settings.max_soft_tokens
        if settings.auto_soft_tokens:
            budget = gemma.row_budget([(part.width, part.height) for part in parts if isinstance(part, Image)], budget)
        return gemma.smaller_budget(budget) if item.smaller else budget

    def _options(self, item: Item) -> media.MediaOptions:
        """As the run says; half of it for a row that was too much for the engine."""
        settings = self.config.media
        if item.smaller:
            settings = replace(
                settings,
                max_soft_tokens=gemma.smaller_budget(settings.max_soft_tokens),
                max_frames=max(1, settings.max_frames // 2),
            )
        return replace(settings.options(), exact_frames=self.renderer.exact_frames)


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
    names = []
    for part in parts:
        match part:
            case Image():
                names.append(buckets.image(budget))
            case Audio():
                names.append(buckets.audio(part.duration_s))
            case Video():
                names.append(buckets.video(len(part.frames)))
    return buckets.joined(names)


def _failure(error: Exception, stage: Stage) -> Failure:
    if isinstance(error, RowError):
        return error.failure()
    return Failure(stage, "internal", f"{type(error).__name__}: {error}")


def _ms_since(started: float) -> float:
    return (time.perf_counter() - started) * 1000
