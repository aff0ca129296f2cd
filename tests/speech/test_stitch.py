"""Texts of pieces become one text: nothing lost, nothing twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.speech import Piece, Segment, join

WORD_S = 0.4

words = st.lists(st.text("abcdefghijkl", min_size=2, max_size=6), min_size=12, max_size=60, unique=True)


def spoken(text: str, start: float, overlaps: bool = False) -> Piece:
    """A piece that lasts as long as its words do; start counts in words."""
    return Piece(start * WORD_S, (start + len(text.split())) * WORD_S, text, 7, overlaps)


def pair(first: str, second: str, shared: float) -> tuple[Piece, Piece]:
    """Two pieces that share the time of so many words."""
    return spoken(first, 0), spoken(second, len(first.split()) - shared, overlaps=True)


def test_pieces_cut_at_pauses_are_joined_with_a_space() -> None:
    transcript = join([Piece(0.0, 2.0, " One two.\n", 5), Piece(2.5, 4.0, "Two three.", 6)])
    assert transcript.text == "One two. Two three."
    assert transcript.segments == (Segment(0.0, 2.0, "One two.", 5), Segment(2.5, 4.0, "Two three.", 6))


def test_nothing_is_nothing() -> None:
    assert join([]).text == ""
    assert join([Piece(0, 1, "", 1), Piece(1, 2, "  ", 1)]).segments == ()
    assert join([Piece(0, 1, "", 1), Piece(0.5, 2, "yes", 1, True)]).text == "yes"


@given(words, st.data())
def test_what_was_said_twice_is_kept_once(said: list[str], data: st.DataObject) -> None:
    end = data.draw(st.integers(6, len(said) - 2))
    start = data.draw(st.integers(max(1, end - 12), end - 3))
    transcript = join(pair(" ".join(said[:end]), " ".join(said[start:]), end - start))
    assert transcript.text == " ".join(said)
    assert " ".join(segment.text for segment in transcript.segments) == transcript.text


@given(words, st.data())
def test_one_word_may_be_heard_otherwise(said: list[str], data: st.DataObject) -> None:
    end = data.draw(st.integers(7, len(said) - 2))
    start = data.draw(st.integers(max(1, end - 10), end - 5))
    wrong = data.draw(st.integers(start, end - 1))
    second = [*said]
    second[wrong] = "zzz"
    heard = join(pair(" ".join(said[:end]), " ".join(second[start:]), end - start)).text.split()
    assert len(heard) == len(said)
    assert [a for a, b in zip(heard, said, strict=True) if a != b] in ([], ["zzz"])


@given(words, st.data())
def test_fragments_at_the_cuts_do_not_come_through(said: list[str], data: st.DataObject) -> None:
    end = data.draw(st.integers(8, len(said) - 2))
    start = data.draw(st.integers(max(1, end - 10), end - 5))
    first = [*said[: end - 1], "zz"]
    second = ["yy", *said[start + 1 :]]
    assert join(pair(" ".join(first), " ".join(second), end - start)).text == " ".join(said)


@given(st.lists(words, min_size=1, max_size=5), st.booleans(), st.floats(0, 5))
def test_segments_never_overlap_whatever_is_said(texts: list[list[str]], overlaps: bool, shared: float) -> None:
    start, pieces = 0.0, []
    for said in texts:
        end = start + 10.0
        pieces.append(Piece(start, end, " ".join(said), 1, overlaps))
        start = end - shared if overlaps else end + shared
    segments = join(pieces).segments
    assert len(segments) == len(texts)
    assert all(a.end_s <= b.start_s + 1e-9 and a.start_s < a.end_s for a, b in pairwise(segments))


@pytest.mark.parametrize(
    ("first", "second", "shared", "text"),
    [
        ("the cat sat on the mat", "On the mat, it slept.", 3, "the cat sat on the mat, it slept."),
        ("9 5 5 5 5", "5 5 5 5 2", 4, "9 5 5 5 5 2"),
        ("one two three", "four five six", 2, "one two three four five six"),
        ("we went to the", "the park and to the sea", 1, "we went to the park and to the sea"),
        ("so I said to the", "man in the house to the left", 1, "so I said to the man in the house to the left"),
        ("«Ja», sagte er, «natürlich", "er, natürlich!» und ging", 2, "«Ja», sagte er, natürlich!» und ging"),
    ],
)
def test_seams(first: str, second: str, shared: float, text: str) -> None:
    assert join(pair(first, second, shared)).text == text


def test_scripts_without_spaces() -> None:
    first, second = Piece(0, 4, "今日は天気がいいです", 9), Piece(2, 6, "がいいですね。散歩", 9, overlaps_previous=True)
    assert join([first, second]).text == "今日は天気がいいですね。散歩"
    assert join([Piece(0, 4, "今日は。", 9), Piece(5, 6, "散歩", 9)]).text == "今日は。散歩"
    assert join([Piece(0, 4, "안녕하세요", 9), Piece(5, 6, "여러분", 9)]).text == "안녕하세요 여러분"


def test_overlapping_pieces_meet_in_the_middle() -> None:
    transcript = join([Piece(0, 30, "a b c d", 4), Piece(27, 57, "c d e f", 4, overlaps_previous=True)])
    assert [(segment.start_s, segment.end_s) for segment in transcript.segments] == [(0, 28.5), (28.5, 57)]
