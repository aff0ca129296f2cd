"""gemma4 run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import DRAWN, LIMITS, MEDIA, SAMPLING, TYPED
from gemma4cli.cli.annotate import annotate
from gemma4cli.cli.caption import caption
from gemma4cli.cli.transcribe import transcribe

if TYPE_CHECKING:
    from gemma4cli.recipe_files import Key, Settings

_COMMANDS: dict[str, Callable[..., None]] = {
    "annotate": annotate,
    "caption": caption,
    "transcribe": transcribe,
    "translate": transcribe,
}
_SECTIONS = {SAMPLING: "sampling", MEDIA: "media", LIMITS: "limits"}
# Thinking is switched in the system turn, which outputs have in common; what is suppressed is the engine's.
_NOT_OF_AN_OUTPUT = ("answer_retries", "thinking", "thinking_budget", "suppress_tokens")
# Of these, what is said on a higher level leaves nothing of the others.
_INSTEAD = (("prompt", "prompt_file"), ("system", "system_file"), ("schema", "choices", "regex"))
_KINDS: dict[str, type] = {"bool": bool, "int": int, "float": float, "list": list}


def _flags() -> dict[str, inspect.Parameter]:
    """Every flag of the tasks, once. What `--task` says of transcription is a recipe's task."""
    found: dict[str, inspect.Parameter] = {}
    for command in (annotate, caption, transcribe):
        found |= inspect.signature(command).parameters
    return {name: parameter for name, parameter in found.items() if name not in ("task", "inputs")}


def keys() -> dict[str, Key]:
    """The keys of a recipe: the flags of the tasks."""
    from gemma4cli.recipe_files import Key

    found = {"inputs": Key("inputs", list)}
    for name, parameter in _flags().items():
        if name == "engine_arg":  # a table of its own
            continue
        annotation, info = get_args(parameter.annotation)[:2]
        kind = next((kind for word, kind in _KINDS.items() if word in str(annotation)), str)
        panel = info.rich_help_panel
        of_answer = (panel in (SAMPLING, TYPED, DRAWN) or name in _INSTEAD[0]) and name not in _NOT_OF_AN_OUTPUT
        found[name] = Key(name, kind, _SECTIONS.get(panel), of_answer, info.min)
    return found


def _with_every_flag(command: Callable[..., None]) -> Callable[..., None]:
    """Gives the command a parameter for each flag of the tasks, after those of its own."""
    own = inspect.signature(command, eval_str=True).parameters
    parameters = [p for p in own.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters += list(_flags().values())

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        command(**given)

    wrapper.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    del wrapper.__wrapped__  # Typer would look through it
    return wrapper


@_with_every_flag
@reports_errors
def run(
    ctx: typer.Context,
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", show_default=False, help="A .toml file, or a name.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[INPUT]...", show_default=False, help="As for the tasks. Default: the recipe's."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Put a value in the place of the recipe's. Repeatable."),
    ] = None,
    **given: Any,
) -> int:
    """Run a recipe: a file that says what to do, with which model and how.

    [bold]Examples[/]

      gemma4 run caption-short photos/
      gemma4 run my-recipe.toml rows.jsonl -o out/
      gemma4 run my-recipe.toml --set outputs.tags.max_tokens=64
      gemma4 recipes list

    Takes the flags of the recipe's task. Flags and --set go before the
    environment, which goes before the recipe, which goes before the defaults.
    """
    from gemma4cli import recipe_files

    known = keys()
    file = recipe_files.read(recipe_files.find(recipe), known)
    assigned = recipe_files.assigned(settings or (), known)
    sources = {name: getattr(ctx.get_parameter_source(name), "name", "") for name in (*given, "inputs")}
    told = {"inputs": inputs, **given}
    flags = {name: told[name] for name, source in sources.items() if source == "COMMANDLINE"}
    environment = {name: told[name] for name, source in sources.items() if source == "ENVIRONMENT"}
    arguments = _merged(file.task, file.settings, environment, flags, assigned)
    arguments["output"] = arguments["output"] or f"gemma4-{file.name}"
    if file.task == "translate":
        arguments["task"] = "translate"
    arguments["outputs"] = _outputs(file.settings, assigned)
    arguments["examples"] = file.settings.examples
    _COMMANDS[file.task](**arguments)
    return 0


def _merged(
    task: str, recipe: Settings, environment: Mapping[str, Any], flags: Mapping[str, Any], assigned: Settings
) -> dict[str, Any]:
    """The arguments of the task's command. Of the environment, what the task has no flag for says nothing."""
    from gemma4cli.errors import UsageError

    takes = inspect.signature(_COMMANDS[task]).parameters
    for name in assigned.values:
        if name in flags:
            what = "INPUT" if name == "inputs" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{what} and --set {name} contradict each other", "Give one of them.")
    merged: dict[str, Any] = {}
    levels = (recipe.values, {k: v for k, v in environment.items() if k in takes}, {**flags, **assigned.values})
    for level in levels:
        for group in _INSTEAD:
            if any(name in level for name in group):
                merged = {name: value for name, value in merged.items() if name not in group}
        merged |= level
    for name in merged:
        if name not in takes:
            what = f"--{name.replace('_', '-')}" if name in flags else name
            raise UsageError(f"{what} says nothing to the task {task}", "Leave it out, or choose another task.")
    # A recipe's arguments are for its own engine: --engine fake has others.
    same = (merged.get("engine") or "vllm") == recipe.values.get("engine", "vllm")
    pairs = [
        *(_pairs(recipe.engine_args) if same else ()),
        *(merged.get("engine_arg") or ()),
        *_pairs(assigned.engine_args),
    ]
    if pairs:
        merged["engine_arg"] = pairs
    if isinstance(merged.get("output_dir"), str):
        merged["output_dir"] = Path(merged["output_dir"])
    return {name: parameter.default for name, parameter in takes.items()} | merged


def _pairs(arguments: Mapping[str, Any]) -> list[str]:
    import json

    return [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in arguments.items()]


def _outputs(recipe: Settings, assigned: Settings) -> dict[str, dict[str, Any]]:
    """What is said of each output, a setting of --set in the place of the recipe's."""
    return {
        name: {**recipe.outputs.get(name, {}), **assigned.outputs.get(name, {})}
        for name in dict.fromkeys([*recipe.outputs, *assigned.outputs])
    }
