"""Answers that keep to a constraint, made without a model: the same for the same row."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gemma4cli.records import Constraint
from gemma4cli.shapes import resolved

# Of formats that a text's own words do not have.
_FORMATTED = {
    "date": "2024-02-29",
    "date-time": "2024-02-29T12:30:00Z",
    "time": "12:30:00Z",
    "duration": "PT1H30M",
    "email": "somebody@example.org",
    "hostname": "example.org",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uuid": "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "uri": "https://example.org/",
}
_DEEPEST = 8  # levels, after which what may be left out is


def text_of(constraint: Constraint, said: str, number: int) -> str:
    """The text of an answer.

    Args:
        said: what would be answered without a constraint; it is what texts in a document say, and what --regex gets,
            which may not match.
        number: what choices are made by.
    """
    if constraint.choices is not None:
        return constraint.choices[number % len(constraint.choices)]
    if constraint.schema is None:
        return said
    schema = json.loads(constraint.schema)
    return json.dumps(_document(schema, schema, said, number, 0), ensure_ascii=False)


def choice_logprobs(choices: Sequence[str], number: int) -> dict[str, float]:
    """How likely each choice is: the one that is made half as likely as all, the others share the rest."""
    made, others = choices[number % len(choices)], len(choices) - 1
    return {choice: math.log(0.5 if choice == made else 0.5 / others) if others else 0.0 for choice in choices}


def _document(node: Any, root: Mapping[str, Any], said: str, number: int, depth: int) -> Any:
    """A document of the schema, as long as that asks for no pattern and for nothing that cannot be."""
    if not isinstance(node, Mapping):
        return said
    if "$ref" in node:
        return _document(resolved(root, node["$ref"], "$"), root, said, number, depth + 1)
    if "const" in node or "enum" in node:
        values = [node["const"]] if "const" in node else node["enum"]
        return values[number % len(values)]
    for keyword in ("anyOf", "oneOf", "allOf"):
        if node.get(keyword):
            return _document(node[keyword][0 if depth < _DEEPEST else -1], root, said, number, depth)
    kind = node.get("type", "object" if "properties" in node else "array" if "items" in node else "string")
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            wanted = node.get("properties", {}) if depth < _DEEPEST else node.get("required", ())
            inner = node.get("properties", {})
            return {name: _document(inner[name], root, said, number + i, depth + 1) for i, name in enumerate(wanted)}
        case "array":
            firsts = node.get("prefixItems", [])
            length = max(node.get("minItems", 1 if depth < _DEEPEST else 0), len(firsts))
            items = [firsts[i] if i < len(firsts) else node.get("items", {}) for i in range(length)]
            return [_document(item, root, said, number + i, depth + 1) for i, item in enumerate(items)]
        case "integer" | "number":
            return _number(node, number)
        case "boolean":
            return number % 2 == 0
        case "null":
            return None
    if node.get("format") in _FORMATTED:
        return _FORMATTED[node["format"]]
    return said[: node.get("maxLength", len(said))].ljust(node.get("minLength", 0), ".")


def _number(node: Mapping[str, Any], number: int) -> int | float:
    low, high = node.get("minimum"), node.get("maximum")
    if low is None:
        low = node["exclusiveMinimum"] + 1 if "exclusiveMinimum" in node else 0 if high is None else high - 1000
    return low + number % 100 if high is None else min(low + number % 100, high)
