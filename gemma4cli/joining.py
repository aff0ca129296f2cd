"""One row from the pieces that its sound, or its video, was cut into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gemma4cli.records import Item, Kind, Row, Split, Status
from gemma4cli.speech import Piece, Segment, join


@dataclass(slots=True)
class Pieces:
    """The pieces of one row and what came of each, in order; None while it is not known."""

    item: Item
    split: Split
    rows: list[Row | None]

    @classmethod
    def of(cls, item: Item, split: Split) -> Pieces:
        return cls(item, split, [None] * len(split.spans))

    def items(self, first_key: int) -> list[Item]:
        """An item for each piece; keys of rows in flight go down from `first_key`."""
        (medium,) = self.item.media
        return [
            replace(
                self.item,
                row_index=first_key - i,
                content=(replace(medium, start_s=span.start_s, end_s=span.end_s),),
                extra={},
            )
            for i, span in enumerate(self.split.spans)
        ]

    @property
    def complete(self) -> bool:
        return None not in self.rows

    def joined(self) -> Row:
        """The row of the whole sound. It fails if a piece did, for a transcript with a hole is no transcript."""
        rows = [row for row in self.rows if row is not None]
        first, spans = rows[0], self.split.spans
        whole = replace(
            first,
            row_index=self.item.row_index,
            text=None,
            transcript=None,
            duration_s=self.split.duration_s,
            decode_ms=self.split.decode_ms + sum(row.decode_ms or 0.0 for row in rows),
            bucket="+".join(dict.fromkeys(row.bucket for row in rows if row.bucket)) or None,
            attempts=max(row.attempts for row in rows),
            extra=self.item.extra,
            prompt_tokens=sum(row.prompt_tokens or 0 for row in rows),
            audio_tokens=sum(row.audio_tokens or 0 for row in rows),
            video_tokens=sum(row.video_tokens or 0 for row in rows),
            frames=sum(row.frames or 0 for row in rows) if self.split.kind is Kind.VIDEO else None,
            output_tokens=sum(row.output_tokens or 0 for row in rows),
            render_ms=sum(row.render_ms or 0.0 for row in rows),
            queue_ms=sum(row.queue_ms or 0.0 for row in rows),
            generate_ms=sum(row.generate_ms or 0.0 for row in rows),
        )
        for row, span in zip(rows, spans, strict=True):
            if row.status is Status.FAILED:
                return replace(
                    whole,
                    status=Status.FAILED,
                    error_stage=row.error_stage,
                    error_type=row.error_type,
                    error_message=f"from {span.start_s:.1f} s to {span.end_s:.1f} s: {row.error_message}",
                    finish_reason=row.finish_reason,
                )
        transcript = join(self._pieces([(row.text, row.output_tokens) for row in rows]))
        said = join(self._pieces([(row.transcript, 0) for row in rows]))
        return replace(
            whole,
            text=transcript.text if self.split.kind is Kind.AUDIO else "\n".join(s.text for s in transcript.segments),
            segments=segments_of(transcript.segments),
            transcript=None if first.transcript is None else said.text,
            finish_reason=_worst(row.finish_reason for row in rows),
        )

    def _pieces(self, answers: Sequence[tuple[str | None, int | None]]) -> list[Piece]:
        return [
            Piece(span.start_s, span.end_s, text or "", tokens or 0, span.overlaps_previous)
            for (text, tokens), span in zip(answers, self.split.spans, strict=True)
        ]


def segments_of(segments: Sequence[Segment]) -> tuple[dict[str, object], ...]:
    """Segments as the output's column holds them."""
    return tuple({"start": s.start_s, "end": s.end_s, "text": s.text, "tokens": s.tokens} for s in segments)


def _worst(reasons: Iterable[str | None]) -> str | None:
    """The reason that a reader must know of: any piece that looped or was cut off makes the whole one that did."""
    found = set(reasons)
    return next((reason for reason in ("repetition", "length") if reason in found), "stop")
