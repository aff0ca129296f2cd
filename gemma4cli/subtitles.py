"""Transcripts as files: subtitles (SRT, WebVTT), tables (TSV), plain text and JSON.

Times are those of the segments, which are those of the cuts in the sound. A segment too long for one cue is spread
over several, and its time is shared among them in proportion to their characters: these times are guesses.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gemma4cli.errors import UsageError
from gemma4cli.escaping import encodable
from gemma4cli.speech.stitch import Segment, Transcript

_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]")
_CLOSING = "[\"'\u201d\u2019\u00bb)\\]]*$"
_SENTENCE_END = re.compile(f"[.?!\u2026\u3002\uff01\uff1f]{_CLOSING}")
_CLAUSE_END = re.compile(f"[,;:\u060c\uff0c\u3001\uff1b\uff1a\u2014\u2013]{_CLOSING}")
_TIME = re.compile(r"\d:(?=\d{1,2}:\d{1,2}[.,]\d)")
_MARKUP = re.compile(r"<(?=[A-Za-z/])|\{(?=[\\A-Za-z])")


class Format(StrEnum):
    """Kinds of transcript file, and their extensions."""

    SRT = "srt"
    VTT = "vtt"
    TSV = "tsv"
    TXT = "txt"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class CueOptions:
    """Cues of at most `lines` lines of at most `width` characters, of which wide ones (Chinese, Japanese) count two."""

    lines: int = 2
    width: int = 42

    def __post_init__(self) -> None:
        if self.lines < 1 or self.width < 8:
            raise UsageError("subtitles need at least 1 line of 8 characters")


@dataclass(frozen=True, slots=True)
class Cue:
    """What is on the screen from one moment to another, in milliseconds."""

    start_ms: int
    end_ms: int
    lines: tuple[str, ...]


def formats_of(names: str) -> tuple[Format, ...]:
    """The formats that a user means: some by their names, with commas between, or `all`. Raises UsageError."""
    wanted = [name.strip().lower() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name != "all" and name not in set(Format):
            raise UsageError(f"there is no transcript format {name!r}", f"use {', '.join(Format)} or all")
    return tuple(format_ for format_ in Format if format_ in wanted or "all" in wanted)


def render(transcript: Transcript, format_: Format, options: CueOptions | None = None) -> str:
    """The whole text of a file in one of the formats, its lines ended by \\n."""
    match format_:
        case Format.SRT:
            return "".join(_srt(cues(transcript.segments, options or CueOptions())))
        case Format.VTT:
            return "WEBVTT\n" + "".join(_vtt(cues(transcript.segments, options or CueOptions())))
        case Format.TSV:
            rows = (f"{_ms(s.start_s)}\t{_ms(s.end_s)}\t{_one_line(s.text)}\n" for s in transcript.segments)
            return "start\tend\ttext\n" + "".join(rows)
        case Format.TXT:
            return "".join(f"{_one_line(segment.text)}\n" for segment in transcript.segments)
        case Format.JSON:
            segments = [
                {"start": s.start_s, "end": s.end_s, "text": s.text, "tokens": s.tokens} for s in transcript.segments
            ]
            record = {"text": transcript.text, "segments": segments}
            return encodable(json.dumps(record, ensure_ascii=False, indent=2)) + "\n"


def cues(segments: Sequence[Segment], options: CueOptions) -> tuple[Cue, ...]:
    """Cues in order, none of which begins before the last one ends."""
    result: list[Cue] = []
    free_ms = 0
    for segment in segments:
        blocks = list(_blocks(_words(_one_line(segment.text)), options))
        start_ms, end_ms = max(_ms(segment.start_s), free_ms), _ms(segment.end_s)
        total = sum(map(_length, blocks))
        said = 0
        for block in blocks:
            said += _length(block)
            until_ms = start_ms + (end_ms - start_ms) * said // total
            begin_ms, free_ms = max(free_ms, start_ms), max(until_ms, free_ms + 1, start_ms + 1)
            result.append(Cue(begin_ms, free_ms, block))
    return tuple(result)


def _blocks(words: list[str], options: CueOptions) -> Iterator[tuple[str, ...]]:
    """The words in blocks that fit a cue, which end with a sentence or clause where one ends in their second half."""
    words = [part for word in words for part in _broken(word, options.width)]
    while words:
        fits = _how_many_fit(words, options)
        if fits < len(words):
            ends = range(fits, fits // 2, -1)
            at_end = next((n for n in ends if _SENTENCE_END.search(words[n - 1].rstrip())), None)
            fits = at_end or next((n for n in ends if _CLAUSE_END.search(words[n - 1].rstrip())), fits)
        yield _balanced(words[:fits], options.width)
        words = words[fits:]


def _how_many_fit(words: Sequence[str], options: CueOptions) -> int:
    count = 0
    for line in _wrapped(words, options.width)[: options.lines]:
        count += len(line)
    return count


def _balanced(words: Sequence[str], width: int) -> tuple[str, ...]:
    """The words on as few lines as `width` allows, which are as even as they can be."""
    lines = _wrapped(words, width)
    least = max(_columns(word.rstrip()) for word in words)
    for narrower in range(max(least, width // 2), width):
        narrow = _wrapped(words, narrower)
        if len(narrow) == len(lines):
            lines = narrow
            break
    return tuple("".join(line).strip() for line in lines)


def _wrapped(words: Sequence[str], width: int) -> list[list[str]]:
    lines: list[list[str]] = []
    used = width + 1
    for word in words:
        if used + _columns(word.rstrip()) > width:
            lines.append([])
            used = 0
        lines[-1].append(word)
        used += _columns(word)
    return lines


def _words(text: str) -> list[str]:
    """The text in parts between which a line may break, each with the space behind it."""
    return [part for word in re.findall(r"\S+\s*", text) for part in _unspaced(word)]


def _unspaced(word: str) -> Iterator[str]:
    """Breaks wide scripts, which have no spaces, at every character but before closing punctuation."""
    part = ""
    for char in word:
        if part and _columns(part[-1]) == 2 and _columns(char) == 2 and not unicodedata.category(char).startswith("P"):
            yield part
            part = ""
        part += char
    yield part


def _broken(word: str, width: int) -> Iterator[str]:
    """A word in parts no wider than a line, an address for one."""
    part = ""
    for char in word:
        if char != " " and _columns(part + char) > width:
            yield part
            part = ""
        part += char
    yield part


def _columns(text: str) -> int:
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _length(block: tuple[str, ...]) -> int:
    return sum(map(_columns, block))


def _one_line(text: str) -> str:
    return " ".join(encodable(_CONTROL.sub("", text)).split())


def _srt(found: Sequence[Cue]) -> Iterator[str]:
    # SRT knows no escapes. A word joiner, which is not seen, keeps players from taking words for tags or times.
    for number, cue in enumerate(found, 1):
        text = _MARKUP.sub("\\g<0>\u2060", "\n".join(cue.lines)).replace("-->", "--\u2060>")
        text = _TIME.sub("\\g<0>\u2060", text)
        yield f"{number}\n{_clock(cue.start_ms, ',')} --> {_clock(cue.end_ms, ',')}\n{text}\n\n"


def _vtt(found: Sequence[Cue]) -> Iterator[str]:
    for cue in found:
        text = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield f"\n{_clock(cue.start_ms, '.')} --> {_clock(cue.end_ms, '.')}\n{text}\n"


def _clock(ms: int, point: str) -> str:
    seconds, ms = divmod(ms, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{point}{ms:03d}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
