"""One row from the pieces that its video and its sound were cut into.

Pieces are items of their own. Most can go at once; some wait for the answers to others: parts of a sound that are to
know what was said before them, and the summary of a video's windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemma4cli.config import RunConfig
from gemma4cli.recipes import SUMMARISE, TRANSCRIBE
from gemma4cli.records import Item, Kind, Row, Split, Status
from gemma4cli.speech import Piece, Segment, Span, Transcript, join
from gemma4cli.windows import groups, listed, said_in

_SUMMED = ("prompt_tokens", "image_tokens", "audio_tokens", "video_tokens", "output_tokens",
           "decode_ms", "render_ms", "queue_ms", "generate_ms")  # fmt: skip
_PREVIOUS = 200  # characters of what was said before that a part of a sound is told

Ready = list[tuple[int, Item]]  # pieces that can go, each with its place


@dataclass(slots=True)
class Pieces:
    """The pieces of one row and what came of each: windows first, then parts of the sound, then summaries.

    spans: the time that each place stands for.  last_round: the places of the windows, or of the last summaries.
    """

    config: RunConfig
    item: Item
    split: Split
    rows: list[Row | None] = field(init=False)
    spans: list[Span] = field(init=False)
    last_round: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.spans = [*self.split.windows, *(self.split.sound or ())]
        self.rows = [None] * len(self.spans)
        self.last_round = list(range(len(self.split.windows)))

    def first(self) -> Ready:
        """The pieces that wait for no other."""
        waiting = max(0, len(self.split.sound or ()) - 1) if self._in_order else 0
        return [(place, self._item(place)) for place in range(len(self.spans) - waiting)]

    def land(self, place: int, row: Row) -> Ready:
        """Takes what came of a piece. The pieces that waited for it."""
        self.rows[place] = row
        after = place + 1
        if self._in_order and self._sound.start < after < self._sound.stop:
            return [(after, replace(self._item(after), previous=_tail(row.transcript or row.text or "")))]
        return self._summaries() if self.complete else []

    @property
    def complete(self) -> bool:
        return None not in self.rows

    def joined(self) -> Row:
        """The whole row. It fails if a piece did, for a transcript with a hole is no transcript.

        Its segments then hold the pieces that have an answer, which may have taken hours.
        """
        rows = [row for row in self.rows if row is not None]
        whole = self._counted(rows)
        for place, row in enumerate(rows):
            if row.status is Status.FAILED:
                return replace(
                    whole,
                    status=Status.FAILED,
                    segments=self._answered() or None,
                    error_stage=row.error_stage,
                    error_type=row.error_type,
                    error_message=f"{self._named(place)}: {row.error_message}",
                    finish_reason=row.finish_reason,
                )
        whole = replace(whole, finish_reason=worst(row.finish_reason for row in rows))
        return self._seen(whole) if self.split.windows else self._transcribed(whole)

    def _counted(self, rows: Sequence[Row]) -> Row:
        """The row with what its pieces took, and without an answer."""
        whole = counted(self.item, rows)
        return replace(
            whole,
            task=self.config.task,
            duration_s=whole.duration_s if self.split.duration_s is None else self.split.duration_s,
            decode_ms=self.split.decode_ms + (whole.decode_ms or 0.0),
            attempts=max(self.split.attempts, whole.attempts),
            frames=sum(row.frames or 0 for row in rows) if self.split.windows else None,
        )

    def _transcribed(self, whole: Row) -> Row:
        """The row of a sound: a transcript, or a translation with its transcript beside it."""
        heard, said = self._heard(), self._translated()
        if said is None:
            return replace(whole, text=heard.text, segments=segments_of(heard.segments))
        segments = segments_of(heard.segments, said.segments)
        return replace(whole, text=heard.text, transcript=said.text, segments=segments)

    def _seen(self, whole: Row) -> Row:
        """The row of a video: what was seen, and what was heard with it."""
        said = None
        if self.split.sound is not None:
            said = self._heard()
            whole = replace(whole, transcript=said.text)
        rows = self._landed(self._shown)
        if len(rows) == 1:
            return replace(whole, text=rows[0].text, segments=None if said is None else _untold(said.segments))
        windows = self._windows()
        summaries = self._landed(slice(self._sound.stop, None))
        text = summaries[-1].text if summaries else "\n".join(window.text for window in windows if window.text)
        heard = None if said is None else said_in(said.segments, self.split.windows)
        return replace(whole, text=text, segments=segments_of(windows, heard))

    def _answered(self) -> tuple[dict[str, object], ...]:
        """Segments of what came of the pieces that did not fail."""
        said, windows = self._heard(), self._windows()
        if not self.split.windows:
            beside = self._translated()
            return segments_of(said.segments, None if beside is None else beside.segments)
        if self.split.sound is None:
            return segments_of(windows)
        return segments_of(windows, said_in(said.segments, self.split.windows)) if windows else _untold(said.segments)

    def _windows(self) -> list[Segment]:
        """The windows that have an answer."""
        return [
            Segment(span.start_s, span.end_s, " ".join((row.text or "").split()), row.output_tokens or 0)
            for span, row in zip(self.split.windows, self._landed(self._shown), strict=True)
            if row.status is Status.OK
        ]

    @property
    def _shown(self) -> slice:
        """The places of the windows."""
        return slice(0, len(self.split.windows))

    @property
    def _sound(self) -> slice:
        """The places of the parts of the sound."""
        return slice(len(self.split.windows), len(self.split.windows) + len(self.split.sound or ()))

    def _landed(self, places: slice) -> list[Row]:
        return [row for row in self.rows[places] if row is not None]

    @property
    def _sound_task(self) -> str | None:
        return TRANSCRIBE if self.split.windows else None  # of a sound alone, it is what the row is for

    @property
    def _in_order(self) -> bool:
        """Whether each part of the sound is to know what was said before it."""
        return self.config.recipe(self._sound_task).prompts.previous is not None

    def _item(self, place: int) -> Item:
        """The item of a window or a part of the sound."""
        span, item = self.spans[place], replace(self.item, extra={})
        if len(self.split.windows) == 1 and place == 0:
            return item
        (medium,) = item.media
        part = replace(medium, start_s=span.start_s, end_s=span.end_s)
        if place < len(self.split.windows) or self._sound_task is None:
            return replace(item, content=(part,))
        heard = replace(part, kind=Kind.AUDIO)
        return replace(item, content=(heard,), prompt=None, system=None, task=TRANSCRIBE)

    def _summaries(self) -> Ready:
        """The next round of summaries: of the windows, or of summaries of some of them while those are too many."""
        if self.config.summary is None or len(self.last_round) < 2:
            return []
        below = [self.rows[place] for place in self.last_round]
        spans = [self.spans[place] for place in self.last_round]
        if any(row is None or row.status is Status.FAILED for row in self.rows):
            return []
        said = None
        if self.split.sound is not None and self.last_round == list(range(len(self.split.windows))):
            said = said_in(self._heard().segments, spans)
        lines = listed([(row and row.text) or "" for row in below], spans, said)
        self.last_round = []
        ready: Ready = []
        for group in groups(lines):
            text = "\n".join(lines[i] for i in group)
            summary = replace(self.item, content=(text,), prompt=None, extra={}, task=SUMMARISE)
            ready.append((len(self.rows), summary))
            self.last_round.append(len(self.rows))
            self.rows.append(None)
            self.spans.append(Span(spans[group[0]].start_s, spans[group[-1]].end_s))
        return ready

    def _heard(self, *, transcripts: bool = False) -> Transcript:
        """The answers to the parts of the sound, or the transcripts beside them, as far as there are answers."""
        return join(
            [
                Piece(
                    span.start_s,
                    span.end_s,
                    (row.transcript if transcripts else row.text) or "",
                    row.output_tokens or 0,
                    span.overlaps_previous,
                )
                for row, span in zip(self._landed(self._sound), self.split.sound or (), strict=True)
                if row.status is Status.OK
            ]
        )

    def _translated(self) -> Transcript | None:
        """What was said, where the answers are its translation."""
        beside = any(row.transcript is not None for row in self._landed(self._sound))
        return self._heard(transcripts=True) if beside else None

    def _named(self, place: int) -> str:
        """A piece in words, for the message of its failure."""
        span, shown = self.spans[place], len(self.split.windows)
        times = f"from {span.start_s:.1f} s to {span.end_s:.1f} s"
        if place >= self._sound.stop:
            return f"summing up {times}"
        if place >= shown and shown:
            return f"the sound {times}"
        return "the pictures" if shown == 1 else times


def counted(item: Item, rows: Sequence[Row]) -> Row:
    """The row of an item with what its pieces took, and without an answer; in all else it is as the first of them."""
    sums: dict[str, Any] = {name: sum(getattr(row, name) or 0 for row in rows) for name in _SUMMED}
    return replace(
        rows[0],
        row_index=item.row_index,
        extra=item.extra,
        status=Status.OK,
        text=None,
        segments=None,
        transcript=None,
        error_stage=None,
        error_type=None,
        error_message=None,
        finish_reason=None,
        answer=None,
        logprob=None,
        choice_logprobs=None,
        thinking=None,
        thinking_tokens=sum(row.thinking_tokens or 0 for row in rows) or None,
        samples=None,
        bucket="+".join(dict.fromkeys(row.bucket for row in rows if row.bucket)) or None,
        attempts=max(row.attempts for row in rows),
        **sums,
    )


def segments_of(segments: Sequence[Segment], said: Sequence[Segment] | None = None) -> tuple[dict[str, object], ...]:
    """Segments as the output's column holds them; `said` holds what was said in them, by their starts."""
    if said is None:
        return tuple({"start": s.start_s, "end": s.end_s, "text": s.text, "tokens": s.tokens} for s in segments)
    words = {s.start_s: s.text for s in said}
    return tuple(
        {
            "start": s.start_s,
            "end": s.end_s,
            "text": s.text,
            "tokens": s.tokens,
            "transcript": words.get(s.start_s, ""),
        }
        for s in segments
    )


def _untold(said: Sequence[Segment]) -> tuple[dict[str, object], ...]:
    """What was said during a video that is described as a whole: no part of it has a text of its own."""
    return tuple(
        {"start": s.start_s, "end": s.end_s, "text": None, "tokens": s.tokens, "transcript": s.text} for s in said
    )


def _tail(text: str) -> str:
    """The end of a text, from the beginning of a word where it has any."""
    end = text[-_PREVIOUS:]
    return end if len(text) <= _PREVIOUS or " " not in end else end.partition(" ")[2]


def worst(reasons: Iterable[str | None]) -> str | None:
    """The reason that a reader must know of: any piece that looped or was cut off makes the whole one that did."""
    found = set(reasons)
    return next((reason for reason in ("repetition", "length") if reason in found), "stop")
