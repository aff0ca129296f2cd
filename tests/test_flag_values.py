"""Times, channels and numbers of frames as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.flag_values import channel, frames, seconds, soft_tokens, span


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59_999))
def test_a_clock_and_its_seconds_are_one(hours: int, minutes: int, ms: int) -> None:
    total = hours * 3600 + minutes * 60 + ms / 1000
    assert seconds("--start", f"{hours}:{minutes:02d}:{ms / 1000:06.3f}") == pytest.approx(total)
    assert seconds("--start", f"{total:.3f}") == pytest.approx(total)
    assert seconds("--start", f"{minutes}:{ms / 1000:06.3f}") == pytest.approx(minutes * 60 + ms / 1000)


@pytest.mark.parametrize("text", ["", "soon", "-1", "1:60", "1:75:00", "1:2:3:4", "nan", "1e3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--end"):
        seconds("--end", text)


def test_a_part_has_a_beginning_before_its_end() -> None:
    assert span("1:30", "2:00") == (90.0, 120.0)
    assert span(None, None) == (None, None)
    for start, end in (("5", "5"), (None, "0"), ("1:00", "59")):
        with pytest.raises(UsageError, match=r"^--end"):
            span(start, end)


def test_channels() -> None:
    assert [channel(text) for text in ("mix", "Left", "right", "02")] == ["mix", "left", "right", "2"]
    for text in ("0", "middle", "-1", ""):
        with pytest.raises(UsageError, match=r"^--channel"):
            channel(text)


def test_numbers_of_frames() -> None:
    assert [frames(text, 32) for text in (None, "all", "1", "32")] == [None, 32, 1, 32]
    for text in ("0", "33", "some", ""):
        with pytest.raises(UsageError, match=r"^--frames"):
            frames(text, 32)


def test_soft_tokens_are_a_number_or_left_to_the_images() -> None:
    given = (280, "70", "auto", " AUTO:560 ", "auto:1120")
    assert [soft_tokens(value, 280) for value in given] == [
        (280, False), (70, False), (280, True), (560, True), (1120, True)
    ]  # fmt: skip
    for wrong in (300, "300", "auto:", "auto:300", "auto:auto", "many", "", "280:auto", "-70", "\u0667\u0660"):
        with pytest.raises(UsageError, match=r"^--max-soft-tokens"):
            soft_tokens(wrong, 280)
