"""Subtitles say what the transcript says, are read back by another program, and never overlap."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import pairwise

import pysubs2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.errors import UsageError
from gemma4cli.speech import Segment, Transcript
from gemma4cli.subtitles import CueOptions, Format, cues, formats_of, render

LONG = (
    "The old lighthouse keeper climbed the narrow stairs every evening, lit the lamp, and sat down to write. "
    "Nobody read what he wrote. He did not mind; the sea, he said, was reader enough for him."
)


def transcript(*parts: tuple[float, float, str]) -> Transcript:
    segments = tuple(Segment(start, end, text, len(text)) for start, end, text in parts)
    return Transcript(" ".join(segment.text for segment in segments), segments)


texts = st.text(st.characters(codec="utf-8"), max_size=120) | st.lists(
    st.text("abcdefghij", min_size=1, max_size=14), max_size=40
).map(" ".join)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    at, parts = 0.0, []
    for text in draw(st.lists(texts, max_size=6)):
        start = at + draw(st.floats(0, 5))
        at = start + draw(st.floats(0.01, 30))
        parts.append((start, at, text))
    return transcript(*parts)


options = st.builds(CueOptions, st.integers(1, 3), st.integers(8, 60))


@given(transcripts(), options)
@settings(deadline=None)
def test_cues_fit_and_never_overlap_and_lose_nothing(said: Transcript, how: CueOptions) -> None:
    found = cues(said.segments, how)
    for cue in found:
        assert 0 <= cue.start_ms < cue.end_ms
        assert 1 <= len(cue.lines) <= how.lines
        for line in cue.lines:
            assert line
            assert len(line) <= how.width
    assert all(before.end_ms <= cue.start_ms for before, cue in pairwise(found))
    shown = re.sub(r"\s", "", "".join(line for cue in found for line in cue.lines))
    meant = "".join("".join(segment.text.split()) for segment in said.segments)
    assert shown == re.sub("[\x00-\x1f\x7f-\x9f]", "", meant)


plain = st.lists(
    st.lists(
        st.sampled_from(
            ["one", "two.", "<b>", "a<b", "{x}", "-->", "0:00:01,000", "00:00:02.5", "&amp;", "é", "日本語", "«da»"]
        ),
        min_size=1,
    ).map(" ".join),
    min_size=1,
    max_size=5,
)  # fmt: skip


@given(plain, st.sampled_from([Format.SRT, Format.VTT]))
@settings(deadline=None)
def test_another_program_reads_the_same(said: list[str], format_: Format) -> None:
    given_ = transcript(*((i * 10.0, i * 10 + 9.5, text) for i, text in enumerate(said)))
    read = pysubs2.SSAFile.from_string(render(given_, format_), format_.value, keep_unknown_html_tags=True)
    expected = cues(given_.segments, CueOptions())
    assert [(event.start, event.end) for event in read] == [(cue.start_ms, cue.end_ms) for cue in expected]
    for event, cue in zip(read, expected, strict=True):
        text = event.text.replace("\\N", " ").replace("\u2060", "")
        if format_ is Format.VTT:  # the reader leaves these as they are in the file
            text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        assert text.split() == " ".join(cue.lines).split()


def read_back(text: str, format_: Format) -> pysubs2.SSAFile:
    """The file as pysubs2 has it; of the formats that it does not know, the records as their own readers have them."""
    match format_:
        case Format.TSV:
            rows = csv.DictReader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
            records = [{"start": int(r["start"]) / 1000, "end": int(r["end"]) / 1000, "text": r["text"]} for r in rows]
            return pysubs2.load_from_whisper(records)
        case Format.JSON:
            return pysubs2.load_from_whisper(json.loads(text))
        case _:
            return pysubs2.SSAFile.from_string(text, format_.value)


@given(transcripts(), st.sampled_from([Format.SRT, Format.VTT, Format.TSV, Format.JSON]), options)
@settings(deadline=None)
def test_every_format_with_times_is_read_back_and_never_overlaps(
    said: Transcript, format_: Format, how: CueOptions
) -> None:
    events = list(read_back(render(said, format_, how), format_))
    expected = len(cues(said.segments, how)) if format_ in (Format.SRT, Format.VTT) else len(said.segments)
    assert len(events) == expected
    assert all(event.start <= event.end for event in events)
    assert all(before.end <= event.start for before, event in pairwise(events))
    if events and said.segments:
        assert events[-1].end <= max(round(said.segments[-1].end_s * 1000), events[0].start + 1) + len(events)


@given(transcripts())
@settings(deadline=None)
def test_plain_text_has_a_line_for_each_segment(said: Transcript) -> None:
    assert len(render(said, Format.TXT).split("\n")) == len(said.segments) + 1


def test_a_long_segment_is_spread_by_its_characters() -> None:
    found = cues(transcript((10.0, 30.0, LONG)).segments, CueOptions())
    assert [" ".join(cue.lines) for cue in found] == [
        "The old lighthouse keeper climbed the narrow stairs every evening, lit the lamp,",
        "and sat down to write. Nobody read what he wrote.",
        "He did not mind; the sea, he said, was reader enough for him.",
    ]
    assert found[0].start_ms == 10_000
    assert found[-1].end_ms == 30_000
    assert all(before.end_ms == cue.start_ms for before, cue in pairwise(found))
    assert found[0].end_ms - 10_000 == pytest.approx(20_000 * 80 / 188, abs=150)


def test_lines_are_even() -> None:
    (cue,) = cues(transcript((0, 3, "Nobody read what he wrote, but he went on")).segments, CueOptions(2, 40))
    assert cue.lines == ("Nobody read what he", "wrote, but he went on")


def test_wide_characters_count_two() -> None:
    found = cues(transcript((0, 9, "今日は天気がいいですね。散歩に行きましょう。" * 3)).segments, CueOptions())
    assert max(len(line) for cue in found for line in cue.lines) <= 21
    assert all(line[0] not in "。、" for cue in found for line in cue.lines)


def test_an_empty_transcript_is_a_valid_file() -> None:
    nothing = transcript()
    assert render(nothing, Format.SRT) == ""
    assert render(nothing, Format.VTT) == "WEBVTT\n"
    assert render(nothing, Format.TSV) == "start\tend\ttext\n"
    assert json.loads(render(nothing, Format.JSON)) == {"text": "", "segments": []}


def test_exact_files() -> None:
    said = transcript((0.0, 1.5, "Tom & <i>Jerry</i> --> 5"), (3661.25, 3662.0, "a\tb\nc"))
    assert render(said, Format.SRT) == (
        "1\n00:00:00,000 --> 00:00:01,500\nTom & <\u2060i>Jerry<\u2060/i> --\u2060> 5\n\n"
        "2\n01:01:01,250 --> 01:01:02,000\na b c\n\n"
    )
    assert render(said, Format.VTT) == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nTom &amp; &lt;i&gt;Jerry&lt;/i&gt; --&gt; 5\n"
        "\n01:01:01.250 --> 01:01:02.000\na b c\n"
    )
    assert render(said, Format.TSV) == (
        "start\tend\ttext\n0\t1500\tTom & <i>Jerry</i> --> 5\n3661250\t3662000\ta b c\n"
    )
    assert render(said, Format.TXT) == "Tom & <i>Jerry</i> --> 5\na b c\n"
    assert json.loads(render(said, Format.JSON))["segments"][1] == {
        "start": 3661.25,
        "end": 3662.0,
        "text": "a\tb\nc",
        "tokens": 5,
    }


def test_texts_that_utf_8_cannot_hold() -> None:
    for format_ in Format:
        render(transcript((0, 1, "a\ud800b")), format_).encode()


def test_names_of_formats() -> None:
    assert formats_of("all") == tuple(Format)
    assert formats_of("vtt, srt,SRT") == (Format.SRT, Format.VTT)
    assert formats_of("") == ()


def test_refusals() -> None:
    with pytest.raises(UsageError) as caught:
        formats_of("ass")
    assert caught.value.hint == "use srt, vtt, tsv, txt, json or all"
    with pytest.raises(UsageError):
        CueOptions(lines=0)
