"""What the model is asked and how its answers are drawn: for a row, the sound track of its video, its summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gemma4cli import flag_values, prompt_templates
from gemma4cli.errors import UsageError
from gemma4cli.records import Constraint, Example, Kind, Sampling

if TYPE_CHECKING:
    from gemma4cli.overrides import Overrides

TRANSCRIBE, SUMMARISE, OUTPUT = "transcribe", "summarise", "outputs."
"""What pieces of a row may be for, beside the task of the run; OUTPUT is followed by an output's name."""
THINKING_BUDGET = 1024  # tokens
MOST_SAMPLES = 256  # of a row: as many as an engine works on at a time


@dataclass(frozen=True, slots=True)
class Prompts:
    """The instructions of a task. `by_kind` holds one for each kind of medium that has its own.

    previous: what follows them for a part of a sound: its {text} is what was said before; None says nothing of it.
    """

    system: str
    text: str | None
    by_kind: Mapping[Kind, str]
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Instructions, and how the answers to them are drawn. `examples` come before what is asked."""

    prompts: Prompts
    sampling: Sampling
    examples: tuple[Example, ...] = ()


def of_task(base: Mapping[str, Any], user: Overrides) -> Recipe:
    """What each row of a run is asked. `base` holds the task's defaults.

    Raises:
        UsageError: a value is out of range or of the wrong form; the message names its flag.
    """
    extra = {} if user.translate_to is None else base["translation"]["sampling"]
    sampling = replace(
        _sampling({**base["sampling"], **extra}, user),
        constraint=constraint(user),
        logprobs=user.logprobs,
        n=None if user.n is None else flag_values.whole("--n", user.n, 1, MOST_SAMPLES),
        thinking_budget=_thinking_budget(user),
    )
    if sampling.n is not None and sampling.n > 1 and sampling.temperature == 0:
        raise UsageError("--n draws several answers, which temperature 0 makes all the same", "Raise --temperature.")
    return Recipe(_prompts(base, user), sampling)


def of_sound(base: Mapping[str, Any], language: str | None) -> Recipe:
    """What the sound track of a video is asked beside its pictures. `base` holds the defaults of `transcribe`.

    Flags about answers are about the row's own, so none of them counts here but `language`.
    """
    prompts = Prompts(base["prompt"]["system"].strip(), None, _by_kind(base["prompt"], language))
    return Recipe(prompts, Sampling(**base["sampling"]))


def of_summary(base: Mapping[str, Any], user: Overrides) -> Recipe:
    """What the windows of a video are asked as a whole. `base` holds the task's defaults. Raises UsageError."""
    prompt = base["summary"]["prompt"] if user.summary_prompt is None else user.summary_prompt
    if not prompt.strip():
        raise UsageError("--summary-prompt is empty", "Say how the windows of a video are to be summed up.")
    prompt_templates.checked("--summary-prompt", prompt)
    prompts = Prompts(_system(base, user), prompt.strip(), {})
    return Recipe(prompts, _sampling({**base["sampling"], **base["summary"]["sampling"]}, user))


def _thinking_budget(user: Overrides) -> int | None:
    if not user.thinking:
        return None
    budget = THINKING_BUDGET if user.thinking_budget is None else user.thinking_budget
    return flag_values.whole("--thinking-budget", budget, 1, 2**20)


def constraint(user: Overrides) -> Constraint | None:
    """What an answer may be: --schema, --choices or --regex."""
    given = [f"--{name}" for name in ("schema", "choices", "regex") if getattr(user, name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} contradict each other", "Give one of them.")
    if user.schema is not None:
        from gemma4cli import schemas  # which imports jsonschema

        model = user.schema if schemas.names_model(user.schema) else None
        return Constraint(schema=schemas.load(user.schema), model=model)
    if user.choices is not None:
        return Constraint(choices=flag_values.choices(user.choices))
    return Constraint(regex=flag_values.regex(user.regex or ""))


def _prompts(base: Mapping[str, Any], user: Overrides) -> Prompts:
    by_kind = _by_kind(base["prompt"], None if user.with_audio else user.language)
    if user.translate_to is not None:
        by_kind[Kind.AUDIO] = _translation(base["translation"]["prompt"], user)
    if user.prompt is not None and not user.prompt.strip():
        raise UsageError("--prompt is empty", "Say what the model is to do with each row.")
    prompt_templates.checked("--prompt", user.prompt)
    previous = base["prompt"]["previous"].strip() if user.condition_on_previous_text else None
    return Prompts(_system(base, user), user.prompt, by_kind, previous)


def _system(base: Mapping[str, Any], user: Overrides) -> str:
    system: str = base["prompt"]["system"] if user.system is None else user.system
    prompt_templates.checked("--system", system)
    return system.strip()


def _by_kind(section: Mapping[str, str], language: str | None) -> dict[Kind, str]:
    by_kind = {kind: section[kind].strip() for kind in Kind if section.get(kind)}
    if language is not None:
        language = language.strip()
        if not language:
            raise UsageError("--language is empty", "Example: --language English")
        by_kind[Kind.AUDIO] = section["audio_in_language"].strip().replace("{language}", language)
    return by_kind


def _translation(template: str, user: Overrides) -> str:
    target = (user.translate_to or "").strip()
    if not target or "\n" in target:
        raise UsageError("--to is empty", "Example: --task translate --to German")
    if user.prompt is not None:
        raise UsageError("--prompt and --task translate contradict each other", "Leave one of them out.")
    source = "its original language" if user.language is None else user.language.strip()
    return template.strip().replace("{language}", source).replace("{target}", target)


def _sampling(section: Mapping[str, Any], user: Overrides) -> Sampling:
    def chosen(name: str) -> Any:
        value = getattr(user, name)
        return section[name] if value is None else value

    return Sampling(
        max_tokens=flag_values.at_least("--max-tokens", chosen("max_tokens"), 1),
        temperature=flag_values.between("--temperature", chosen("temperature"), 0.0, 2.0),
        top_p=flag_values.between("--top-p", chosen("top_p"), 0.0, 1.0, open_below=True),
        top_k=flag_values.whole("--top-k", chosen("top_k"), 0, 2**31 - 1),
        seed=flag_values.whole("--seed", chosen("seed"), 0, 2**63 - 1),
    )
