"""What is known of a row's media before they are decoded: from the manifest's columns, else from the file's header.

What a header promises may be wrong, and is good for a plan only. A video's rotation is not among it: it swaps the
sides, which changes no number of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import ceil
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from gemma4cli import storage
from gemma4cli.errors import RowError
from gemma4cli.media import interpretation
from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Failure, Item, Kind, Media, Probe, Stage

_WIDTHS, _HEIGHTS = ("width", "image_width"), ("height", "image_height")
_DURATIONS = ("duration", "duration_s", "duration_seconds", "seconds", "length_s")
_FRAMES = ("num_frames", "n_frames", "frame_count", "nb_frames", "frames")
_FPS = ("fps", "frame_rate")
_LONGEST_S = 366 * 86_400.0


def stated(item: Item, kinds: frozenset[Kind]) -> Probe | None:
    """What the columns of a manifest say of a row's only medium; None where that does not tell its kind or its size.

    kinds: those that the task takes, of which the row names one, or the columns leave one.
    """
    columns = item.extra
    if not columns or len(item.content) != 1 or not isinstance(item.content[0], Media):
        return None
    width, height = _whole(columns, _WIDTHS), _whole(columns, _HEIGHTS)
    duration_s, frames = _number(columns, _DURATIONS, _LONGEST_S), _whole(columns, _FRAMES)
    sized = width is not None and height is not None
    kind = item.content[0].kind
    if kind is None:
        possible = kinds - {Kind.IMAGE} if duration_s or (frames or 1) > 1 else kinds
        if sized:
            possible = possible - {Kind.AUDIO}
        elif duration_s:
            possible = possible & {Kind.AUDIO}
        kind = next(iter(possible)) if len(possible) == 1 else None
    if kind not in kinds:
        return None
    fps = _number(columns, _FPS, 1e6)
    if kind is Kind.IMAGE and sized:
        return Probe(kind, width, height, frames=1)
    if kind is Kind.AUDIO and duration_s is not None:
        return Probe(kind, duration_s=duration_s)
    if kind is Kind.VIDEO and sized and (duration_s is not None or frames is not None):
        return Probe(kind, width, height, duration_s, fps, _frames(frames, duration_s, fps))
    return None


def probe(medium: Media, kinds: frozenset[Kind], options: MediaOptions) -> Probe:
    """Reads the header of a medium. Never raises: what is wrong with it is the failure that the run would give it.

    Media on other hosts are not fetched, and nothing but their kind is known.
    """
    from gemma4cli.media.fetch import fetch
    from gemma4cli.media.sniff import sniff

    try:
        interpretation.refuse_kind(medium.kind, kinds)
        if medium.data is None and is_elsewhere(medium.location):
            return Probe(medium.kind or _kind_by_name(medium.location, kinds))
        with fetch(medium, options) as file:
            content = sniff(file)
            if content.kind is Kind.IMAGE:
                return _picture(file, content, medium.kind, kinds, options)
            try:
                return _stream(file, content, medium.kind, kinds, options, header_only=True)
            except RowError:  # it may be one that needs a closer look
                file.seek(0)
                return _stream(file, content, medium.kind, kinds, options, header_only=False)
    except RowError as error:
        return Probe(medium.kind, failure=error.failure())
    except Exception as error:
        return Probe(medium.kind, failure=Failure(Stage.DECODE, "internal", f"{type(error).__name__}: {error}"))


def is_elsewhere(location: str) -> bool:
    """Whether a medium must be fetched before anything of it can be read."""
    return location[:5].lower() in ("http:", "https") or storage.is_remote(location)


def _kind_by_name(location: str, kinds: frozenset[Kind]) -> Kind | None:
    """What a file elsewhere most likely is to the task."""
    suffix = PurePosixPath(location.partition("?")[0]).suffix.lower()
    likely = [kind for kind in kinds if suffix in _extensions()[kind]]
    return likely[0] if len(likely) == 1 else next(iter(kinds)) if len(kinds) == 1 else None


@cache
def _extensions() -> Mapping[Kind, frozenset[str]]:
    from gemma4cli.inputs.names import EXTENSIONS  # its package imports Arrow

    return EXTENSIONS


def _picture(file: BinaryIO, content: Any, asked: Kind | None, kinds: frozenset[Kind], options: MediaOptions) -> Probe:
    from gemma4cli.media.image import read_header

    if interpretation.may_be_frames(content, asked, kinds, options):
        found = read_header(file, options, heif=content.heif, frames=True)
        if interpretation.wants_frames(asked, kinds) or found.frames > 1:
            return Probe(Kind.VIDEO, found.width, found.height, frames=found.frames)
    interpretation.refuse_picture(content, asked, kinds)
    file.seek(0)
    found = read_header(file, options, heif=content.heif, frames=options.pages != 1 and content.paged)
    pages = found.frames if options.pages is None else min(found.frames, options.pages)
    return Probe(Kind.IMAGE, found.width, found.height, frames=pages)


def _stream(
    file: BinaryIO,
    content: Any,
    asked: Kind | None,
    kinds: frozenset[Kind],
    options: MediaOptions,
    *,
    header_only: bool,
) -> Probe:
    from gemma4cli.media.container import open_container, video_stream

    interpretation.refuse_stream(content, asked)
    with open_container(file, content.name, header_only=header_only) as container:
        stream = None if content.kind is Kind.AUDIO else video_stream(container)
        if interpretation.stream_kind(content, stream, asked, kinds) is Kind.AUDIO:
            from gemma4cli.media.audio import audio_stream, declared_s

            return Probe(Kind.AUDIO, duration_s=declared_s(container, audio_stream(container)) or None)
        from gemma4cli.media.audio import declared_s
        from gemma4cli.media.video import prepare

        assert stream is not None
        prepare(stream, options)
        fps = float(stream.average_rate) if stream.average_rate else None
        duration_s = declared_s(container, stream) or None
        codec = stream.codec_context
        frames = _frames(stream.frames or None, duration_s, fps)
        return Probe(Kind.VIDEO, codec.width, codec.height, duration_s, fps, frames)


def _frames(frames: int | None, duration_s: float | None, fps: float | None) -> int | None:
    """How many are shown. An edit list may hide some of those that are stored, which the duration then shows."""
    if duration_s is None or fps is None:
        return frames
    timed = max(1, ceil(duration_s * fps - 0.01))
    return timed if frames is None else min(frames, timed)


def _whole(columns: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    value = _number(columns, names, 2**31)
    return None if value is None or value < 1 else int(value)


def _number(columns: Mapping[str, Any], names: tuple[str, ...], most: float) -> float | None:
    """The first of these columns that holds a number above 0; others are about something else."""
    for name in names:
        value = columns.get(name)
        if value is not None and isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= most:
            return float(value)
    return None
