"""The output's columns: a Row's fields in their order, then the columns carried from the input."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from gemma4cli import strict_json
from gemma4cli.answers import sample_fields
from gemma4cli.records import Row, Sampling
from gemma4cli.shapes import CORNERS, Form, Shape, shape_of

if TYPE_CHECKING:
    from gemma4cli.config import RunConfig
    from gemma4cli.recipes import Recipe

_SEGMENT = {
    "start": pa.float64(),
    "end": pa.float64(),
    "text": pa.string(),
    "tokens": pa.int64(),
    "transcript": pa.string(),
}
_TYPES = {
    "str": pa.string(),
    "Status": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "tuple[Mapping[str, Any], ...]": pa.list_(pa.struct(_SEGMENT)),
}
# Of a Row, columns only where a run asks for them.
ANSWER_FIELDS = ("answer", "logprob", "choice_logprobs", "thinking", "thinking_tokens", "samples", "outputs")
ROW_FIELDS = tuple(field.name for field in fields(Row) if field.name not in (*ANSWER_FIELDS, "extra"))
# The row_index of the row whose answer a row has been given; a column of its own, where that is done at all.
DUPLICATE_OF = "duplicate_of"
DUPLICATE_KEY = "\0duplicate_of"  # in a Row's extra, where no column of a manifest can be called so
_OURS = frozenset({*ROW_FIELDS, DUPLICATE_OF})
_DTYPES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}


def row_columns() -> list[pa.Field]:
    """A Row's fields as Arrow fields; their types are those of its annotations."""
    return [
        pa.field(field.name, _TYPES[str(field.type).removesuffix(" | None")])
        for field in fields(Row)
        if field.name in ROW_FIELDS
    ]


def output_fields(recipe: Recipe) -> list[pa.Field]:
    """What the column `outputs` holds of one of them; the names are those of a Row's fields."""
    counted = [pa.field("finish_reason", pa.string()), pa.field("output_tokens", pa.int64())]
    return [pa.field("text", pa.string()), *answer_columns(recipe.sampling), *counted]


def asked_columns(config: RunConfig) -> list[pa.Field]:
    """The columns of `ANSWER_FIELDS` that a run has: one for all outputs, or those of its one answer."""
    if not config.outputs:
        return answer_columns(config.sampling)
    outputs = [pa.field(name, pa.struct(output_fields(recipe))) for name, recipe in config.outputs.items()]
    return [pa.field("outputs", pa.struct(outputs))]


def answer_columns(sampling: Sampling) -> list[pa.Field]:
    """The columns of one answer, where they are asked for: its value, how likely it was, thoughts, samples."""
    constraint, columns = sampling.constraint, []
    types = {
        "text": pa.string(),
        "logprob": pa.float64(),
        "finish_reason": pa.string(),
        "output_tokens": pa.int64(),
        "thinking": pa.string(),
        "thinking_tokens": pa.int64(),
    }
    if constraint is not None and constraint.schema is not None:
        types["answer"] = arrow_type(shape_of(json.loads(constraint.schema)))
        columns.append("answer")
    if sampling.logprobs:
        columns.append("logprob")
        if constraint is not None and constraint.choices is not None:
            types["choice_logprobs"] = pa.struct([pa.field(choice, pa.float64()) for choice in constraint.choices])
            columns.append("choice_logprobs")
    if sampling.thinking_budget is not None:
        columns += ["thinking", "thinking_tokens"]
    if sampling.n is not None:
        types["samples"] = pa.list_(pa.struct([pa.field(name, types[name]) for name in sample_fields(sampling)]))
        columns.append("samples")
    return [pa.field(name, types[name]) for name in columns]


def arrow_type(shape: Shape) -> pa.DataType:
    """The type of a column for values of a shape."""
    match shape.form:
        case Form.OBJECT:
            return pa.struct([pa.field(name, arrow_type(inner)) for name, inner in shape.fields.items()])
        case Form.ARRAY if shape.items is not None:
            return pa.list_(arrow_type(shape.items))
        case Form.BOX:
            return pa.struct([pa.field(name, pa.float64()) for name in CORNERS])
        case Form.BOOLEAN:
            return pa.bool_()
        case Form.INTEGER:
            return pa.int64()
        case Form.NUMBER:
            return pa.float64()
    return pa.string()


