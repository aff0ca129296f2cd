"""Schemas from files and from classes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gemma4cli.errors import UsageError
from gemma4cli.schemas import load, nodes
from gemma4cli.shapes import Form, shape_of


def written(folder: Path, text: str) -> str:
    path = folder / "schema.json"
    path.write_text(text)
    return str(path)


def test_properties_stay_in_their_order(tmp_path: Path) -> None:
    text = '{"type": "object", "properties": {"b": {"type": "string"}, "a": {"enum": ["ä"]}}}'
    assert load(written(tmp_path, text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"type":', "no JSON: .*column"),
        ("\udcff", "no JSON"),
        ("[1]", "a schema is an object"),
        ("true", "a schema is an object"),
        ('{"properties": {"a": {"type": "objekt"}}}', r"\$\.properties\.a\.type"),
        ('{"properties": {"a": {"pattern": "("}}}', r"\$\.properties\.a\.pattern"),
        ('{"not": {"$ref": "#/$defs/A"}}', r"\$\.not refers to '#/\$defs/A'"),
        ('{"properties": {"a": {"enum": []}}}', r"\$\.properties\.a: no answer is one of an empty enum"),
        ('{"$ref": "#"}', r"\$ refers to itself, and says nothing else"),
        (
            '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}',
            "refers to itself",
        ),
        ('{"$dynamicRef": "#a"}', r"\$dynamicRef \"#a\" is not followed"),
        ('{"properties": {"a": {"x-gemma4": "bix"}}}', r'\$\.properties\.a: "x-gemma4": "bix" means nothing'),
        ('{"properties": {"\\ud800": {}}}', "half a character"),
        ('{"items":' * 400 + "{}" + "}" * 400, "nested too deeply"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=said):
        load(str(path))


def test_a_box_is_told_that_it_is_four_numbers_to_a_thousand(tmp_path: Path) -> None:
    box = {"type": "array", "items": {"type": "integer"}}
    schema = {"properties": {"box_2d": box, "area": {**box, "x-gemma4": "box"}, "other": box}}
    found = json.loads(load(written(tmp_path, json.dumps(schema))))["properties"]
    for name in ("box_2d", "area"):
        assert (found[name]["minItems"], found[name]["maxItems"]) == (4, 4)
        assert found[name]["items"] == {"type": "integer", "minimum": 0, "maximum": 1000}
    assert found["other"] == box


def test_a_format_that_no_engine_knows_is_for_people_alone(tmp_path: Path) -> None:
    schema = {"properties": {"format": {"type": "string", "format": "colour"}, "b": {"format": "date"}}}
    found = json.loads(load(written(tmp_path, json.dumps(schema))))["properties"]
    assert found == {"format": {"type": "string"}, "b": {"format": "date"}}


def test_names_of_properties_are_no_keywords() -> None:
    schema = {"properties": {"enum": {"type": "string"}, "$ref": {"default": {"not": 1}}}}
    assert [place for place, _, _ in nodes(schema)] == ["$", "$.properties.enum", "$.properties.$ref"]


MODEL = """
from pydantic import BaseModel

class Outer:
    class Thing(BaseModel):
        name: str
        size: float | None = None

class Plain: ...
class Odd:
    @staticmethod
    def model_json_schema(): raise TypeError("not today")
"""


def test_a_class_gives_its_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_of_things.py").write_text(MODEL)
    (tmp_path / "model_that_exits.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in sys.path if path])
    assert list(json.loads(load("model_of_things:Outer.Thing"))["properties"]) == ["name", "size"]
    for name, said in [
        ("model_of_things:Gone", "cannot be imported: AttributeError"),
        ("model_of_things:Plain", "no pydantic model"),
        ("model_of_things:Odd", "no JSON Schema: not today"),
        ("model_that_exits:X", "cannot be imported: SystemExit: 3"),
        ("no_such_module:X", "cannot be imported: ModuleNotFoundError"),
        ("gone.json", "No such file"),
    ]:
        with pytest.raises(UsageError, match=said):
            load(name)


def test_references_are_written_as_in_an_address(tmp_path: Path) -> None:
    schema = {"properties": {"x": {"$ref": "#/$defs/a%20b~1c"}}, "$defs": {"a b/c": {"type": "integer"}}}
    assert shape_of(json.loads(load(written(tmp_path, json.dumps(schema))))).fields["x"].form is Form.INTEGER
