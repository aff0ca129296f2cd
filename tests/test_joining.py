"""One row from the pieces of a sound."""

from __future__ import annotations

from gemma4cli.joining import Pieces
from gemma4cli.records import Item, Kind, Media, Row, Split, Status
from gemma4cli.speech import Span


def piece(index: int, text: str, transcript: str | None = None) -> Row:
    return Row(index, "a", "a.wav", "audio", "transcribe", Status.OK, text, transcript=transcript, output_tokens=3)


def pieces(*rows: Row) -> Pieces:
    spans = tuple(Span(10.0 * i, 10.0 * i + 9, False) for i in range(len(rows)))
    whole = Pieces.of(Item(5, "a", "a.wav", (Media("/a.wav", kind=Kind.AUDIO),)), Split(5, spans, 30.0, 1.0))
    whole.rows = list(rows)
    return whole


def test_translations_and_what_was_said_are_joined_apart() -> None:
    row = pieces(piece(-1, "Hallo.", "Hello."), piece(-2, "", ""), piece(-3, "Welt.", "World.")).joined()
    assert (row.row_index, row.text, row.transcript) == (5, "Hallo. Welt.", "Hello. World.")
    assert [segment["text"] for segment in row.segments or ()] == ["Hallo.", "Welt."]


def test_a_transcript_has_no_other_one_beside_it() -> None:
    assert pieces(piece(-1, "Hello.")).joined().transcript is None
