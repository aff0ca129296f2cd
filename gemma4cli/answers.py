"""What came of a row in the engine -> the columns of its answer.

Where a schema, choices or a pattern say what an answer has to be, its text is read as that.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

from gemma4cli.errors import ParseError
from gemma4cli.escaping import printable, without_surrogates
from gemma4cli.records import Constraint, Generation, MediaFacts, Sample, Sampling
from gemma4cli.shapes import Shape, UnfitError, shape_of, value_of

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

CUT_OFF = "cut_off"
_SHOWN = 160  # characters of what is wrong


def read(sampling: Sampling, generation: Generation | Sample, facts: MediaFacts) -> Any:
    """The value for the column `answer`; None where the text is all there is to say.

    Raises:
        ParseError: `invalid_json`, `schema_mismatch`, `not_a_choice` or `no_match`; `cut_off` where that is why, and
            where the model was cut off while it was thinking; `no_answer` where it said nothing after that.
    """
    text, cut = (generation.text or "").strip(), generation.finish_reason == "length"
    if generation.thinking is not None and not text:
        message = f"the model thought for {generation.thinking_tokens} tokens and"
        if not cut:
            raise ParseError("no_answer", f"{message} ended without an answer")
        raise ParseError(CUT_OFF, f"{message} was cut off before it answered; raise --max-tokens")
    if sampling.constraint is None:
        return None
    try:
        return _value(sampling.constraint, text, facts)
    except ParseError as error:
        if not cut:
            raise
        message = f"the answer was cut off at --max-tokens {sampling.max_tokens}, and what there is does not do"
        raise ParseError(CUT_OFF, f"{message}: {error}") from error


def samples(sampling: Sampling, generation: Generation, facts: MediaFacts) -> tuple[dict[str, Any], ...] | None:
    """The column `samples`: all answers, where several were asked for. Those that do not do have no `answer`."""
    if sampling.n is None:
        return None
    return tuple(_sample(sampling, sample, facts) for sample in generation.samples)


def _sample(sampling: Sampling, sample: Sample, facts: MediaFacts) -> dict[str, Any]:
    try:
        answer = read(sampling, sample, facts)
    except ParseError:
        answer = None
    found = {
        "text": sample.text.strip(),
        "answer": answer,
        "logprob": sample.logprob,
        "finish_reason": sample.finish_reason,
        "output_tokens": sample.output_tokens,
        "thinking": sample.thinking,
        "thinking_tokens": sample.thinking_tokens,
    }
    return {name: found[name] for name in sample_fields(sampling)}


def sample_fields(sampling: Sampling) -> tuple[str, ...]:
    """The names of what a sample has, in order."""
    typed = sampling.constraint is not None and sampling.constraint.schema is not None
    thought = sampling.thinking_budget is not None
    return (
        "text",
        *(("answer",) if typed else ()),
        "logprob",
        "finish_reason",
        "output_tokens",
        *(("thinking", "thinking_tokens") if thought else ()),
    )


def check(constraint: Constraint, text: str) -> Any:
    """What a text is: the document, where a schema is the constraint.

    Raises:
        ParseError: it is not what the constraint asks for.
    """
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
    validator, _ = _compiled(constraint.schema)
    try:
        wrong = next(validator.iter_errors(value), None)
    except (RecursionError, ArithmeticError) as error:
        raise ParseError("schema_mismatch", _shown(str(error))) from None
    if wrong is not None:
        raise ParseError("schema_mismatch", f"{_shown(wrong.json_path)}: {_shown(wrong.message)}")
    if constraint.model is not None:
        _validate(constraint.model, text)
    return value


def _value(constraint: Constraint, text: str, facts: MediaFacts) -> Any:
    """The document as its column holds it. Raises ParseError."""
    value = check(constraint, text)
    if constraint.schema is None:
        return None
    size = None if facts.width is None or facts.height is None else (facts.width, facts.height)
    try:
        return without_surrogates(value_of(_compiled(constraint.schema)[1], value, size))
    except (UnfitError, RecursionError, ArithmeticError) as error:
        raise ParseError("schema_mismatch", _shown(str(error))) from None


@cache
def _compiled(schema: str) -> tuple[Validator, Shape]:
    from jsonschema.validators import Draft202012Validator, validator_for

    parsed = json.loads(schema)
    return validator_for(parsed, default=Draft202012Validator)(parsed), shape_of(parsed)


def _validate(model: str, text: str) -> None:
    """Has a pydantic model look at an answer, for its validators know more than its schema says."""
    from gemma4cli.schemas import validator_of

    validate = validator_of(model)
    try:
        if validate is not None:
            validate(text)
    except Exception as error:  # validators are anybody's code
        told = getattr(error, "errors", None)
        if not callable(told):
            raise ParseError("schema_mismatch", _shown(f"{model} raised {type(error).__name__}: {error}")) from None
        first = told(include_url=False)[0]
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        raise ParseError("schema_mismatch", f"{_shown(f'${place}')}: {_shown(first['msg'])}") from None


@cache
def _pattern(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _shown(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
