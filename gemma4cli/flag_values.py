"""What users write for times, channels and numbers of frames, as values. Every refusal names the flag."""

from __future__ import annotations

import re

from gemma4cli.errors import UsageError

MIX = "mix"
_SIDES = ("left", "right")
_CLOCK = re.compile(r"(?:(?:(\d+):)?(\d{1,2}):)?(\d+(?:\.\d*)?)")


def seconds(flag: str, text: str | None) -> float | None:
    """Seconds, minutes and seconds, or hours, minutes and seconds: `90`, `1:30`, `0:01:30.5`."""
    if text is None:
        return None
    match = _CLOCK.fullmatch(text.strip())
    if match is None or (match[2] is not None and float(match[3]) >= 60) or (match[1] and int(match[2]) >= 60):
        raise UsageError(f"{flag} {text!r} is not a time", "Give seconds or h:mm:ss, such as 90, 1:30 or 0:01:30.5.")
    return int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + float(match[3])


def span(start: str | None, end: str | None) -> tuple[float | None, float | None]:
    """--start and --end in seconds, the one before the other."""
    begins, ends = seconds("--start", start), seconds("--end", end)
    if ends is not None and ends <= (begins or 0.0):
        raise UsageError(f"--end {end} is not after --start {start or 0}", "Leave one of them out, or move it.")
    return begins, ends


def channel(text: str) -> str:
    """`mix`, `left`, `right`, or a channel's number from 1."""
    word = text.strip().lower()
    if word in (MIX, *_SIDES) or (word.isdecimal() and int(word) >= 1):
        return word if word in (MIX, *_SIDES) else str(int(word))
    raise UsageError(f"--channel {text} is not possible", "It takes mix, left, right, or a channel's number from 1.")


def frames(text: str | None, most: int) -> int | None:
    """A number of frames, or `all`, which is as many as the model takes."""
    if text is None:
        return None
    if text.strip().lower() == "all":
        return most
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise UsageError(f"--frames {text} is not possible", f"It takes a number from 1 to {most}, or all.")
    return int(text)
