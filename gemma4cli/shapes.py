"""JSON Schema -> what its documents always are, as far as a column can have that for its type.

What may be several things, such as an object without named properties, is JSON text. Bounds, patterns and formats do
not count here: they are for the validation of an answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import unquote

from gemma4cli.errors import UsageError

MARK, BOX = "x-gemma4", "box"  # a keyword of ours, and the one thing that it says
BOX_NAME = "box_2d"  # what Gemma calls a box; a property of this name is one without the mark
GRID = 1000  # a box's numbers are thousandths of the picture's height and width
CORNERS = ("x1", "y1", "x2", "y2")
Node = Mapping[str, Any]
_LARGEST = 2**63


class Form(StrEnum):
    """What kind of value it is."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"
    BOX = "box"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Shape:
    """A value or null; `fields` are an object's, `items` an array's."""

    form: Form
    fields: Mapping[str, Shape] = field(default_factory=dict)
    items: Shape | None = None


_JSON = Shape(Form.JSON)
_SCALARS = {form.value: Shape(form) for form in (Form.BOOLEAN, Form.INTEGER, Form.NUMBER, Form.STRING)}


class UnfitError(ValueError):
    """A valid document that does not fit its column. `path` is where, as JSON paths are written."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")


def shape_of(schema: Node) -> Shape:
    """The shape of a schema's documents. Recursive parts are JSON text.

    Raises:
        UsageError: a reference leads nowhere, or out of the schema.
    """
    return _shape(schema, schema, "$", ())


def is_box(schema: Any, name: str | None = None) -> bool:
    """Whether a schema means a box, where it is that of a property called `name`."""
    if not isinstance(schema, Mapping):
        return False
    return schema.get(MARK) == BOX or (name == BOX_NAME and schema.get("type") in ("array", ["array", "null"]))


def value_of(shape: Shape, value: Any, size: tuple[int, int] | None, path: str = "$") -> Any:
    """A document as its column holds it: objects with all their fields, boxes in pixels.

    Args:
        size: width and height of the picture that boxes lie on.

    Raises:
        UnfitError: it does not fit: not in 64 bits, or it is no box.
    """
    if shape.form is Form.JSON:  # null as well, which JSON can say
        return json.dumps(value, ensure_ascii=False)
    if value is None:
        return None
    match shape.form:
        case Form.OBJECT if isinstance(value, dict):
            return {
                name: value_of(inner, value[name], size, f"{path}.{name}") if name in value else None
                for name, inner in shape.fields.items()
            }
        case Form.ARRAY if isinstance(value, list) and shape.items is not None:
            return [value_of(shape.items, part, size, f"{path}[{i}]") for i, part in enumerate(value)]
        case Form.BOX if isinstance(value, list):
            return _box(value, size, path)
        case Form.BOOLEAN if isinstance(value, bool):
            return value
        case Form.STRING if isinstance(value, str):
            return value
        case Form.INTEGER if _is_number(value) and value == int(value):
            if not -_LARGEST <= value < _LARGEST:
                raise UnfitError(path, "the number does not fit 64 bits")
            return int(value)
        case Form.NUMBER if _is_number(value):
            return float(value)
    raise UnfitError(path, f"is no {shape.form}")


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**1000 if isinstance(value, int) else math.isfinite(value)


def _box(value: Sequence[Any], size: tuple[int, int] | None, path: str) -> dict[str, float]:
    """Pixels of the upright original from Gemma's thousandths, which come as y1, x1, y2, x2."""
    if len(value) != 4 or not all(_is_number(part) and 0 <= part <= GRID for part in value):
        raise UnfitError(path, f"is no box, which is four numbers from 0 to {GRID}")
    y1, x1, y2, x2 = value
    if y2 < y1 or x2 < x1:
        raise UnfitError(path, "is no box: its second corner comes before its first")
    if size is None:
        raise UnfitError(path, "a box in a row without a picture")
    width, height = size
    pixels = (x1 * width / GRID, y1 * height / GRID, x2 * width / GRID, y2 * height / GRID)
    return dict(zip(CORNERS, pixels, strict=True))


def _shape(node: Any, root: Node, place: str, within: tuple[str, ...], name: str | None = None) -> Shape:
    """`within` holds the references that lead here."""
    if not isinstance(node, Mapping):
        return _JSON
    if is_box(node, name):
        return Shape(Form.BOX)
    reference = node.get("$ref")
    if reference is not None:
        target = resolved(root, reference, place)
        if reference in within:
            return _JSON
        beside = {key: value for key, value in node.items() if key != "$ref"}
        merged = {**target, **beside} if isinstance(target, Mapping) else target
        return _shape(merged, root, place, (*within, reference), name)
    if "const" in node or "enum" in node:
        return _of_values([node["const"]] if "const" in node else node["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in node:
            branches = [
                _shape(branch, root, f"{place}.{keyword}[{i}]", within, name)
                for i, branch in enumerate(node[keyword])
                if not _is_null(branch)
            ]
            # Branches of allOf say something together that none says alone.
            return _JSON if keyword == "allOf" and len(branches) > 1 else _common(branches)
    return _of_type(node, root, place, within)


def _of_type(node: Node, root: Node, place: str, within: tuple[str, ...]) -> Shape:
    said = node.get("type", "object" if "properties" in node else "array" if "items" in node else None)
    types = [kind for kind in ([said] if isinstance(said, str) else said or []) if kind != "null"]
    if all(kind in _SCALARS for kind in types):
        return _common([_SCALARS[kind] for kind in types])
    if types == ["object"] and node.get("properties"):
        fields = {
            name: _shape(inner, root, f"{place}.properties.{name}", within, name)
            for name, inner in node["properties"].items()
        }
        return Shape(Form.OBJECT, fields)
    if types == ["array"]:
        first = [
            _shape(inner, root, f"{place}.prefixItems[{i}]", within)
            for i, inner in enumerate(node.get("prefixItems", ()))
        ]
        rest = node.get("items", True)
        closed = rest is False or node.get("maxItems", math.inf) <= len(first)
        if not (first and closed):
            first.append(_shape(rest, root, f"{place}.items", within))
        return Shape(Form.ARRAY, items=_common(first))
    return _JSON


def _of_values(values: Sequence[Any]) -> Shape:
    named = {bool: Form.BOOLEAN, int: Form.INTEGER, float: Form.NUMBER, str: Form.STRING}
    return _common([Shape(named.get(type(value), Form.JSON)) for value in values if value is not None])


def _common(shapes: Sequence[Shape]) -> Shape:
    """The shape that they all have; integers are numbers too."""
    if not shapes:
        return _JSON
    forms = {shape.form for shape in shapes}
    if forms == {Form.INTEGER, Form.NUMBER}:
        return Shape(Form.NUMBER)
    return shapes[0] if all(shape == shapes[0] for shape in shapes) else _JSON


def _is_null(node: Any) -> bool:
    return isinstance(node, Mapping) and (
        node.get("type") in ("null", ["null"])
        or ("const" in node and node["const"] is None)
        or node.get("enum") == [None]
    )


def resolved(root: Node, reference: Any, place: str) -> Any:
    """What a reference within the schema leads to. Raises UsageError."""
    hint = 'References are followed within the schema, such as "#/$defs/Name".'
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise UsageError(f"--schema {place} refers to {reference!r}, which is not in it", hint)
    node: Any = root
    for word in reference.split("/")[1:]:
        key = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            node = node[int(key)]
        else:
            raise UsageError(f"--schema {place} refers to {reference!r}, and nothing is there", hint)
    return node
