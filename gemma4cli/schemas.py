"""The JSON Schema that answers are to have, from a file or from a class, checked before anything else is done."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import SchemaError
from jsonschema.validators import Draft202012Validator, validator_for

from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.shapes import BOX, GRID, MARK, is_box, resolved, shape_of

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # keywords that hold schemas
_VALUES = ("enum", "const", "default", "examples")  # keywords that hold none
# Those that vLLM can keep texts to; others say something to people alone.
_FORMATS = frozenset({
    "date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference",
    "uri-template", "json-pointer", "relative-json-pointer",
})  # fmt: skip
_FORM = "Give a file with a JSON Schema, or a pydantic model as package.module:Model."


def load(text: str) -> str:
    """The schema that --schema names or is, as JSON on one line; its boxes are told what a box is.

    Raises:
        UsageError: it cannot be read or imported, or is no JSON Schema; the message names the place in it.
    """
    if text.lstrip().startswith("{"):
        return _checked(_parsed(text.encode(errors="surrogatepass"), "of the recipe"), "of the recipe")
    shown = printable(text)
    return _checked(_of_model(text, shown) if names_model(text) else _of_file(text, shown), shown)


def names_model(text: str) -> bool:
    """Whether --schema names a class, and no file."""
    written = text.lstrip().startswith("{") or text.lower().endswith(".json")
    return ":" in text and not written and not Path(text).exists()


@cache
def validator_of(text: str) -> Callable[[str], Any] | None:
    """What a class has to say of an answer's JSON, its validators too; None where it has nothing but a schema.

    Raises:
        UsageError: it cannot be imported.
    """
    found: Any = getattr(_imported(text, printable(text)), "model_validate_json", None)
    return found if callable(found) else None


def _checked(schema: Any, shown: str) -> str:
    if not isinstance(schema, dict):
        raise UsageError(f"--schema {shown}: a schema is an object, such as {{'type': 'object', ...}}", _FORM)
    check(schema, shown)
    try:
        for place, called, node in nodes(schema):
            _refuse_what_leads_out(node, schema, f"{shown}: {place}")
            _settle(called, node, f"{shown}: {place}")
        encoded = json.dumps(schema, ensure_ascii=False)
        encoded.encode()
        shape_of(schema)
    except UnicodeEncodeError:
        raise UsageError(f"--schema {shown} holds half a character (\\ud800 to \\udfff)", "Mend it.") from None
    except RecursionError:
        raise UsageError(f"--schema {shown} is nested too deeply", "Make it flatter.") from None
    return encoded


def check(schema: Any, shown: str) -> None:
    """Raises UsageError where it is no JSON Schema."""
    try:
        validator_for(schema, default=Draft202012Validator).check_schema(schema)
    except SchemaError as error:
        message = printable(error.message)
        if len(message) > 200:
            message = f"{message[:200]}..."
        raise UsageError(f"--schema {shown} is no JSON Schema: {error.json_path}: {message}", _FORM) from None
    except RecursionError:
        raise UsageError(f"--schema {shown} is nested too deeply", "Make it flatter.") from None


def _of_file(text: str, shown: str) -> Any:
    try:
        return _parsed(Path(text).read_bytes(), shown)
    except OSError as error:
        raise UsageError(f"--schema {shown}: {error.strerror or error}", _FORM) from None


def _parsed(data: bytes, shown: str) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise UsageError(f"--schema {shown} is nested too deeply", "Make it flatter.") from None
    except ValueError as error:  # of UTF-8 as well as of JSON
        raise UsageError(f"--schema {shown} is no JSON: {error}", _FORM) from None


def _imported(text: str, shown: str) -> Any:
    """What is called so in a module, imported as Python would from here."""
    module, _, name = text.rpartition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  as text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        reason = printable(" ".join(str(error).split()))[:200]
        raise UsageError(f"--schema {shown} cannot be imported: {type(error).__name__}: {reason}", _FORM) from None
    return found


def _of_model(text: str, shown: str) -> Any:
    """The schema of a class that has `model_json_schema`, as pydantic's have."""
    found = _imported(text, shown)
    if not callable(getattr(found, "model_json_schema", None)):
        raise UsageError(f"--schema {shown} is no pydantic model", _FORM)
    try:
        return found.model_json_schema()
    except Exception as error:
        reason = printable(" ".join(str(error).split()))[:200]
        raise UsageError(f"--schema {shown} has no JSON Schema: {reason}", _FORM) from None


def _refuse_what_leads_out(node: dict[str, Any], schema: dict[str, Any], shown: str) -> None:
    """What would be found missing only when an answer is validated."""
    seen: list[str] = []
    leads = node
    while isinstance(leads, dict) and isinstance(reference := leads.get("$ref"), str):
        if reference in seen:
            raise UsageError(f"--schema {shown} refers to itself, and says nothing else", "Say what is there.")
        seen.append(reference)
        leads = resolved(schema, reference, shown)
    for keyword in ("$dynamicRef", "$recursiveRef", *(("$id",) if node is not schema else ())):
        if isinstance(node.get(keyword), str):
            message = f"--schema {shown}: {keyword} {json.dumps(node[keyword])} is not followed"
            raise UsageError(message, 'Refer to parts as "#/$defs/Name".')


def _settle(name: str | None, node: dict[str, Any], shown: str) -> None:
    """Says of a box what makes it one, so that the engine makes no other; takes formats away that no engine knows."""
    if node.get("enum") == []:
        raise UsageError(f"--schema {shown}: no answer is one of an empty enum", "List what an answer may be.")
    if node.get(MARK, BOX) != BOX:
        raise UsageError(f'--schema {shown}: "{MARK}": {json.dumps(node[MARK])} means nothing', f'"{BOX}" does.')
    if is_box(node, name) and isinstance(node.get("items"), dict) and "$ref" not in node["items"]:
        node |= {
            "minItems": 4,
            "maxItems": 4,
            "items": {"type": "number", "minimum": 0, "maximum": GRID, **node["items"]},
        }
    if isinstance(node.get("format"), str) and node["format"] not in _FORMATS:
        del node["format"]


def nodes(node: Any, place: str = "$", name: str | None = None) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """All schemas in a schema with their places, outer ones first, and the names of those that are properties."""
    if isinstance(node, list):
        for i, part in enumerate(node):
            yield from nodes(part, f"{place}[{i}]", name)
    elif isinstance(node, dict):
        yield place, name, node
        for key, part in node.items():
            if key in _MAPS and isinstance(part, dict):
                for inner, schema in part.items():
                    yield from nodes(schema, f"{place}.{key}.{inner}", inner if key == "properties" else None)
            elif key not in _VALUES:
                yield from nodes(part, f"{place}.{key}", name if key in ("anyOf", "oneOf") else None)
