"""The text of an answer -> its value, where a schema, choices or a pattern say what it has to be."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from gemma4cli.errors import ParseError
from gemma4cli.escaping import printable, without_surrogates
from gemma4cli.records import Constraint, Generation, MediaFacts
from gemma4cli.shapes import Shape, UnfitError, shape_of, value_of

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

CUT_OFF = "cut_off"
_SHOWN = 160  # characters of what is wrong


def read(constraint: Constraint, generation: Generation, facts: MediaFacts, max_tokens: int) -> Any:
    """The value for the column `answer`; None where the text is all there is to say.

    Raises:
        ParseError: `invalid_json`, `schema_mismatch`, `not_a_choice` or `no_match`; `cut_off` where that is why.
    """
    text = (generation.text or "").strip()
    try:
        return _value(constraint, text, facts)
    except ParseError as error:
        if generation.finish_reason != "length":
            raise
        message = f"the answer was cut off at --max-tokens {max_tokens}, and what there is does not do: {error}"
        raise ParseError(CUT_OFF, message) from error


def _value(constraint: Constraint, text: str, facts: MediaFacts) -> Any:
    if constraint.choices is not None and text not in constraint.choices:
        raise ParseError("not_a_choice", f"the answer is none of the choices: {_shown(text)}")
    if constraint.regex is not None and not _pattern(constraint.regex).fullmatch(text):
        raise ParseError("no_match", f"the answer does not match --regex: {_shown(text)}")
    if constraint.schema is None:
        return None
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ParseError("invalid_json", f"the answer is no JSON ({error}): {_shown(text)}") from None
    validator, shape = _compiled(constraint.schema)
    size = None if facts.width is None or facts.height is None else (facts.width, facts.height)
    try:
        wrong = next(validator.iter_errors(value), None)
        if wrong is None:
            return without_surrogates(value_of(shape, value, size))
    except (UnfitError, RecursionError, ArithmeticError) as error:
        raise ParseError("schema_mismatch", _shown(str(error))) from None
    raise ParseError("schema_mismatch", f"{_shown(wrong.json_path)}: {_shown(wrong.message)}")


@cache
def _compiled(schema: str) -> tuple[Validator, Shape]:
    from jsonschema.validators import Draft202012Validator, validator_for

    parsed = json.loads(schema)
    return validator_for(parsed, default=Draft202012Validator)(parsed), shape_of(parsed)


@cache
def _pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _shown(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
