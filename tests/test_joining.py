"""One row from the pieces of a sound, of a video, or of both."""

from __future__ import annotations

from dataclasses import replace

from gemma4cli.joining import Pieces
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Item, Kind, Media, Row, Split, Status
from gemma4cli.speech import Span

SOUND = Item(5, "a", "a.wav", (Media("/a.wav", kind=Kind.AUDIO),), extra={"n": 1})
FILM = Item(5, "f", "f.mp4", (Media("/f.mp4"),), prompt="Who?", system="Be brief.", extra={"n": 1})
TRANSCRIBE = build("transcribe", Overrides())


def spans(count: int, length: float = 10.0) -> tuple[Span, ...]:
    return tuple(Span(length * i, length * i + length - 1, False) for i in range(count))


def said(text: str, transcript: str | None = None, **more: object) -> Row:
    fields = {"prompt_tokens": 7, "output_tokens": 3, **more}
    return Row(-9, "a", "a.wav", "audio", "transcribe", Status.OK, text, transcript=transcript, **fields)  # type: ignore[arg-type]


def landed(pieces: Pieces, *rows: Row) -> Row:
    for place, row in enumerate(rows):
        pieces.land(place, row)
    return pieces.joined()


def film(windows: int, sound: int | None, **flags: object) -> Pieces:
    config = build("caption", Overrides(window=10.0, with_audio=sound is not None, **flags))  # type: ignore[arg-type]
    return Pieces(config, FILM, Split(5, spans(windows), None if sound is None else spans(sound, 6.0), 30.0))


def test_translations_and_what_was_said_are_joined_apart() -> None:
    pieces = Pieces(TRANSCRIBE, SOUND, Split(5, (), spans(3), 30.0))
    row = landed(pieces, said("Hallo.", "Hello."), said("", ""), said("Welt.", "World."))
    assert (row.row_index, row.text, row.transcript, row.extra) == (5, "Hallo. Welt.", "Hello. World.", {"n": 1})
    assert [(s["text"], s["transcript"]) for s in row.segments or ()] == [("Hallo.", "Hello."), ("Welt.", "World.")]


def test_a_transcript_has_no_other_one_beside_it() -> None:
    row = landed(Pieces(TRANSCRIBE, SOUND, Split(5, (), spans(1), 30.0)), said("Hello."))
    assert row.transcript is None
    assert "transcript" not in (row.segments or ())[0]


def test_the_parts_of_a_sound_go_side_by_side_or_each_with_the_end_of_what_was_said_before() -> None:
    split = Split(5, (), spans(3), 30.0)
    assert [place for place, _ in Pieces(TRANSCRIBE, SOUND, split).first()] == [0, 1, 2]
    pieces = Pieces(build("transcribe", Overrides(condition_on_previous_text=True)), SOUND, split)
    assert [place for place, _ in pieces.first()] == [0]
    ((place, second),) = pieces.land(0, said("word " * 100 + "end."))
    assert (place, second.media[0].start_s) == (1, 10.0)
    assert second.previous.endswith("word end.")
    assert 150 < len(second.previous) <= 200
    assert second.previous.startswith("word")
    ((place, third),) = pieces.land(1, said("Zwei.", "Two."))
    assert (place, third.previous) == (2, "Two.")
    assert pieces.land(2, said("Three.")) == []
    assert pieces.complete


def test_pictures_and_sound_are_asked_about_apart_and_come_to_one_row() -> None:
    pieces = film(1, 2)
    (_, shown), (_, first), (_, second) = pieces.first()
    assert (shown.media, shown.prompt, shown.system, shown.task) == (FILM.media, "Who?", "Be brief.", None)
    assert [(i.media[0].start_s, i.media[0].kind, i.prompt, i.system, i.task) for i in (first, second)] == [
        (0.0, Kind.AUDIO, None, None, "transcribe"),
        (6.0, Kind.AUDIO, None, None, "transcribe"),
    ]
    row = landed(pieces, said("A cat.", frames=32, video_tokens=50), said("Hello", audio_tokens=9), said("there."))
    assert (row.text, row.transcript, row.task) == ("A cat.", "Hello there.", "caption")
    assert (row.prompt_tokens, row.output_tokens, row.video_tokens, row.audio_tokens) == (21, 9, 50, 9)
    assert row.frames == 32
    assert row.segments == (
        {"start": 0.0, "end": 5.0, "text": None, "tokens": 3, "transcript": "Hello"},
        {"start": 6.0, "end": 11.0, "text": None, "tokens": 3, "transcript": "there."},
    )


def test_a_silent_video_has_an_empty_transcript() -> None:
    row = landed(film(1, 0), said("A cat."))
    assert (row.text, row.transcript, row.segments) == ("A cat.", "", ())
    assert landed(film(2, None), said("A cat."), said("A dog.")).transcript is None


