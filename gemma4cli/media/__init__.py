"""From an input's medium to pixels and samples.

`load` and `load_all` are the doors; `video_length` looks in without decoding. Importing this package costs nothing:
decoders are imported when a medium needs them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

from gemma4cli.media import interpretation
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.media.options import MediaOptions
from gemma4cli.records import Kind, Media

if TYPE_CHECKING:
    from gemma4cli.media.sniff import Content

__all__ = ["Audio", "Image", "MediaOptions", "Video", "load", "load_all", "video_length"]


def load(media: Media, kinds: frozenset[Kind], options: MediaOptions) -> Image | Audio | Video:
    """Fetches and decodes one medium.

    The content decides what it is. `media.kind` asks for one reading of it (the sound track of a video, the frames
    of a GIF); without it, `kinds`, which the task accepts, does the same where it leaves no other choice.

    Raises FetchError when the bytes cannot be had, DecodeError when they are not what was asked for.
    """
    return load_all(media, kinds, replace(options, pages=1))[0]


def load_all(
    media: Media, kinds: frozenset[Kind], options: MediaOptions
) -> tuple[Image | Audio | Video, *tuple[Image, ...]]:
    """The same, with `options.pages` pictures of a file that has several pages."""
    from gemma4cli.media.fetch import fetch
    from gemma4cli.media.sniff import sniff

    interpretation.refuse_kind(media.kind, kinds)
    with fetch(media, options) as file:
        content = sniff(file)
        if content.kind is Kind.IMAGE:
            return _load_image(file, content, media.kind, kinds, options)
        return (_load_stream(file, content, media, kinds, options),)


def video_length(media: Media, kinds: frozenset[Kind], options: MediaOptions) -> float | None:
    """Seconds of a medium that `load` would give as a video with sound or without; None for all else.

    Raises FetchError and DecodeError as `load` does.
    """
    from gemma4cli.media.container import open_container, video_stream
    from gemma4cli.media.fetch import fetch
    from gemma4cli.media.sniff import sniff

    if Kind.VIDEO not in kinds or media.kind not in (None, Kind.VIDEO):
        return None
    with fetch(media, options) as file:
        content = sniff(file)
        if content.kind in (Kind.IMAGE, Kind.AUDIO):
            return None
        with open_container(file, content.name) as container:
            stream = video_stream(container)
            if stream is None:
                return None
            from gemma4cli.media.video import video_length as length_of

            return length_of(container, stream, options)


def _load_image(
    file: BinaryIO, content: Content, asked: Kind | None, kinds: frozenset[Kind], options: MediaOptions
) -> tuple[Image | Video, *tuple[Image, ...]]:
    if interpretation.may_be_frames(content, asked, kinds, options):
        from gemma4cli.media.animation import decode_animation, is_moving

        if interpretation.wants_frames(asked, kinds) or is_moving(file, options):
            if options.animation_frames is not None:
                options = replace(options, max_frames=options.animation_frames)
            return (decode_animation(file, options),)
    interpretation.refuse_picture(content, asked, kinds)
    from gemma4cli.media.image import decode_image, decode_pages

    if options.pages != 1 and content.paged:
        first, *others = decode_pages(file, options)
        return first, *others
    return (decode_image(file, options, heif=content.heif),)


def _load_stream(
    file: BinaryIO, content: Content, media: Media, kinds: frozenset[Kind], options: MediaOptions
) -> Audio | Video:
    from gemma4cli.media.container import open_container, video_stream

    interpretation.refuse_stream(content, media.kind)
    with open_container(file, content.name) as container:
        stream = None if content.kind is Kind.AUDIO else video_stream(container)
        if interpretation.stream_kind(content, stream, media.kind, kinds) is Kind.VIDEO:
            from gemma4cli.media.video import decode_video

            return decode_video(container, stream, options)
        from gemma4cli.media.audio import decode_audio

        return decode_audio(container, options, media.start_s, media.end_s)
