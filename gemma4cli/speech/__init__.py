"""Sound longer than the model hears at a time: where speech is, where to cut, and how the pieces' texts join.

    media -> activity.measure -> spans.arrange -> spans -> (a model's answer each) -> stitch.join -> one transcript

`cut` is the first half, `join` the second. Importing this package costs nothing.
"""

from __future__ import annotations

from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Media
from gemma4cli.speech.spans import CutOptions, Span
from gemma4cli.speech.stitch import Piece, Segment, Transcript, join

__all__ = ["CutOptions", "Piece", "Segment", "Span", "Transcript", "cut", "join"]


def cut(media: Media, options: MediaOptions, cutting: CutOptions | None = None) -> tuple[Span, ...]:
    """Where to cut a medium's sound so that each span is short enough for the model and all speech is in one.

    Reads the sound once, in memory that does not grow with its length but for 8 bytes each 32 ms. Times are seconds
    from the first sample of the file, as Media.start_s and end_s are; a span of a medium is cut within itself.
    No speech gives no span. Raises FetchError and DecodeError, as `media.load` does.
    """
    from gemma4cli.media.audio import stream_audio
    from gemma4cli.speech.activity import measure
    from gemma4cli.speech.spans import arrange

    activity = measure(stream_audio(media, options))
    start_s = media.start_s or 0.0
    return tuple(
        Span(start_s + span.start_s, start_s + span.end_s, span.overlaps_previous)
        for span in arrange(activity, cutting or CutOptions())
    )
