from __future__ import annotations

import datetime
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import prompt_templates
from gemma4cli.errors import ParseError, UsageError
from gemma4cli.inputs import Inputs
from gemma4cli.records import Item

ROW = {
    "brand": "Acme",
    "price": 1.5,
    "odd name": "o",
    "tags": ["a", "b"],
    "gap": None,
    "long": "x" * 700_000,
    "f": {"g": 1},
    "day": datetime.date(2024, 2, 29),
    "cost": Decimal("1.10"),
}


def filled(text: str, **more: object) -> str:
    return prompt_templates.template(text).filled({**ROW, **more})


@pytest.mark.parametrize(
    ("text", "columns", "becomes"),
    [
        ("Is this {{ brand }}?", {"brand"}, "Is this Acme?"),
        ("{{ row['odd name'] }}, {{ row.brand }}", {"odd name", "brand"}, "o, Acme"),
        ("{% for tag in tags %}{{ tag }};{% endfor %}", {"tags"}, "a;b;"),
        ("{{ colour|default('any') }}", {"colour"}, "any"),
        ("{% if colour is defined %}{{ colour }}{% else %}no{% endif %}", {"colour"}, "no"),
        ("{{ gap or 'unknown' }}", {"gap"}, "unknown"),
        ("{{ '%.2f'|format(price) }} {{ brand ~ '!' }} {{ f.g }}", {"price", "brand", "f"}, "1.50 Acme! 1"),
        ("{{ tags|map('upper')|join('+') }}", {"tags"}, "A+B"),
        ("{{ [brand, \"it's\", 'é<']|tojson }}", {"brand"}, '["Acme", "it\'s", "é<"]'),
        ("{{ {'at': day, 'cost': cost}|tojson }}", {"day", "cost"}, '{"at": "2024-02-29", "cost": "1.10"}'),
        ("{{ gap|tojson }} {{ gap|default('x', true) }}", {"gap"}, "null x"),
        ("{{ brand.replace('A', 'E')|upper }}", {"brand"}, "ECME"),
        ('{% raw %}{"a": {{1}}}{% endraw %}', set(), '{"a": {{1}}}'),
        ("{% for i in range(3) %}{{ i }}{% endfor %}", set(), "012"),
        ("{% for name in row %}{{ name[0] }}{% endfor %}", None, "bpotglfdc"),
        ("{{ row.get('brand') }}", None, "Acme"),
    ],
)
def test_a_template_knows_its_columns_and_is_filled_in(text: str, columns: set[str] | None, becomes: str) -> None:
    found = prompt_templates.template(text)
    assert found.columns == columns
    assert filled(text) == becomes


@given(st.text().filter(lambda text: "{{" not in text and "{%" not in text))
def test_what_is_no_template_stays_as_it_is(text: str) -> None:
    assert prompt_templates.filled(text, Item(0, "a", "a")) == text
    prompt_templates.checked("--prompt", text)


@given(st.text(), st.text(alphabet="{}%# ab'\"|()"))
def test_a_value_is_text_and_never_a_template(value: str, braces: str) -> None:
    told = Item(0, "a", "a", told={"brand": f"{value}{braces}"})
    assert prompt_templates.filled("<{{ brand }}>", told) == f"<{value}{braces}>"


@pytest.mark.parametrize(
    "text",
    [
        "{{ missing }}",
        "{{ gap }}",
        "{{ gap|upper }}",
        "{{ 'x'|replace('x', gap) }}",
        "{{ 'a ' ~ gap }}",
        "{{ [gap, 'b']|join(', ') }}",
        "{{ tags|map('upper') }}",
        "{{ f.items }}",
        "{{ range }}",
        "{{ brand.__class__.__mro__ }}",
        "{{ tags.append('c') }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
        "{{ range(10001) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 9**9**9**9 }}",
        "{% set ns = namespace(s=7) %}{% for i in range(99) %}{% set ns.s = ns.s * ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s='aa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=long) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
        "{% for i in range(9999) %}{{ long }}{% endfor %}",
        "{{ 'aaaa'|replace('a', long) }}",
        "{{ 'aaaa'.replace('a', long) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%99999999d'|format(1) }}",
        "{{ '{:>99999999}'.format(1) }}",
        "{{ 'a'.ljust(99999999) }}",
        "{{ 'a'|indent(99999999) }}",
        "{{ [1]|batch(99999999, 0)|list }}",
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_what_fails_or_would_never_end_is_the_rows_failure_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(ParseError, match=r"the prompt cannot be filled in: .") as error:
        filled(text)
    assert error.value.type == "prompt_template"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        "{{ a", "{% for %}", "{% include 'x' %}", "{% extends 'x' %}", "{{ a|nope }}", "{% endif %}", "{{ a|random }}",
        "{% if x %}" * 150 + "{% endif %}" * 150,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_flag(text: str) -> None:
    with pytest.raises(UsageError, match="--prompt is no template") as error:
        prompt_templates.checked("--prompt", text)
    assert "raw" in error.value.hint


def test_rows_are_told_what_the_prompts_name() -> None:
    items = [Item(0, "first", "a", extra={"brand": "A", "price": 1})]
    inputs = Inputs(1, pa.schema({"brand": pa.string(), "price": pa.int64()}), lambda: iter(items))
    (item,) = prompt_templates.told(inputs, ["{{ brand }} {{ id }} {{ colour|default('x') }}", None, "verbatim"])
    assert item.told == {"brand": "A", "id": "first"}
    (item,) = prompt_templates.told(inputs, ["{{ row|length }}"])
    assert item.told == {"id": "first", "brand": "A", "price": 1}
    assert prompt_templates.told(inputs, ["verbatim", None]) is inputs
    with pytest.raises(UsageError, match=r"names \{\{ bran \}\}") as error:
        prompt_templates.told(inputs, ["{{ bran }}"])
    assert "Did you mean brand?" in error.value.hint


def test_what_is_missing_is_called_by_its_name() -> None:
    for text, said in (
        ("{{ f.gone }}", "no attribute 'gone'"),
        ("{{ tags[7] }}", "no element 7"),
        ("{{ nope }}", "nope"),
    ):
        with pytest.raises(ParseError, match=said):
            filled(text)
    with pytest.raises(ParseError, match=r"range is a function here; write row\['range'\]"):
        filled("{{ range }}")
