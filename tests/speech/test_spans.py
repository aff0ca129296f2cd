"""Spans cover all speech, are never too long, and end in pauses where there are any."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.speech.activity import Activity
from gemma4cli.speech.spans import WINDOW_S, CutOptions, Span, arrange

OPTIONS = CutOptions()


def activity(*parts: tuple[str, float]) -> Activity:
    """Speech, pauses, and dips (quiet but not pauses), each of so many seconds."""
    speech, level = [], []
    for kind, seconds in parts:
        count = round(seconds / WINDOW_S)
        speech += [0.05 if kind == "pause" else 0.95] * count
        level += [{"speech": -20.0, "pause": -60.0, "dip": -45.0}[kind]] * count
    return Activity(np.array(speech, np.float32), np.array(level, np.float32), len(speech) * WINDOW_S)


def times(spans: tuple[Span, ...]) -> list[tuple[float, float, bool]]:
    return [(round(span.start_s, 1), round(span.end_s, 1), span.overlaps_previous) for span in spans]


recordings = st.lists(
    st.tuples(st.sampled_from(["speech", "pause"]), st.floats(0.05, 45.0) | st.floats(0.05, 2.0)), max_size=40
)


@given(recordings)
@settings(deadline=None)
def test_all_speech_is_in_spans_that_the_model_can_hear(parts: list[tuple[str, float]]) -> None:
    sound = activity(*parts)
    spans = arrange(sound, OPTIONS)
    for span in spans:
        assert 0 <= span.start_s < span.end_s <= sound.duration_s + 1e-6
        assert span.end_s - span.start_s <= 30.0
    for before, span in pairwise(spans):
        shared = before.end_s - span.start_s
        assert (2.95 <= shared <= 4.1) if span.overlaps_previous else shared <= 1e-6
    covered = np.zeros(len(sound.speech), bool)
    for span in spans:
        covered[round(span.start_s / WINDOW_S) : round(span.end_s / WINDOW_S)] = True
    lost = (sound.speech > 0.5) & ~covered
    if lost.any():  # only what is too short to be speech, and stands alone
        edges = np.flatnonzero(np.diff(np.concatenate([[0], lost.astype(int), [0]])))
        assert max(b - a for a, b in zip(edges[::2], edges[1::2], strict=True)) <= 5


@given(recordings)
@settings(deadline=None)
def test_no_span_ends_in_speech_when_a_pause_is_in_reach(parts: list[tuple[str, float]]) -> None:
    sound = activity(*parts)
    spans = arrange(sound, OPTIONS)
    for span, following in pairwise(spans):
        if not following.overlaps_previous:
            end = round(span.end_s / WINDOW_S)
            assert min(sound.speech[end - 1], sound.speech[min(end, len(sound.speech) - 1)]) < 0.5


def test_no_speech_no_span() -> None:
    assert arrange(activity(("pause", 100)), OPTIONS) == ()
    assert arrange(activity(), OPTIONS) == ()


def test_a_sound_that_fits_is_one_span_with_its_pauses() -> None:
    spans = arrange(activity(("pause", 2), ("speech", 5), ("pause", 8), ("speech", 4), ("pause", 3)), OPTIONS)
    assert times(spans) == [(1.5, 19.5, False)]
    assert times(arrange(replace(activity(("speech", 30)), duration_s=30.0), OPTIONS)) == [(0.0, 30.0, False)]


def test_the_longest_pause_near_the_limit() -> None:
    sound = activity(("speech", 5), ("pause", 1.0), ("speech", 16), ("pause", 0.5), ("speech", 4), ("pause", 0.25),
                     ("speech", 20))  # fmt: skip
    assert [span[1] for span in times(arrange(sound, OPTIONS))] == [22.2, 46.8]


def test_an_early_pause_is_better_than_none() -> None:
    assert times(arrange(activity(("speech", 4), ("pause", 0.4), ("speech", 29)), OPTIONS))[0][1] == 4.2


def test_long_pauses_are_left_out() -> None:
    spans = arrange(activity(("speech", 10), ("pause", 20), ("speech", 10)), OPTIONS)
    assert times(spans) == [(0.0, 10.5, False), (29.5, 40.0, False)]


def test_without_pauses_spans_overlap_between_words() -> None:
    words = [("speech", 0.42), ("dip", 0.06)] * 130
    spans = arrange(activity(*words), OPTIONS)
    assert [span.overlaps_previous for span in spans] == [False, True, True]
    level = activity(*words).level_db
    for span in spans[:-1]:
        at = round(span.end_s / WINDOW_S)
        assert max(level[at - 1], level[at]) < -40
    assert all(3.0 <= a.end_s - b.start_s <= 4.0 for a, b in pairwise(spans))


def test_faint_short_runs_alone_are_no_speech() -> None:
    sound = activity(("pause", 20), ("speech", 0.1), ("pause", 20))
    assert arrange(sound, OPTIONS) == ()
    beside = activity(("pause", 20), ("speech", 0.1), ("pause", 1), ("speech", 1.0), ("pause", 20))
    assert times(arrange(beside, OPTIONS)) == [(19.5, 22.6, False)]


def test_how_long_spans_can_be() -> None:
    for max_s in (5, 31):
        with pytest.raises(ValueError, match=r"5\.5 to 30 s"):
            CutOptions(max_s=max_s)
    assert all(span.end_s - span.start_s <= 6 for span in arrange(activity(("speech", 60)), CutOptions(max_s=6)))