def carried_names(columns: pa.Schema, answers: Collection[str] = ()) -> dict[str, str]:
    """Input column -> output column. A name that is ours gets `input_` before it, again if need be.

    Case does not count, as it does not in SQL: DuckDB would call a column `Text` beside our `text` `Text_1`.

    answers: those of `ANSWER_FIELDS` that are columns of the output.
    """
    ours = {*_OURS, *answers}
    taken = {*ours, *map(str.lower, columns.names)}
    names = {}
    for name in columns.names:
        out = name
        if name.lower() in ours:
            while out.lower() in taken:
                out = f"input_{out}"
            taken.add(out.lower())
        names[name] = out
    return names


def output_schema(
    columns: pa.Schema, document: Mapping[str, Any], duplicates: bool = False, answers: Sequence[pa.Field] = ()
) -> pa.Schema:
    """The output's schema.

    Args:
        columns: the columns carried from the input, with the input's names and `huggingface` metadata, if it had any.
        document: what made the output (model, task, settings); becomes JSON under the key `gemma4cli`.
        duplicates: there is a column for the row whose answer a row has been given.
        answers: the columns of typed answers, if there are any.

    Its `huggingface` metadata lets `datasets` read every column with its type, class names included; it is left out
    where a type has no word in `datasets`, which then goes by the Arrow types.
    """
    names = carried_names(columns, [field.name for field in answers])
    carried = [pa.field(names[field.name], field.type) for field in columns]
    copies = [pa.field(DUPLICATE_OF, pa.int64())] if duplicates else []
    out = [*row_columns(), *answers, *copies, *carried]
    metadata = {"gemma4cli": strict_json.encode(document)}
    described = _described(columns)
    try:
        features = {field.name: feature(field.type) for field in out}
    except ValueError:
        return pa.schema(out, metadata)
    features |= {names[name]: value for name, value in described.items() if name in names}
    metadata["huggingface"] = json.dumps({"info": {"features": features}}).encode()
    return pa.schema(out, metadata)


def with_columns(schema: pa.Schema, more: Sequence[pa.Field]) -> pa.Schema:
    """The schema with more columns, which its metadata for `datasets` then describes as well."""
    metadata = dict(schema.metadata or {})
    try:
        features = json.loads(metadata[b"huggingface"])
        features["info"]["features"] |= {field.name: feature(field.type) for field in more}
        metadata[b"huggingface"] = json.dumps(features).encode()
    except (KeyError, ValueError):
        metadata.pop(b"huggingface", None)
    return pa.schema([*schema, *more], metadata)


def feature(kind: pa.DataType) -> Any:
    """An Arrow type as `datasets` writes its features into JSON (`Features.to_dict`, from version 4 on).

    Raises:
        ValueError: `datasets` has no word for the type, or a struct's field has a name that it would misread.
    """
    types = pa.types
    if types.is_struct(kind):
        if any(field.name in {"_type", "feature", "dtype"} for field in kind):
            raise ValueError("a field is called like a word of the notation")
        return {field.name: feature(field.type) for field in kind}
    if types.is_fixed_size_list(kind):
        return {"feature": feature(kind.value_type), "length": kind.list_size, "_type": "List"}
    if types.is_large_list(kind):
        return {"feature": feature(kind.value_type), "_type": "LargeList"}
    if types.is_list(kind):
        return {"feature": feature(kind.value_type), "_type": "List"}
    if types.is_nested(kind) or types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise ValueError(f"datasets has no word for {kind}")
    if types.is_interval(kind) or types.is_decimal32(kind) or types.is_decimal64(kind):
        raise ValueError(f"datasets has no word for {kind}")
    return {"dtype": _DTYPES.get(str(kind), str(kind)), "_type": "Value"}


def _described(columns: pa.Schema) -> dict[str, Any]:
    """What the input says of its columns beyond their Arrow types: that they are classes with names, or media."""
    text = (columns.metadata or {}).get(b"huggingface")
    features = {} if text is None else json.loads(text)["info"]["features"]
    telling = {"ClassLabel", "Image", "Audio", "Video"}
    return {n: value for n, value in features.items() if isinstance(value, dict) and value.get("_type") in telling}
