"""What the user set, and how it becomes a run: over the defaults of its task, or refused.

Defaults live in `configs/tasks/<task>.toml`, which travels in the wheel. A value that the user did not set is None here
and never overrides. Every refusal is a `UsageError` that names the flag.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from gemma4cli import examples, features, flag_values, gpus, recipe_files, recipes
from gemma4cli.config import BUCKET_ORDER, INPUT_ORDER, Limits, MediaSettings, RunConfig
from gemma4cli.errors import ParseError, UsageError
from gemma4cli.gemma import MAX_AUDIO_SECONDS, MAX_FRAMES
from gemma4cli.recipes import Recipe
from gemma4cli.records import Kind, Sampling
from gemma4cli.speech.spans import SHORTEST_S

MOST_OUTPUTS = 32
_OUTPUT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")
_TAKEN = frozenset({"feature", "dtype"})  # `datasets` would misread a field that is called so


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the user set; None leaves the task's default.

    outputs: by name, what is set for one output alone, by the names of these fields.
    examples: as a recipe has them.
    """

    model: str | None = None
    lora: Sequence[str] | None = None
    lora_column: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    speculative: str | None = None
    speculative_method: str | None = None
    drafted: int | None = None
    suppress_tokens: str | None = None
    encoder_cudagraph: bool = False
    prefix_caching: bool | None = None
    engine: str | None = None
    engine_args: tuple[str, ...] = ()
    kinds: str | None = None
    gpus: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    prompt: str | None = None
    system: str | None = None
    language: str | None = None
    translate_to: str | None = None
    condition_on_previous_text: bool = False
    with_audio: bool = False
    summarise: bool = False
    summary_prompt: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    schema: str | None = None
    choices: str | None = None
    regex: str | None = None
    logprobs: bool = False
    n: int | None = None
    thinking: bool = False
    thinking_budget: int | None = None
    answer_retries: int | None = None
    max_soft_tokens: int | str | None = None
    max_frames: int | None = None
    background: str | None = None
    max_pixels: int | None = None
    max_duration: float | None = None
    root: str | None = None
    allow_private_hosts: bool = False
    allow_protocols: frozenset[str] = frozenset()
    vad: bool | None = None
    channel: str | None = None
    start: str | None = None
    end: str | None = None
    fps: float | None = None
    frames: str | None = None
    pages: bool = False
    window: float | None = None
    order: str | None = None
    max_segment: float | None = None
    row_timeout: float | None = None
    stall_timeout: float | None = None
    max_engine_deaths: int | None = None
    grace: float | None = None
    max_failures: str | None = None
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()
    fetch_concurrency: int | None = None


@cache
def defaults(task: str) -> dict[str, Any]:
    """The parsed `configs/tasks/<task>.toml`."""
    return tomllib.loads((recipe_files.folder() / "tasks" / f"{task}.toml").read_text(encoding="utf-8"))


def kinds_of(task: str) -> frozenset[Kind]:
    """The kinds of media that a task takes."""
    return frozenset(Kind(kind) for kind in defaults(task)["kinds"])


def build(task: str, user: Overrides) -> RunConfig:
    """Puts the user's settings over the defaults of the task, and checks the result.

    Raises:
        UsageError: a value is out of range or of the wrong form; the message names its flag.
    """
    base = defaults(task)
    media = base["media"]
    start, end = flag_values.span(user.start, user.end)
    _refuse_contradictions(task, user)

    def chosen(name: str) -> Any:
        value = getattr(user, name)
        return media[name] if value is None else value

    own = recipes.of_task(base, user)
    soft_tokens, auto = flag_values.soft_tokens(chosen("max_soft_tokens"), base["media"]["auto_soft_tokens"])
    config = RunConfig(
        task=task,
        kinds=flag_values.kinds(user.kinds, kinds_of(task), task),
        model=user.model or ("tiny" if user.engine == "fake" else "E4B"),
        engine=flag_values.one_of("--engine", user.engine or "vllm", ("vllm", "fake")),
        engine_args=parse_engine_args(user.engine_args),
        prompts=own.prompts,
        sampling=own.sampling,
        media=MediaSettings(
            max_soft_tokens=soft_tokens,
            auto_soft_tokens=auto,
            max_frames=int(flag_values.between("--max-frames", chosen("max_frames"), 1, 32)),
            background=flag_values.colour(chosen("background")),
            max_pixels=flag_values.at_least("--max-pixels", chosen("max_pixels"), 1),
            max_duration=flag_values.between("--max-duration", chosen("max_duration"), 0.0, 1e9, open_below=True),
            root=flag_values.folder("--root", user.root),
            allow_private_hosts=user.allow_private_hosts,
            allow_protocols=user.allow_protocols,
            vad=media.get("vad", True) if user.vad is None else user.vad,
            channel=flag_values.channel(user.channel or flag_values.MIX),
            start=start,
            end=end,
            fps=None if user.fps is None else flag_values.between("--fps", user.fps, 0.0, 1000.0, open_below=True),
            frames=flag_values.frames(user.frames, MAX_FRAMES),
            pages=user.pages,
            window=None if user.window is None else flag_values.between("--window", user.window, 1.0, 86_400.0),
            max_segment=flag_values.between(
                "--max-segment",
                media.get("max_segment", MAX_AUDIO_SECONDS) if user.max_segment is None else user.max_segment,
                SHORTEST_S,
                float(MAX_AUDIO_SECONDS),
            ),
        ),
        limits=_limits(user),
        translate_to=user.translate_to and user.translate_to.strip(),
        sound=recipes.of_sound(defaults("transcribe"), user.language) if user.with_audio else None,
        summary=recipes.of_summary(base, user) if user.summarise else None,
        outputs={name: _output(base, user, name) for name in user.outputs},
        features=features.of(user),
        order=flag_values.one_of("--order", user.order or BUCKET_ORDER, (BUCKET_ORDER, INPUT_ORDER)),
        gpus=None if user.gpus is None else gpus.parse(user.gpus),
        tensor_parallel=_parallel("--tensor-parallel", user.tensor_parallel),
        pipeline_parallel=_parallel("--pipeline-parallel", user.pipeline_parallel),
    )
    found = examples.of(user.examples, own.prompts, config.kinds, config.media.options(), soft_tokens)
    for i, example in enumerate(found):
        _refuse_unlike(f"examples[{i}]", example.answer, own.sampling)
    return replace(config, examples=found)


