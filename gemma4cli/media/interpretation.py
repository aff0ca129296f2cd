"""What a file is read as: its content decides, the row may ask for one reading of it, the task says what it takes."""

from __future__ import annotations

from typing import Any

from gemma4cli.errors import DecodeError
from gemma4cli.media.options import MediaOptions
from gemma4cli.media.sniff import Content
from gemma4cli.records import Kind

A = {Kind.IMAGE: "an image", Kind.AUDIO: "a sound", Kind.VIDEO: "a video"}


def refuse_kind(asked: Kind | None, kinds: frozenset[Kind]) -> None:
    """Raises DecodeError `wrong_kind` where the row gives what the task does not take, whatever the file is."""
    if asked is not None and asked not in kinds:
        raise DecodeError("wrong_kind", f"the row gives {A[asked]}, but this task takes {_listed(kinds)}")


def wants_frames(asked: Kind | None, kinds: frozenset[Kind]) -> bool:
    """Whether an animated picture is a video to the row."""
    return asked is Kind.VIDEO or (asked is None and Kind.IMAGE not in kinds and Kind.VIDEO in kinds)


def may_be_frames(content: Content, asked: Kind | None, kinds: frozenset[Kind], options: MediaOptions) -> bool:
    """Whether a picture is read as a video if it moves; one that the row wants as a video is so if it does not."""
    return content.animated and (
        wants_frames(asked, kinds) or (options.animation_frames is not None and Kind.VIDEO in kinds)
    )


def refuse_picture(content: Content, asked: Kind | None, kinds: frozenset[Kind]) -> None:
    """Raises DecodeError where a still picture is not what is asked for."""
    if asked is Kind.VIDEO:
        raise DecodeError("no_video_stream", f"no video stream: this is {content.name}, a still image")
    if asked is Kind.AUDIO or Kind.IMAGE not in kinds:
        wanted = A[asked] if asked else _listed(kinds)
        raise DecodeError("wrong_kind", f"this is {content.name}, an image, where {wanted} is needed")


def refuse_stream(content: Content, asked: Kind | None) -> None:
    """Raises DecodeError `wrong_kind` where sound or video is not what is asked for."""
    if asked is Kind.IMAGE:
        raise DecodeError("wrong_kind", f"this is {content.name}, where an image is needed")


def stream_kind(content: Content, video: Any | None, asked: Kind | None, kinds: frozenset[Kind]) -> Kind:
    """Whether the frames or the sound of a container are read; `video` is its video stream. Raises DecodeError."""
    found = Kind.AUDIO if video is None else Kind.VIDEO
    kind = asked or (found if found in kinds else Kind.AUDIO)
    if kind is Kind.VIDEO and video is None:
        raise DecodeError("no_video_stream", f"no video stream: this {content.name} holds sound alone")
    if kind not in kinds:
        raise DecodeError("wrong_kind", f"this is {A[found]} ({content.name}), where {_listed(kinds)} is needed")
    return kind


def _listed(kinds: frozenset[Kind]) -> str:
    return " or ".join(A[kind] for kind in Kind if kind in kinds)
