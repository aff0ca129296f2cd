"""Windows of a long video."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.windows import windows


@given(st.floats(0, 1000), st.floats(0.1, 5000), st.floats(1, 600))
def test_windows_cover_a_part_without_gaps_and_are_about_as_long_as_was_said(
    start: float, length: float, window: float
) -> None:
    spans = windows(start, start + length, window)
    assert (spans[0].start_s, spans[-1].end_s) == (start, start + length)
    assert all(a.end_s == b.start_s for a, b in pairwise(spans))
    assert all(span.end_s - span.start_s == pytest.approx(window) for span in spans[:-1])
    last = spans[-1].end_s - spans[-1].start_s
    assert last <= 1.25 * window + 1e-6
    assert len(spans) == 1 or last >= 0.25 * window - 1e-6
