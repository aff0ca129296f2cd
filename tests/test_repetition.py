from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.repetition import loops


@given(st.text(max_size=60), st.text("abcdefgh", min_size=1, max_size=40), st.integers(6, 40), st.integers(0, 39))
def test_a_piece_said_over_and_over_is_found_even_when_it_is_cut(start: str, piece: str, times: int, cut: int) -> None:
    repeated = piece * (times + 60 // len(piece))
    assert loops(start + repeated + piece[:cut])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ha ha ha ha",
        "1 1 1 1",
        "A red circle left of a blue square, and a red circle above a blue square.",
        "one two three four five six seven eight nine ten " * 3,
        "".join(f"{i}. item number {i}\n" for i in range(60)),
    ],
)
def test_speech_that_only_resembles_itself_is_not(text: str) -> None:
    assert not loops(text)
