"""What a run is: what decides its rows' answers, and with what they are made. `overrides` puts it together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gemma4cli import flag_values, gpus, recipes
from gemma4cli.features import Features
from gemma4cli.gemma import MAX_AUDIO_SECONDS
from gemma4cli.media.options import MediaOptions
from gemma4cli.recipes import Prompts, Recipe
from gemma4cli.records import Example, Kind, Sampling

BUCKET_ORDER, INPUT_ORDER = "bucket", "input"
TASKS = ("caption", "transcribe", "annotate")


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """How media become pixels and samples; `background` is RGB from 0 to 255.

    max_soft_tokens: of an image; with auto_soft_tokens at most, for the size of each says how many are worth it.
    root: files outside this folder are refused; None allows all.
    allow_protocols: of fsspec, that rows may name beside those of object stores.
    vad: clips in which nobody speaks are not given to the model for transcription, which would invent words.
    channel: `mix`, `left`, `right`, or the number of the channel of a sound that is heard, from 1.
    start, end: the part of a sound or video that is meant, in seconds from its beginning; None is its own.
    fps: frames a second of a video, up to max_frames; None takes even ones.
    frames: an animated picture is a video of so many frames, a file of several pages so many pictures; None takes
        the first picture.  pages: a file of several pages is several pictures.
    window: seconds after which a video goes on as another; None shows the model the whole at once.
    max_segment: seconds of sound that the model is to hear at a time, at most.
    """

    max_soft_tokens: int
    auto_soft_tokens: bool
    max_frames: int
    background: tuple[int, int, int]
    max_pixels: int
    max_duration: float
    root: str | None
    allow_private_hosts: bool
    vad: bool
    allow_protocols: frozenset[str] = frozenset()
    channel: str = flag_values.MIX
    start: float | None = None
    end: float | None = None
    fps: float | None = None
    frames: int | None = None
    pages: bool = False
    window: float | None = None
    max_segment: float = float(MAX_AUDIO_SECONDS)

    def options(self) -> MediaOptions:
        """What reading media needs to know of it."""
        return MediaOptions(
            background=self.background,
            max_frames=self.max_frames,
            max_pixels=self.max_pixels,
            max_duration_s=self.max_duration,
            max_audio_s=MAX_AUDIO_SECONDS,
            root=self.root,
            allow_private_hosts=self.allow_private_hosts,
            allow_protocols=self.allow_protocols,
            budget=self.max_soft_tokens,
            fps=self.fps,
            animation_frames=self.frames,
            pages=self.frames or (None if self.pages else 1),
            channel=self.channel,
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give up: on a row, on the engine, on the job. None of it changes an answer.

    row_timeout_s: to fetch, decode and render a row.  stall_timeout_s: for the engine to make no token.
    max_engine_deaths: in a row, without a finished row.  grace_s: for rows in the engine when a run is stopped.
    max_failures: failed rows that end the job, a number or a share of the rows so far; None for no limit.
    answer_retries: times that an answer which is not what it has to be is asked for again.
    readers: rows that are read at a time, each by a process of its own; None is one for each core.
    """

    row_timeout_s: float
    stall_timeout_s: float
    max_engine_deaths: int
    grace_s: float
    max_failures: int | float | None
    answer_retries: int
    readers: int | None = None


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything that decides what a row's answer will be, and with what it is made.

    translate_to: the language that transcripts are translated into; None leaves them as they are.
    sound: how the sound track of a video is transcribed beside the answer; None leaves it unheard.
    summary: how the answers to a video's windows are summed up; None puts them one below the other.
    outputs: what each row is asked, by name, where that is several things; empty where it is one.
    examples: questions with their answers that come before each row.
    features: what of the engine it uses beyond the usual.
    order: how rows follow one another through the engine; the output is in the order of the input whatever it is.
    gpus: those that engines run on, each on tensor_parallel x pipeline_parallel of them, or several on one; None is
        one engine, on the first ones. None of it changes an answer.
    """

    task: str
    kinds: frozenset[Kind]
    model: str
    engine: str
    engine_args: Mapping[str, Any]
    prompts: Prompts
    sampling: Sampling
    media: MediaSettings
    limits: Limits
    translate_to: str | None = None
    sound: Recipe | None = None
    summary: Recipe | None = None
    outputs: Mapping[str, Recipe] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    order: str = BUCKET_ORDER
    features: Features = field(default_factory=Features)
    gpus: gpus.Gpus | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def engines(self) -> int:
        """How many --gpus comes to, whether or not they are there; all of them are counted on this machine."""
        if self.gpus is None:
            return 1
        return max(1, (self.gpus.count or len(self.gpus.numbers or gpus.visible())) // self.gpus_per_engine)

    @property
    def cuts(self) -> bool:
        """Whether a long sound or video goes to the engine in pieces, so that one row can keep all cores busy."""
        return self.task == "transcribe" or self.sound is not None or self.media.window is not None

    def recipe(self, task: str | None) -> Recipe:
        """What an item is asked: a row, or a piece of one that has a task of its own or is one of its outputs."""
        if task is not None and task.startswith(recipes.OUTPUT):
            return self.outputs[task.removeprefix(recipes.OUTPUT)]
        if task == recipes.SUMMARISE and self.summary is not None:
            return self.summary
        if task == recipes.TRANSCRIBE and self.sound is not None:
            return self.sound
        return Recipe(self.prompts, self.sampling, self.examples)

    def asks(self, task: str | None) -> tuple[Recipe, ...]:
        """All that an item is asked at once: a whole row may be asked for several outputs."""
        return tuple(self.outputs.values()) if task is None and self.outputs else (self.recipe(task),)

    @property
    def wordings(self) -> tuple[str | None, ...]:
        """All prompts that may be filled in with what a row says."""
        recipes = [*self.asks(None), *filter(None, (self.summary,))]
        return tuple(text for each in recipes for text in (each.prompts.text, each.prompts.system))

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers to a row, at most."""
        return sum(each.sampling.most_tokens * (each.sampling.n or 1) for each in self.asks(None))

    @property
    def longest_answer(self) -> int:
        """Tokens of one answer, at most."""
        return max(each.sampling.most_tokens for each in self.asks(None))

    def as_dict(self) -> dict[str, Any]:
        """What the output's metadata and the run summary say about how the rows were made."""
        more = {name: recipe for name, recipe in (("sound", self.sound), ("summary", self.summary)) if recipe}
        more |= {f"{recipes.OUTPUT}{name}": recipe for name, recipe in self.outputs.items()}
        return {
            "task": self.task,
            "model": self.model,
            "engine": self.engine,
            "engine_args": dict(self.engine_args),
            "system": self.prompts.system,
            "prompt": _asked(self.prompts),
            "sampling": asdict(self.sampling),
            "examples": [{"digest": e.digest, "prompt": e.prompt, "answer": e.answer} for e in self.examples],
            "features": asdict(self.features),
            "media": {name: getattr(self.media, name) for name in MediaSettings.__slots__}
            | {"allow_protocols": sorted(self.media.allow_protocols)},
        } | {
            name: {"prompt": _asked(recipe.prompts), "sampling": asdict(recipe.sampling)}
            for name, recipe in more.items()
        }


def _asked(prompts: Prompts) -> str | dict[str, str]:
    return prompts.text or {kind.value: text for kind, text in prompts.by_kind.items()}
