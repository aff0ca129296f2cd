"""What users write behind flags, as values. Every refusal names the flag and says what would do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TypeVar

from gemma4cli import storage
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.gemma import BUDGETS
from gemma4cli.records import Kind

T = TypeVar("T")

MIX = "mix"
_LONGEST_TEXT = 1 << 20  # bytes of a prompt's file
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


def soft_tokens(value: int | str, most: int) -> tuple[int, bool]:
    """Soft tokens of an image, and whether they are a limit below which its size decides: `280`, `auto`, `auto:560`.

    most: the limit of `auto` alone.
    """
    word, colon, limit = str(value).strip().lower().partition(":")
    auto = word == "auto"
    number = (limit if colon else str(most)) if auto else str(value).strip()
    if number.isascii() and number.isdecimal() and int(number) in BUDGETS:
        return int(number), auto
    raise UsageError(
        f"--max-soft-tokens {value} is not possible",
        f"It takes one of {', '.join(map(str, BUDGETS))}, auto, or auto:N for at most N of them.",
    )


def kinds(text: str | None, taken: frozenset[Kind], task: str) -> frozenset[Kind]:
    """Kinds of media between commas, of those that the task takes; all of these where nothing is said."""
    if text is None:
        return taken
    words = [word.strip().lower() for word in text.split(",")]
    wrong = next((word for word in words if word not in taken), None)
    if wrong is not None:
        raise UsageError(
            f"--kinds {printable(text)} is not possible", f"{task} takes {', '.join(sorted(taken))}, or some of them."
        )
    return frozenset(map(Kind, words))


def frames(text: str | None, most: int) -> int | None:
    """A number of frames, or `all`, which is as many as the model takes."""
    if text is None:
        return None
    if text.strip().lower() == "all":
        return most
    if not text.strip().isdecimal() or not 1 <= int(text) <= most:
        raise UsageError(f"--frames {text} is not possible", f"It takes a number from 1 to {most}, or all.")
    return int(text)


def max_failures(text: str | None) -> int | float | None:
    """A number of rows, or a share of them as a fraction."""
    if text is None:
        return None
    try:
        if text.endswith("%"):
            return between("--max-failures", float(text[:-1]), 0.0, 100.0) / 100
        return at_least("--max-failures", int(text), 0)
    except ValueError:
        raise UsageError(
            f"--max-failures {text!r} is not possible", "Give a number of rows or a share of them: 100, or 5%."
        ) from None


def choices(text: str, flag: str = "--choices") -> tuple[str, ...]:
    """Texts between commas, as a list in JSON, or the lines of a file: `yes,no`, `["a, b"]`, `@labels.txt`.

    Empty lines do not count.
    """
    listed = _listed(text, flag)
    if listed is not None:
        return listed
    try:
        parts = Path(text[1:]).read_text(encoding="utf-8-sig").splitlines() if text.startswith("@") else text.split(",")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text"
        raise UsageError(f"{flag} {text}: {reason}", "Name a file with one of them a line.") from None
    found = [part.strip() for part in parts]
    found = [part for part in found if part] if text.startswith("@") else found
    if not found or not all(found):
        raise UsageError(f"{flag} {text!r} has an empty choice", f"Example: {flag} cat,dog,neither")
    return _once(found, flag)


def _listed(text: str, flag: str) -> tuple[str, ...] | None:
    """The texts of a list in JSON; None where it is none."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    for each in found:
        if not isinstance(each, str):
            shown = printable(json.dumps(each, ensure_ascii=False))[:60]
            raise UsageError(f"{flag}: {shown} is no text", f'Put quotes around it: {flag} \'["1", "2"]\'')
    parts = [each.strip() for each in found]
    if not parts or not all(parts):
        raise UsageError(f"{flag} {text} has an empty choice", f"Example: {flag} cat,dog,neither")
    return _once(parts, flag)


def _once(found: list[str], flag: str) -> tuple[str, ...]:
    double = next((part for i, part in enumerate(found) if part in found[:i]), None)
    if double is not None:
        raise UsageError(f"{flag} has {double!r} twice", "Leave one of them out.")
    return tuple(found)


def text_of(flag: str, path: str) -> str:
    """The text of a file, without the line's end at its end."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LONGEST_TEXT + 1)
        if len(data) > _LONGEST_TEXT:
            raise UsageError(f"{flag} {printable(path)} is too large", "A prompt has up to 1 MiB, and mostly far less.")
        return data.decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise UsageError(f"{flag} {printable(path)}: {reason}", "Name a text file.") from None


def regex(text: str) -> str:
    """A pattern that Python takes as well."""
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--regex {text!r} is no pattern: {error}", "Example: --regex '[A-Z]{2}[0-9]{4}'") from None
    if not text or "\0" in text:
        raise UsageError("--regex is empty", "Example: --regex '[A-Z]{2}[0-9]{4}'")
    return text


def one_of(flag: str, value: T, choices: tuple[T, ...]) -> T:
    """The value, which is among the choices."""
    if value not in choices:
        listed = ", ".join(map(str, choices))
        raise UsageError(f"{flag} {value} is not possible", f"It takes one of {listed}.")
    return value


def at_least(flag: str, value: int, least: int) -> int:
    """The value, which is no less."""
    if value < least:
        raise UsageError(f"{flag} {value} is too small", f"It must be {least} or more.")
    return value


def whole(flag: str, value: int, low: int, high: int) -> int:
    """The whole number, which is within the bounds."""
    if not low <= value <= high:
        raise UsageError(f"{flag} {value} is out of range", f"It must be from {low} to {high}.")
    return value


def between(flag: str, value: float, low: float, high: float, open_below: bool = False) -> float:
    """The value, which is within the bounds."""
    if not (low < value if open_below else low <= value) or not value <= high:
        above = f"above {low:g}, up to" if open_below else f"from {low:g} to"
        raise UsageError(f"{flag} {value:g} is out of range", f"It must be {above} {high:g}.")
    return value


def folder(flag: str, path: str | None) -> str | None:
    """The folder's absolute path, without links; a store's URI as it is."""
    if path is None or storage.is_remote(path):
        return path
    try:
        is_folder = Path(path).is_dir()
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror or error}", "Name a folder that can be read.") from None
    if not is_folder:
        raise UsageError(f"{flag} {path} is not a folder", "Name a folder that is there.")
    return str(Path(path).resolve())


def colour(name: str) -> tuple[int, int, int]:
    """RGB from 0 to 255, from a name or #rrggbb."""
    from PIL import ImageColor

    try:
        red, green, blue, *_ = ImageColor.getrgb(name)
    except ValueError:
        raise UsageError(
            f"--background {name!r} is not a colour", "Give a name or #rrggbb, such as white or #808080."
        ) from None
    return red, green, blue
