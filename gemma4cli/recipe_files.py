"""Recipe files: TOML in which a task's flags stand under their names, and what has no flag.

A key is a flag's name with underscores. It stands at the top or in the section of its kind, `[sampling]`, `[media]` or
`[limits]`. Paths in a file are relative to its folder. Of its own a recipe has `task`, `description`, `[engine_args]`,
`[outputs.NAME]` and `[[examples]]`.
"""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from gemma4cli import examples
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable

TASKS = ("annotate", "caption", "transcribe", "translate")
ENGINE_ARGS, OUTPUTS, EXAMPLES = "engine_args", "outputs", "examples"
_OWN = ("task", "description")
_PATHS = frozenset({"prompt_file", "system_file", "output", "output_dir", "root", "log_file", "summary_json"})
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list of texts"}
_LISTED = ("choices", "format", "media_column", "kinds", "columns")  # texts with commas, which may be lists
_LARGEST = 1 << 20  # bytes of a recipe


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a recipe, from the flag of its name.

    kind: bool, int, float, str, or list for several texts.  section: where it may stand, beside the top.
    of_answer: each output may have its own.
    """

    name: str
    kind: type
    section: str | None = None
    of_answer: bool = False
    least: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a recipe, or --set, says.

    values: by key.  engine_args: of the engine's own.  outputs: by name, what is of one output alone.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RecipeFile:
    """A recipe as it was written."""

    name: str
    task: str
    description: str
    settings: Settings


def shipped() -> dict[str, Path]:
    """The recipes that come with the program, by name."""
    return {path.stem: path for path in sorted(folder().glob("*.toml"))}


def find(text: str) -> Path:
    """The file of a recipe that is named by its path, or is one of the program's own.

    Raises:
        UsageError: there is none.
    """
    path, known = Path(text), shipped()
    if path.is_file():
        return path
    if text in known:
        return known[text]
    near = difflib.get_close_matches(path.stem, known, 1, 0.5)
    hint = f"Did you mean {near[0]}? " if near and (not path.suffix or text == f"{near[0]}.toml") else ""
    raise UsageError(f"there is no recipe {printable(text)}", f"{hint}gemma4 recipes list shows those that come along.")


def description(path: Path) -> str:
    """What a recipe says of itself. Raises UsageError where it is no TOML."""
    found = _document(path).get("description", "")
    return found if isinstance(found, str) else ""


def read(path: Path, keys: Mapping[str, Key]) -> RecipeFile:
    """Reads a recipe.

    Raises:
        UsageError: it is no TOML, has a key that means nothing, with the nearest that does, or a value of another kind.
    """
    document, shown = _document(path), printable(str(path))
    task = document.get("task")
    if task not in TASKS:
        what = "has no task" if task is None else f"has a task that there is not: {_shown(task)}"
        raise UsageError(f"{shown} {what}", f'Write task = "...", with one of {", ".join(TASKS)}.')
    if not isinstance(document.get("description", ""), str):
        raise UsageError(f"{shown}: description is {_shown(document['description'])}, which is not a text")
    own = {name: value for name, value in document.items() if name not in (*_OWN, EXAMPLES)}
    settings = _settings(own, keys, shown)
    base = path.absolute().parent
    outputs = {name: _placed(values, base) for name, values in settings.outputs.items()}
    shots = tuple(_placed(each, base) for each in _examples(document.get(EXAMPLES, []), shown))
    placed = Settings(_placed(settings.values, base), settings.engine_args, outputs, shots)
    return RecipeFile(path.stem, task, document.get("description", ""), placed)


def assigned(pairs: Sequence[str], keys: Mapping[str, Key]) -> Settings:
    """What --set says: KEY=VALUE, where a key may be that of a section, an output or the engine.

    Raises:
        UsageError: as for a recipe, or a pair that is none.
    """
    document: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        steps = [step.strip().replace("-", "_") for step in path.split(".")]
        if not equals or not all(steps):
            example = "Example: --set temperature=0 --set outputs.tags.max_tokens=64"
            raise UsageError(f"--set {printable(pair)} is not KEY=VALUE", example)
        if steps[0] in (*_OWN, EXAMPLES):
            raise UsageError(f"--set {steps[0]} is not possible", "It belongs to the recipe: gemma4 recipes copy.")
        inner = document
        for i, step in enumerate(steps[:-1], 1):
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                place = printable(".".join(steps[:i]))
                raise UsageError(f"--set {printable(path)}: {place} has a value already", "Leave one of them out.")
        known = keys.get(steps[-1])
        table = steps[-1] == "schema" and text[:1] == "{"
        verbatim = known is not None and known.kind is str and text[:1] != '"' and not table
        inner[steps[-1]] = text if verbatim else _value(text)
    return _settings(document, keys, "--set")


def _settings(document: Mapping[str, Any], keys: Mapping[str, Key], shown: str) -> Settings:
    sections = {key.section for key in keys.values() if key.section}
    values: dict[str, Any] = {}
    for place, name, value in _entries(document, sections, shown):
        key = keys.get(name)
        if key is None or (place and key.section != place):
            where = f"[{place}] of {shown}" if place else shown
            raise _unknown(name, where, key, [*keys, *sections, ENGINE_ARGS, OUTPUTS, EXAMPLES, *_OWN])
        if name in values:
            raise UsageError(f"{shown} has {name} twice: at the top and in [{key.section}]", "Leave one of them out.")
        values[name] = _as_flag(key, value, f"{shown}: {name}")
    engine_args = _table(document.get(ENGINE_ARGS, {}), f"{shown}: {ENGINE_ARGS}")
    outputs = {
        name: _output(_table(value, f"{shown}: {OUTPUTS}.{name}"), keys, f"{shown}: {OUTPUTS}.{name}")
        for name, value in _table(document.get(OUTPUTS, {}), f"{shown}: {OUTPUTS}").items()
    }
    return Settings(values, engine_args, outputs)


def _output(table: Mapping[str, Any], keys: Mapping[str, Key], shown: str) -> dict[str, Any]:
    """What one output says of its own; its sampling may stand in a section too."""
    allowed = {name: key for name, key in keys.items() if key.of_answer}
    sections = {key.section for key in allowed.values() if key.section}
    values = {}
    for _, name, value in _entries(table, sections, shown):
        if name not in allowed:
            raise _unknown(name, shown, keys.get(name), list(allowed), of_output=True)
        values[name] = _as_flag(allowed[name], value, f"{shown}.{name}")
    return values


def _examples(tables: Any, shown: str) -> Iterator[dict[str, Any]]:
    if not isinstance(tables, list):
        raise UsageError(f"{shown}: {EXAMPLES} is no list of tables", f"Write each as [[{EXAMPLES}]].")
    for i, table in enumerate(tables):
        place = f"{EXAMPLES}[{i}]"
        for name in _table(table, f"{shown}: {place}"):
            if name not in examples.KEYS:
                raise _unknown(name, f"{shown}: {place}", None, examples.KEYS)
        yield table


def _entries(document: Mapping[str, Any], sections: set[str], shown: str) -> Iterator[tuple[str, str, Any]]:
    """Section or nothing, key and value."""
    for name, value in document.items():
        if name in sections:
            for inner, each in _table(value, f"{shown}: {name}").items():
                yield name, inner, each
        elif name not in (ENGINE_ARGS, OUTPUTS):
            yield "", name, value


def _unknown(name: str, where: str, key: Key | None, known: Sequence[str], *, of_output: bool = False) -> UsageError:
    message = f"{where} has an unknown key: {printable(name)}"
    if key is not None and of_output:
        return UsageError(f"{where}: {name} is not a matter of one output", "Set it at the top, for the whole row.")
    if key is not None:
        place = f"at the top or in [{key.section}]" if key.section else "at the top"
        return UsageError(message, f"It belongs {place}.")
    near = difflib.get_close_matches(name.replace("-", "_"), known, 1, 0.5)
    return UsageError(message, f"Did you mean {near[0]}?" if near else f"The keys are: {', '.join(sorted(known))}.")


def _as_flag(key: Key, value: Any, shown: str) -> Any:
    """A value as the flag has it once it is read: texts for all that is no number and no switch."""
    fits = False
    match key.kind.__name__:
        case "bool":
            fits = isinstance(value, bool)
        case "int":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "float":
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        case "list":
            value = [value] if isinstance(value, str) else value
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        case _:
            text = _text(key.name, value)
            fits = text is not None
            value = value if text is None else text
    if not fits:
        wanted = "a list of texts" if isinstance(value, list) and key.name in _LISTED else _KINDS[key.kind]
        raise UsageError(f"{shown} is {_shown(value)}, which is not {wanted}")
    if key.least is not None and value < key.least:
        raise UsageError(f"{shown} is {value}, which is too small", f"It must be {key.least:g} or more.")
    return value


def _text(name: str, value: Any) -> str | None:
    """A value of a flag that is text: a schema may be written out, choices and columns may be lists."""
    match value:
        case bool():
            return None
        case str():
            return value
        case int() | float():
            return str(value) if math.isfinite(value) else None
        case dict() if name == "schema":
            return json.dumps(value, ensure_ascii=False, default=str)
        case list() if name == "choices" and all(isinstance(each, str) for each in value):
            return json.dumps(value, ensure_ascii=False)
        case list() if name in _LISTED and all(isinstance(each, str) for each in value):
            return ",".join(value)
    return None


def _placed(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Values with paths that are relative to the recipe's folder."""

    def path(text: str) -> str:
        return text if text == "-" or "://" in text else str(base / Path(text).expanduser())

    placed = dict(values)
    for name, value in values.items():
        match name, value:
            case "inputs" | "known" | "image" | "audio" | "video", list():
                placed[name] = [path(text) for text in value if isinstance(text, str)]
            case "image" | "audio" | "video", str():
                placed[name] = path(value)
            case "lora", list():
                parts = [text.partition("=") for text in value]
                placed[name] = [f"{adapter}{equals}{path(folder)}" for adapter, equals, folder in parts]
            case (("choices" | "suppress_tokens"), str()) if value.startswith("@"):
                placed[name] = f"@{path(value[1:])}"
            case "schema", str() if value[:1] != "{" and (":" not in value or (base / value).exists()):
                placed[name] = path(value)
            case (("model" | "speculative"), str()) if value.startswith(("./", "../", "~/")):
                placed[name] = path(value)
            case _, str() if name in _PATHS:
                placed[name] = path(value)
    return placed


def _value(text: str) -> Any:
    """A value of --set: as TOML has it where it is one, else as it stands."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | str | list | dict) else text


def _table(value: Any, shown: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{shown} is {_shown(value)}, which is not a table", f"Write it as [{shown.split(': ')[-1]}].")
    return value


def _document(path: Path) -> dict[str, Any]:
    shown = printable(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise UsageError(f"{shown} is too large to be a recipe", "A recipe is a TOML file of up to 1 MiB.")
        return tomllib.loads(data.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror or error}", "Name a recipe.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{shown} is no text in UTF-8", "A recipe is a TOML file.") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(
            f"{shown} is no TOML: {printable(str(error))}", "gemma4 recipes show NAME has examples."
        ) from None


def _shown(value: Any) -> str:
    text = printable(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= 60 else f"{text[:57]}..."


def folder() -> Path:
    """Where the recipes are that come with the program, and below it the defaults of the tasks."""
    packaged = Path(str(files("gemma4cli") / "configs"))
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "configs"
