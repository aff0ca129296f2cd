"""Recordings made of clips, and how transcripts of them are judged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.tiny.evaluation import edits
from gemma4cli.tiny.recordings import aligned, error_rate, faulty_seams, recording

words = st.lists(st.sampled_from("0123"), max_size=12)


@pytest.mark.parametrize("pauses", [True, False])
def test_a_recording_is_as_long_as_asked_and_says_what_it_says_when_it_says(pauses: bool) -> None:
    sound, said = recording(5, 20, pauses=pauses)
    again, _ = recording(5, 20, pauses=pauses)
    assert np.array_equal(sound, again)
    assert 20 <= len(sound) / 16_000 < 30
    silent = np.ones(len(sound), bool)
    for clip in said:
        silent[round(clip.start_s * 16_000) : round(clip.end_s * 16_000)] = False
    assert silent.any() == pauses
    assert not sound[silent].any()
    assert all(set(clip.digits.split()) <= set("0123456789") for clip in said)


@given(words, words)
def test_an_alignment_takes_the_fewest_edits_and_every_word(said: list[str], truth: list[str]) -> None:
    pairs = aligned(said, truth)
    assert [i for i, _ in pairs if i is not None] == list(range(len(said)))
    assert [j for _, j in pairs if j is not None] == list(range(len(truth)))
    assert sum(i is None or j is None or said[i] != truth[j] for i, j in pairs) == edits(said, truth)


def test_words_lost_or_doubled_count_where_they_are_near_a_seam() -> None:
    truth = list("0123456789" * 3)
    assert faulty_seams([truth[:10], truth[10:20], truth[20:]], truth) == 0
    assert faulty_seams([truth[:10], truth[11:20], truth[20:]], truth) == 1
    assert faulty_seams([truth[:10], truth[9:20], truth[19:]], truth) == 2
    assert faulty_seams([truth[:10], truth[10:15] + truth[16:]], truth) == 0
    assert error_rate(truth[1:], truth) == pytest.approx(1 / 30)