def _refuse_unlike(shown: str, answer: str, sampling: Sampling) -> None:
    """An example whose answer is none that a row may have would teach the model what it cannot say."""
    if sampling.constraint is None:
        return
    from gemma4cli import answers

    try:
        answers.check(sampling.constraint, answer.strip())
    except ParseError as error:
        raise UsageError(f"{shown}: {error}", "Give it an answer that rows may have.") from None


def _refuse_contradictions(task: str, user: Overrides) -> None:
    """Flags that say nothing without another one."""
    if task == "transcribe" and user.window is not None:
        raise UsageError("--window is about pictures, and transcribe hears sound alone", "Sound is cut by itself.")
    if user.summarise and user.window is None:
        raise UsageError("--summarise sums up the windows of a video", "Add --window SECONDS.")
    if user.summary_prompt is not None and not user.summarise:
        raise UsageError("--summary-prompt is about summaries", "Add --summarise and --window SECONDS.")
    if task == "caption" and user.language is not None and not user.with_audio:
        raise UsageError("--language is about what is spoken", "Add --with-audio, or ask for it in --prompt.")
    if user.thinking_budget is not None and not user.thinking:
        raise UsageError("--thinking-budget is about thinking, which is off", "Add --thinking.")
    if user.outputs:
        _refuse_beside_outputs(task, user)
    if user.window is not None:
        for flag in ("schema", "choices", "regex", "logprobs", "n", "thinking"):
            if getattr(user, flag):
                raise UsageError(f"--{flag} is about one answer, and --window makes several", "Leave one of them out.")


def _refuse_beside_outputs(task: str, user: Overrides) -> None:
    """What is about one answer to a row says nothing where each row has several."""
    if task == "transcribe":
        raise UsageError("transcribe has one output, the transcript", 'Use task = "annotate" with outputs.')
    for name in ("prompt", "schema", "choices", "regex", "window", "with_audio", "examples"):
        if getattr(user, name):
            flag = name if name == "examples" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is about one answer, and outputs make several", "Leave one of them out.")
    lower = [name.lower() for name in user.outputs]
    for i, name in enumerate(user.outputs):
        if lower[i] in lower[:i]:
            other = list(user.outputs)[lower.index(lower[i])]
            raise UsageError(f"outputs.{other} and outputs.{name} differ in case alone", "SQL cannot tell them apart.")
    if len(user.outputs) > MOST_OUTPUTS:
        raise UsageError(f"{len(user.outputs)} outputs are too many", f"A row can have {MOST_OUTPUTS}.")


def _output(base: Mapping[str, Any], user: Overrides, name: str) -> Recipe:
    """What one of the outputs is asked: the run's settings with its own over them."""
    if not _OUTPUT_NAME.fullmatch(name) or name in _TAKEN:
        raise UsageError(f"outputs.{name} cannot be the name of a column", "Use letters, digits and _.")
    try:
        recipe = recipes.of_task(base, replace(user, **user.outputs[name]))
    except UsageError as error:
        raise UsageError(f"outputs.{name}: {error}", error.hint) from None
    if recipe.prompts.text is None and not recipe.prompts.by_kind:
        raise UsageError(f"outputs.{name} has no prompt", "Say what the model is to do with each row.")
    return recipe


def _parallel(flag: str, value: int | None) -> int:
    return 1 if value is None else flag_values.at_least(flag, value, 1)


def parse_engine_args(pairs: tuple[str, ...]) -> dict[str, Any]:
    """`KEY=VALUE` strings; a value is read as JSON where it is JSON, else as text."""
    import json

    parsed: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip().removeprefix("--").replace("-", "_")
        if not equals or not key:
            raise UsageError(
                f"--engine-arg {pair!r} is not KEY=VALUE",
                "Example: --engine-arg max_num_seqs=64",
            )
        lowered = value.lower()
        try:
            parsed[key] = json.loads(lowered if lowered in ("true", "false") else value)
        except ValueError:
            parsed[key] = value
    return parsed


def _limits(user: Overrides) -> Limits:
    def chosen(value: float | None, default: float) -> float:
        return default if value is None else value

    day = 86_400.0
    return Limits(
        row_timeout_s=flag_values.between("--row-timeout", chosen(user.row_timeout, 300.0), 0.0, day, open_below=True),
        stall_timeout_s=flag_values.between(
            "--stall-timeout", chosen(user.stall_timeout, 600.0), 0.0, day, open_below=True
        ),
        max_engine_deaths=flag_values.at_least("--max-engine-deaths", int(chosen(user.max_engine_deaths, 12)), 0),
        grace_s=flag_values.between("--grace", chosen(user.grace, 30.0), 0.0, day),
        max_failures=flag_values.max_failures(user.max_failures),
        readers=None
        if user.fetch_concurrency is None
        else flag_values.whole("--fetch-concurrency", user.fetch_concurrency, 1, 1024),
        answer_retries=flag_values.whole("--answer-retries", int(chosen(user.answer_retries, 1)), 0, 100),
    )
