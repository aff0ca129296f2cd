"""The records that travel down the line, from an input row to an output row.

Plain frozen data, importable in milliseconds: nothing here touches media, vLLM or Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What a medium is to the model."""

    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"


class Stage(StrEnum):
    """Where on the line a row failed."""

    PARSE = "parse"  # reading the manifest row, or the model's answer
    FETCH = "fetch"  # getting the bytes
    DECODE = "decode"  # making pixels or samples of them
    RENDER = "render"  # making the engine's input: prompt, placeholders, lengths
    ENGINE = "engine"  # generating


class Status(StrEnum):
    """What became of a row."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no answer, in words for the person who reads the output file."""

    stage: Stage
    type: str
    message: str


@dataclass(frozen=True, slots=True)
class Media:
    """One medium as its input names it: where the bytes are, not what they turn out to be.

    location: absolute path, or a file:, data:, http: or https: URI, or one that fsspec opens; empty when only `data`
        is given.
    data: the bytes themselves, when the manifest carries them; they win over `location`.
    kind: what the input says it is (the column's name, the task); None lets the content decide.
    start_s, end_s: the part of its sound or frames that is meant, in seconds from its first sample or frame; None is
        its own start or end. Pictures are not cut by them.
    span: where in the file at `location` the bytes lie, as start and length: a member of a tar; None is all of it.
    version: of a file elsewhere, what its store says to tell it from what it was; None where nobody asked.
    """

    location: str
    data: bytes | None = None
    kind: Kind | None = None
    start_s: float | None = None
    end_s: float | None = None
    span: tuple[int, int] | None = None
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One input row.

    row_index: position in the input, from 0; the output can be put in this order.
    id: the manifest's id, else the path relative to the folder that was named, else the position.
    source: what the user wrote for the first medium, printable; for people.
    content: media and texts in the order the row gives them, without the prompt.
    prompt: what follows them; None is the job's, and an empty one that the texts among them say it all.
    system: the row's own system prompt; None is the job's.
    extra: columns to carry to the output.
    failure: set when the row could not be read; such a row goes straight to the output.
    smaller: give the model less of it: the engine died on the whole.
    task: of a piece of a row, what it is for where that is not the run's own task, or which of the run's outputs it
        is; None is the whole.
    previous: of a piece of a sound, the end of what was said before it, where the model is to know.
    told: columns that the prompts of the job are filled in with.
    adapter: the name of the LoRA adapter that answers it, as the row gives it; None is the job's, and empty is none.
    """

    row_index: int
    id: str
    source: str
    content: tuple[Media | str, ...] = ()
    prompt: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    system: str | None = None
    smaller: bool = False
    task: str | None = None
    previous: str = ""
    told: Mapping[str, Any] = field(default_factory=dict)
    adapter: str | None = None

    @property
    def media(self) -> tuple[Media, ...]:
        return tuple(part for part in self.content if isinstance(part, Media))


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer may be; one of them is set.

    schema: JSON documents of this JSON Schema, which is JSON itself.
    model: beside a schema, the pydantic model that it is of (package.module:Model), which validates them as well.
    choices: these texts.  regex: texts of this pattern.
    """

    schema: str | None = None
    choices: tuple[str, ...] | None = None
    regex: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """A question about some media and its answer, which stand before each row in the prompt.

    digest: of the media's bytes.  tokens: of all of it, those of text about.
    """

    content: tuple[Media, ...]
    prompt: str
    answer: str
    digest: str
    tokens: int


_MARKS = 8  # tokens that begin and end a thought, its label among them


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the engine draws tokens; temperature 0 is greedy.

    max_tokens: of the answer; what is thought before it comes on top.
    constraint: what it may draw; None is anything.  logprobs: whether to tell how likely the answer was.
    n: answers to draw for each row, with seeds that follow one another; None is one, without a list of them.
    thinking_budget: tokens that the model may think for before it answers; None does not let it.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    repetition_penalty: float = 1.0
    constraint: Constraint | None = None
    logprobs: bool = False
    n: int | None = None
    thinking_budget: int | None = None

    @property
    def scored(self) -> bool:
        """Whether to tell how likely each choice was."""
        return self.logprobs and self.constraint is not None and self.constraint.choices is not None

    @property
    def most_tokens(self) -> int:
        """Of everything that is generated for an answer: its thoughts and their marks too."""
        return self.max_tokens if self.thinking_budget is None else self.max_tokens + self.thinking_budget + _MARKS


