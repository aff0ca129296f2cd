"""What each task asks of the model, and what it makes of the answer."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from gemma4cli import answers, prompt_templates, repetition
from gemma4cli.config import RunConfig
from gemma4cli.errors import ParseError, RenderError
from gemma4cli.recipes import TRANSCRIBE, Prompts, Recipe
from gemma4cli.records import Failure, Generation, Item, Kind, MediaFacts, Sampling, Status


def kinds_of(config: RunConfig, item: Item) -> frozenset[Kind]:
    """What an item's media may be: a piece that is a video's sound is heard, whatever the run takes."""
    return frozenset({Kind.AUDIO}) if item.task == TRANSCRIBE else config.kinds


def sought_kinds(config: RunConfig) -> frozenset[Kind]:
    """Which files and columns a run looks for: transcription takes videos too, for their sound."""
    return config.kinds | {Kind.VIDEO} if Kind.AUDIO in config.kinds else config.kinds


def wanted_kind(task: str) -> Kind | None:
    """What a file is taken for whatever else it holds: transcription hears the sound of a video."""
    return Kind.AUDIO if task == "transcribe" else None


def prompt(prompts: Prompts, item: Item, kinds: Collection[Kind]) -> str:
    """The row's own prompt, else --prompt, else the task's prompt for the kind of medium that the row holds.

    A part of a sound is told the end of what was said before it, where the run wants that.

    Empty where the row is a whole message, or says in a text of its own what is asked, and there is nothing to add.

    The job's prompts are templates (see `prompt_templates`), a row's own is not.

    Raises:
        RenderError: there is none.
        ParseError: it cannot be filled in.
    """
    asked = _asked(prompts, item, kinds)
    if not (prompts.previous and item.previous):
        return asked
    return f"{asked}\n{prompts.previous.replace('{text}', item.previous)}".strip()


def _asked(prompts: Prompts, item: Item, kinds: Collection[Kind]) -> str:
    if item.prompt and item.prompt.strip():
        return item.prompt
    if prompts.text or item.prompt == "":
        asked = prompt_templates.filled(prompts.text or "", item)
        if prompts.text and not asked:
            raise ParseError("prompt_template", "the prompt comes to nothing for this row")
        return asked
    for kind in (Kind.VIDEO, Kind.IMAGE, Kind.AUDIO):
        if kind in kinds and kind in prompts.by_kind:
            return prompts.by_kind[kind]
    if any(isinstance(part, str) and part.strip() for part in item.content):
        return ""
    raise RenderError("no_prompt", "the row's prompt is empty, and there is no --prompt to fall back on")


def system(prompts: Prompts, item: Item) -> str:
    """The row's own system prompt, else the job's. Raises ParseError where that cannot be filled in."""
    return prompt_templates.filled(prompts.system, item) if item.system is None else item.system


def adapter(config: RunConfig, item: Item) -> str | None:
    """The name of the adapter that answers an item; None is the model as it is.

    Raises ParseError `unknown_adapter` where the row names one that there is not.
    """
    if item.adapter is None:
        return config.features.adapter
    name = item.adapter.strip()
    known = [known for known, _ in config.features.loras]
    if name and name not in known:
        message = f"the column {config.features.lora_column} names the adapter {name!r}; there are {', '.join(known)}"
        raise ParseError("unknown_adapter", message)
    return name or None


def answer(text: str) -> str:
    """The model's words as they go to the output."""
    return text.strip()


def answered(recipe: Recipe, generation: Generation, facts: MediaFacts) -> dict[str, Any]:
    """What came of asking once, by the names of a Row's fields: the answer, or with it why there is none."""
    said: dict[str, Any] = {
        "finish_reason": "repetition" if loops(generation) else generation.finish_reason,
        "output_tokens": generation.output_tokens,
        "logprob": generation.logprob,
        "choice_logprobs": generation.choice_logprobs,
        "thinking": generation.thinking,
        "thinking_tokens": generation.thinking_tokens,
    }
    if generation.failure is not None:
        return said | failed(generation.failure)
    said["text"] = answer(generation.text or "")
    said["samples"] = answers.samples(recipe.sampling, generation, facts)
    try:
        return said | {"answer": answers.read(recipe.sampling, generation, facts)}
    except ParseError as error:
        return said | failed(error.failure())


def failed(failure: Failure) -> dict[str, Any]:
    """A failure by the names of a Row's fields."""
    return {
        "status": Status.FAILED,
        "error_stage": failure.stage.value,
        "error_type": failure.type,
        "error_message": failure.message,
    }


def translation(text: str, target: str) -> tuple[str, str]:
    """The transcript and its translation, from the answer to the prompt that asks for both.

    Raises ParseError `no_translation` where no line begins with the language and a colon.
    """
    marker = re.compile(rf"^[ \t*_]*{re.escape(target)}[ \t*_]*:[\s*_]*", re.IGNORECASE | re.MULTILINE)
    match = marker.search(text)
    if match is None:
        shown = " ".join(text.split())[:60]
        message = f"no line of the answer begins with {target}:, so none of it is known to be the translation: {shown}"
        raise ParseError("no_translation", message)
    return answer(text[: match.start()]), answer(text[match.end() :])


def loops(generation: Generation) -> bool:
    """Whether the answer was cut off while it repeated itself."""
    return generation.finish_reason == "length" and repetition.loops(generation.text or "")


def another_try(
    config: RunConfig, item: Item, generation: Generation, facts: MediaFacts, tries: int
) -> Sampling | None:
    """How to ask for an answer once more, after `tries` of it; None where it is as good as it gets."""
    sampling = config.recipe(item.task).sampling
    if loops(generation) and tries == 1:
        return less_repetitive(sampling)
    if generation.failure is not None or tries > config.limits.answer_retries:
        return None
    try:
        answers.read(sampling, generation, facts)
    except ParseError as error:
        # What was cut off may be long because it repeats itself; other mistakes are a matter of the draw.
        again = less_repetitive(sampling)
        return replace(
            again,
            seed=sampling.seed + tries,
            repetition_penalty=again.repetition_penalty if error.type == answers.CUT_OFF else 1.0,
        )
    return None


def died(generation: Generation) -> bool:
    """Whether the engine dies on the row."""
    return generation.failure is not None and generation.failure.type == "engine_died"


def less_repetitive(sampling: Sampling) -> Sampling:
    """The sampling for a second try at an answer that went round in circles."""
    return replace(
        sampling,
        temperature=max(sampling.temperature, 0.7),
        seed=sampling.seed + 1,
        repetition_penalty=1.1,
    )
