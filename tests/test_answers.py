"""Texts of answers, as what they have to be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemma4cli import answers, recipes
from gemma4cli.errors import ParseError
from gemma4cli.overrides import Overrides
from gemma4cli.records import Constraint, Generation, MediaFacts, Sampling

THING = Constraint(
    schema=json.dumps(
        {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 3}, "s": {"type": "string"}, "any": {}},
            "required": ["n"],
        }
    )
)
CHOICE = Constraint(choices=("yes", "no"))
PLAIN = Sampling(16, 1.0, 1.0, 0, 0)
CODE = Constraint(regex="[A-Z]{2}[0-9]+")


def read(constraint: Constraint, text: str | None, reason: str = "stop") -> Any:
    return answers.read(replace(PLAIN, constraint=constraint), Generation(0, text, reason, 1, 0.0, 0.0), MediaFacts())


def test_a_document_has_all_fields() -> None:
    assert read(THING, ' {"n": 3.0, "more": 1}\n') == {"n": 3, "s": None, "any": None}
    assert read(THING, '{"n": 4, "s": "\\ud800", "any": [null]}') == {"n": 4, "s": "\\ud800", "any": "[null]"}


def test_a_label_says_all_itself() -> None:
    assert read(CHOICE, "yes\n") is None
    assert read(CODE, "AB12") is None


@pytest.mark.parametrize(
    ("constraint", "text", "type", "said"),
    [
        (THING, "", "invalid_json", "no JSON"),
        (THING, None, "invalid_json", "no JSON"),
        (THING, '{"n": 3} and more', "invalid_json", "no JSON"),
        (THING, '{"n": NaN}', "invalid_json", "NaN"),
        (THING, "[" * 100_000, "invalid_json", "no JSON"),
        (THING, '{"n": 1}', "schema_mismatch", r"\$\.n: 1 is less than the minimum of 3"),
        (THING, "{}", "schema_mismatch", "'n' is a required property"),
        (THING, '{"n": 9223372036854775808}', "schema_mismatch", r"\$\.n: the number does not fit 64 bits"),
        (THING, '{"n": "\\u001b[2J"}', "schema_mismatch", r"\\x1b"),
        (CHOICE, "maybe", "not_a_choice", "none of the choices: maybe"),
        (CODE, "AB12 ", "", ""),
        (CODE, "AB12!", "no_match", "does not match --regex: AB12!"),
    ],
)
def test_what_an_answer_is_not(constraint: Constraint, text: str, type: str, said: str) -> None:
    if not type:
        assert read(constraint, text) is None
        return
    with pytest.raises(ParseError, match=said) as caught:
        read(constraint, text)
    assert caught.value.type == type
    assert len(str(caught.value)) < 400


def test_an_answer_that_was_cut_off_says_so() -> None:
    with pytest.raises(ParseError, match="cut off at --max-tokens 16") as caught:
        read(THING, '{"n":', "length")
    assert caught.value.type == "cut_off"
    assert read(THING, '{"n": 3}', "length")["n"] == 3


def test_a_schema_that_refers_to_itself_takes_what_is_nested_as_text() -> None:
    tree = Constraint(schema=json.dumps({"properties": {"t": {"$ref": "#"}}, "type": "object"}))
    assert read(tree, '{"t": {"t": {}}}') == {"t": {"t": "{}"}}
    deep = '{"t":' * 900 + "{}" + "}" * 900
    with pytest.raises(ParseError):
        read(tree, deep)


VALIDATED = """
from pydantic import BaseModel, Field, field_validator

class Price(BaseModel):
    amount: int
    currency: str = Field(alias="Currency")

    @field_validator("currency")
    @classmethod
    def known(cls, value):
        if value == "bug":
            raise KeyError("a fault of its own")
        if value not in ("EUR", "USD"):
            raise ValueError("no currency of ours")
        return value.lower()

class Prices(BaseModel):
    prices: list[Price]
"""


def test_a_models_own_validators_have_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices_of_things.py").write_text(VALIDATED)
    monkeypatch.syspath_prepend(tmp_path)
    prices = recipes.constraint(replace(Overrides(), schema="prices_of_things:Prices"))

    def said(currency: str) -> str:
        return json.dumps({"prices": [{"amount": 3, "Currency": currency}]})

    # The column holds what the model wrote, not what its validators make of it.
    assert read(prices, said("EUR")) == {"prices": [{"amount": 3, "Currency": "EUR"}]}
    for currency, why in (("XYZ", r"\$\.prices\[0\]\.Currency: Value error, no currency of ours"), ("bug", "KeyError")):
        with pytest.raises(ParseError, match=why) as error:
            read(prices, said(currency))
        assert error.value.type == "schema_mismatch"