@dataclass(frozen=True, slots=True)
class Tokens:
    """Prompt tokens of a row: the whole prompt, and of it what each kind of media takes."""

    prompt: int = 0
    image: int = 0
    audio: int = 0
    video: int = 0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.prompt + other.prompt, self.image + other.image, self.audio + other.audio, self.video + other.video
        )


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """What decoding found: upright pixels, seconds of the source, frames given to the model."""

    modality: str = ""
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None
    frames: int | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """What is known of one medium without decoding it; None for what is not.

    kind: what it will be read as.  width, height: upright pixels.  duration_s: of all of it, as its header has it.
    frames: of a video, or pages of a file that has several; 1 of a still picture.
    failure: why it cannot be read, as far as its header shows that.
    """

    kind: Kind | None = None
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None
    fps: float | None = None
    frames: int | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was read from elsewhere: how many files, their bytes, and the seconds that it took."""

    files: int = 0
    nbytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: Fetched) -> Fetched:
        return Fetched(self.files + other.files, self.nbytes + other.nbytes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A row ready for the engine.

    payload: the engine's own, opaque to everybody else, about `nbytes` large; or a `transport.Package` of it.
    beside: the row_index of another output of the same row, at whose engine it finds what was made of their media.
    asked: of a row that is asked several things, the tokens of each; `payload` then is a tuple with one for each, which
        share what was made of the media, and `tokens` is their sum.
    bucket: what makes rows alike to the encoder, such as `image-280`, `audio-10s` or `video-32f`.
    adapter: the name of the LoRA adapter that answers it.
    """

    row_index: int
    payload: Any
    nbytes: int
    tokens: Tokens
    facts: MediaFacts
    bucket: str
    decode_ms: float
    render_ms: float
    attempts: int = 1
    asked: tuple[Tokens, ...] = ()
    beside: int | None = None
    fetched: Fetched = Fetched()
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A row that goes to the engine in pieces: the windows of its video, the parts of its sound, or both.

    windows, sound: `speech.Span`s in order. One window is the whole video, and none is a row of sound alone. Without
    any span, nobody speaks in the sound; None is sound that is not asked about.
    duration_s: of the whole, as its medium has it; None where that was not looked at.
    """

    row_index: int
    windows: tuple[Any, ...]
    sound: tuple[Any, ...] | None
    duration_s: float | None
    decode_ms: float = 0.0
    attempts: int = 1
    fetched: Fetched = Fetched()


@dataclass(frozen=True, slots=True)
class Unrendered:
    """A row that did not become an engine input, with what was learnt of it on the way."""

    row_index: int
    failure: Failure
    facts: MediaFacts
    decode_ms: float | None = None
    render_ms: float | None = None
    attempts: int = 1
    fetched: Fetched = Fetched()


@dataclass(frozen=True, slots=True)
class Sample:
    """One of several answers to a row; its fields are those of a Generation."""

    text: str
    finish_reason: str | None
    output_tokens: int
    logprob: float | None
    thinking: str | None = None
    thinking_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What the engine made of one row: text, or a failure. `attempts` counts how often it was given the row.

    output_tokens: all that were generated, for all samples and their thoughts.
    logprob: natural logarithm of how likely the text was, among those that the constraint allows.
    thinking: what the model thought before the text; None where it did not.
    samples: all answers, where several were asked for; the first is the row's own.
    choice_logprobs: natural logarithm of how likely each choice was, where that was asked for.
    """

    row_index: int
    text: str | None
    finish_reason: str | None
    output_tokens: int
    queue_ms: float
    generate_ms: float
    failure: Failure | None = None
    attempts: int = 1
    logprob: float | None = None
    thinking: str | None = None
    thinking_tokens: int | None = None
    samples: tuple[Sample, ...] = ()
    choice_logprobs: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One output row. Field order is column order; `extra` follows as columns of its own.

    segments: of a transcript or a video in windows, `start` and `end` in seconds, `text` and `tokens` of each part,
        and its `transcript` where the row has one.
    transcript: what was said, where that is not the text: beside a translation, or a description of a video.
    answer, logprob, choice_logprobs, thinking, thinking_tokens, samples: the text as a value, how likely it and the
        other choices were, what was thought before it, and all answers; columns only in runs that ask for them.
    outputs: of a row that is asked several things, what came of each by its name; a column only in such runs.
    """

    row_index: int
    id: str
    source: str
    modality: str
    task: str
    status: Status
    text: str | None = None
    segments: tuple[Mapping[str, Any], ...] | None = None
    transcript: str | None = None
    error_stage: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    image_tokens: int | None = None
    audio_tokens: int | None = None
    video_tokens: int | None = None
    output_tokens: int | None = None
    width: int | None = None
    height: int | None = None
    duration_s: float | None = None
    frames: int | None = None
    bucket: str | None = None
    decode_ms: float | None = None
    render_ms: float | None = None
    queue_ms: float | None = None
    generate_ms: float | None = None
    attempts: int = 1
    answer: Any = None
    logprob: float | None = None
    choice_logprobs: Mapping[str, float] | None = None
    thinking: str | None = None
    thinking_tokens: int | None = None
    samples: tuple[Mapping[str, Any], ...] | None = None
    outputs: Mapping[str, Mapping[str, Any]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
