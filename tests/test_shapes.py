"""What a schema makes of a column, and a document of its value."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.schema import arrow_type
from gemma4cli.shapes import Form, Shape, UnfitError, shape_of, value_of

BOX = pa.struct([pa.field(name, pa.float64()) for name in ("x1", "y1", "x2", "y2")])
TREE = {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"n": {"type": "integer"}, "t": {"$ref": "#/$defs/T"}}}}}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "boolean"}, pa.bool_()),
        ({"type": ["integer", "null"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": "string", "format": "date-time"}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"enum": [1, "a"]}, pa.string()),
        ({"const": True}, pa.bool_()),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, pa.float64()),
        ({"oneOf": [{"type": "string"}, {"type": "object"}]}, pa.string()),
        ({"allOf": [{"type": "integer"}]}, pa.int64()),
        ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, pa.list_(pa.list_(pa.int64()))),
        ({"type": "array", "prefixItems": [{"type": "integer"}] * 2, "items": False}, pa.list_(pa.int64())),
        ({"type": "array", "prefixItems": [{"type": "integer"}] * 2, "maxItems": 2}, pa.list_(pa.int64())),
        ({"type": "array", "prefixItems": [{"type": "integer"}] * 2}, pa.list_(pa.string())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"type": "object"}, pa.string()),
        ({}, pa.string()),
        ({"type": "array", "items": {"type": "integer"}, "x-gemma4": "box"}, BOX),
        ({"properties": {"box_2d": {"type": "array", "items": {"type": "integer"}}}}, pa.struct({"box_2d": BOX})),
        (
            {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}},
            pa.struct({"a": pa.string()}),
        ),
        (TREE, pa.struct({"n": pa.int64(), "t": pa.string()})),
    ],
)
def test_a_column_has_the_type_that_all_documents_have(schema: dict[str, Any], kind: pa.DataType) -> None:
    assert arrow_type(shape_of(schema)) == kind


@pytest.mark.parametrize("reference", ["#/$defs/B", "http://example.org/x", "#name", "#/$defs/A/enum/9"])
def test_references_that_lead_nowhere_are_refused_with_their_place(reference: str) -> None:
    schema = {"properties": {"a": {"$ref": reference}}, "$defs": {"A": {"enum": [1]}}}
    with pytest.raises(UsageError, match=r"\$\.properties\.a refers to"):
        shape_of(schema)


SCALARS = [
    (Shape(Form.BOOLEAN), st.booleans()),
    (Shape(Form.INTEGER), st.integers(-(2**63), 2**63 - 1)),
    (Shape(Form.NUMBER), st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**80), 2**80)),
    (Shape(Form.STRING), st.text(st.characters(codec="utf-8"))),
    (Shape(Form.JSON), st.recursive(st.none() | st.booleans() | st.integers(), st.lists)),
]


@st.composite
def documents(draw: st.DrawFn, depth: int = 0) -> tuple[Shape, Any]:
    """A shape, and a document of it in which fields may be missing or null."""
    what = draw(st.sampled_from([*range(len(SCALARS)), *((10, 11) if depth < 3 else ())]))
    if what == 10:
        inner = {name: draw(documents(depth + 1)) for name in draw(st.sets(st.sampled_from("abc"), min_size=1))}
        shape = Shape(Form.OBJECT, {name: shape for name, (shape, _) in inner.items()})
        return shape, {name: value for name, (_, value) in inner.items() if draw(st.booleans())}
    if what == 11:
        shape, value = draw(documents(depth + 1))
        return Shape(Form.ARRAY, items=shape), [value, None][: draw(st.integers(0, 2))]
    shape, values = SCALARS[what]
    return shape, draw(st.none() | values)


@given(documents())
def test_each_document_fits_the_column_of_its_shape(pair: tuple[Shape, Any]) -> None:
    shape, document = pair
    value = value_of(shape, document, None)
    (read,) = pa.array([value], arrow_type(shape)).to_pylist()
    assert read == value


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=2).map(sorted),
    st.lists(st.integers(0, 1000), min_size=2, max_size=2).map(sorted),
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_a_box_is_in_pixels_and_lies_on_the_picture(ys: list[int], xs: list[int], size: tuple[int, int]) -> None:
    box = value_of(Shape(Form.BOX), [ys[0], xs[0], ys[1], xs[1]], size)
    assert [box["x1"], box["x2"]] == pytest.approx([x / 1000 * size[0] for x in xs])
    assert [box["y1"], box["y2"]] == pytest.approx([y / 1000 * size[1] for y in ys])
    assert 0 <= box["x1"] <= box["x2"] <= size[0]
    assert 0 <= box["y1"] <= box["y2"] <= size[1]


@pytest.mark.parametrize(
    ("form", "value", "said"),
    [
        (Form.BOX, [1, 2, 3], "no box"),
        (Form.BOX, [1, 2, 3, 1001], "no box"),
        (Form.BOX, [9, 2, 3, 4], "second corner"),
        (Form.BOX, [True, 2, 3, 4], "no box"),
        (Form.INTEGER, 2**63, "64 bits"),
        (Form.INTEGER, 1.5, "no integer"),
        (Form.NUMBER, 1e400, "no number"),
        (Form.NUMBER, 10**400, "no number"),
        (Form.BOOLEAN, 1, "no boolean"),
        (Form.OBJECT, [], "no object"),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(form: Form, value: Any, said: str) -> None:
    with pytest.raises(UnfitError, match=rf"^\$\.a: .*{said}"):
        value_of(Shape(Form.OBJECT, {"a": Shape(form)}), {"a": value}, (10, 10))


def test_a_box_needs_a_picture() -> None:
    with pytest.raises(UnfitError, match="without a picture"):
        value_of(Shape(Form.BOX), [1, 2, 3, 4], None)


def test_what_may_be_anything_is_json_text() -> None:
    assert value_of(Shape(Form.JSON), {"ä": [1, None]}, None) == json.dumps({"ä": [1, None]}, ensure_ascii=False)
