"""Patterns as grammars are told them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.engine.patterns import for_grammar

PIECES = [r"\A", r"\Z", ".", "a", "[.a]", r"[\]a]", "[]a]", "[^]a]", r"\.", r"\\", "(a|.)", ".*", "a?"]


@given(st.lists(st.sampled_from(PIECES), max_size=6), st.text("a.]\\\nAZ", max_size=6))
def test_it_takes_the_same_whole_texts(pieces: list[str], text: str) -> None:
    inner = "".join(piece for piece in pieces if piece not in (r"\A", r"\Z"))
    for regex in (rf"\A{inner}\Z", inner):
        assert bool(re.fullmatch(for_grammar(regex), text)) == bool(re.fullmatch(regex, text))


def test_flags_that_change_a_dot_leave_all_as_it_is() -> None:
    for regex in ("(?s).", "(?x) a .", "(?is:.)"):
        assert for_grammar(regex) == regex


@pytest.mark.parametrize(
    ("regex", "text"), [(r"\Aab\Z", "ab"), (r"\Aab\Z", "AabZ"), (".*", "a\nb"), ("a.b", "aéb"), (r"[.\n]", "\n")]
)
def test_xgrammar_takes_what_python_takes(regex: str, text: str) -> None:
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.testing import _is_grammar_accept_string as accepts

    taken = accepts(xgrammar.Grammar.from_regex(for_grammar(regex)), text)
    assert taken == bool(re.fullmatch(regex, text))