def test_what_was_said_goes_to_the_window_that_most_of_it_lies_in() -> None:
    row = landed(film(2, 3), said("A cat."), said("A\ndog."), said("One"), said("two"), said("three"))
    assert row.text == "A cat.\nA dog."
    assert [(s["text"], s["transcript"]) for s in row.segments or ()] == [("A cat.", "One two"), ("A dog.", "three")]
    assert row.transcript == "One two three"


def test_windows_are_summed_up_when_all_of_them_are_there() -> None:
    pieces = film(2, 2, summarise=True)
    for place in (0, 2, 3):
        assert pieces.land(place, said(f"{place}")) == []
    ((place, summary),) = pieces.land(1, said("1"))
    assert (place, summary.task, summary.prompt, summary.system) == (4, "summarise", None, "Be brief.")
    assert summary.content == ('00:00 to 00:09: 0 What is said: "2 3"\n00:10 to 00:19: 1',)
    assert not pieces.complete
    assert pieces.land(4, said("Pets.")) == []
    row = pieces.joined()
    assert (row.text, row.transcript, row.output_tokens, row.prompt_tokens) == ("Pets.", "2 3", 15, 35)
    assert [s["text"] for s in row.segments or ()] == ["0", "1"]


def test_more_windows_than_fit_are_summed_up_in_groups_first() -> None:
    pieces = film(40, None, summarise=True)
    ready = [done for place in range(40) for done in pieces.land(place, said(f"{place} " + "long " * 200))]
    rounds = [len(ready)]
    assert 1 < rounds[0] <= 20
    assert all(len(item.content[0]) < 14_000 for _, item in ready)  # type: ignore[arg-type]
    while ready:
        ready = [done for place, _ in ready for done in pieces.land(place, said("short"))]
        rounds.append(len(ready))
    assert rounds[-2:] == [1, 0]
    assert pieces.complete
    assert pieces.joined().text == "short"
    assert len(pieces.joined().segments or ()) == 40


def test_one_window_needs_no_summary() -> None:
    pieces = film(1, 1, summarise=True)
    pieces.land(0, said("A cat."))
    assert pieces.land(1, said("Hello.")) == []
    assert pieces.joined().text == "A cat."


def test_a_row_fails_with_any_of_its_pieces_and_says_which() -> None:
    def broken(*rows: Row, windows: int, sound: int | None) -> str | None:
        pieces = film(windows, sound, summarise=windows > 1)
        row = landed(pieces, *rows)
        assert (row.status, row.error_type, row.text) == (Status.FAILED, "x", None)
        return row.error_message

    bad = Row(-1, "a", "a", "audio", "caption", Status.FAILED, error_stage="engine", error_type="x", error_message="no")
    good = said("A cat.")
    assert broken(bad, good, windows=1, sound=1) == "the pictures: no"
    assert broken(good, bad, windows=1, sound=1) == "the sound from 0.0 s to 5.0 s: no"
    assert broken(good, bad, windows=2, sound=None) == "from 10.0 s to 19.0 s: no"
    assert broken(good, good, bad, windows=2, sound=None) == "summing up from 0.0 s to 19.0 s: no"


def failed(**more: object) -> Row:
    row = said("", None, **more)
    return replace(row, status=Status.FAILED, text=None, error_stage="engine", error_type="x", error_message="broke")


def test_a_failed_row_keeps_the_answers_to_its_other_pieces() -> None:
    row = landed(film(3, 2), said("A cat."), failed(), said("A dog."), said("One"), said("two"))
    assert (row.status, row.text, row.transcript) == (Status.FAILED, None, None)
    assert row.error_message == "from 10.0 s to 19.0 s: broke"
    assert [(s["start"], s["text"], s["transcript"]) for s in row.segments or ()] == [
        (0.0, "A cat.", "One two"),
        (20.0, "A dog.", ""),
    ]
    row = landed(film(1, 2), failed(), said("One"), said("two"))
    assert [(s["text"], s["transcript"]) for s in row.segments or ()] == [(None, "One"), (None, "two")]
    row = landed(film(1, 2), said("A cat."), failed(), said("two"))
    assert [(s["text"], s["transcript"]) for s in row.segments or ()] == [("A cat.", "two")]
    pieces = Pieces(TRANSCRIBE, SOUND, Split(5, (), spans(3), 30.0))
    row = landed(pieces, said("Hallo.", "Hello."), failed(), said("Welt.", "World."))
    assert [(s["text"], s["transcript"]) for s in row.segments or ()] == [("Hallo.", "Hello."), ("Welt.", "World.")]
    assert landed(Pieces(TRANSCRIBE, SOUND, Split(5, (), spans(1), 30.0)), failed()).segments is None
