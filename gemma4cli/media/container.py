"""Sound and video containers, opened so that they can reach nothing but the file that was given.

ffmpeg reads playlists, concat scripts and formats that name further files or URLs. Here it gets a Python file
object without a name, a list of container formats that hold their media themselves, and no way to open more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

import av
import av.error

from gemma4cli.errors import DecodeError
from gemma4cli.media.options import MediaOptions

av.logging.set_level(None)  # its log through Python can lock up threads that decode at once

_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "ogg", "avi", "flv", "asf", "mpeg", "mpegts", "mxf", "rm",
    "nut", "ivf", "yuv4mpegpipe",
    "wav", "w64", "mp3", "flac", "aac", "loas", "ac3", "eac3", "aiff", "au", "caf", "amr", "amrnb", "amrwb", "ape",
    "wv", "tta", "nistsphere", "voc", "ircam", "avr", "pvf", "epaf", "iff",
)  # fmt: skip

# Tags in no known encoding are no reason to refuse a sound. PyAV 19 takes them as they are, and has no such argument.
_LENIENT = {"metadata_errors": "ignore"} if int(av.__version__.partition(".")[0]) < 19 else {}
_HEADER_ONLY = {"probesize": "2048", "analyzeduration": "1"}  # bytes and microseconds


@contextmanager
def open_container(file: BinaryIO, name: str, *, header_only: bool = False) -> Iterator[Any]:
    """An open av container over `file`; `name` says in messages what it is.

    header_only: do not read on into the streams to find out what the header does not say.

    Raises DecodeError with a type of `truncated` or `corrupt`, also for what ffmpeg raises within the block.
    """
    try:
        with av.open(
            file,
            **_LENIENT,
            options={
                "format_whitelist": ",".join(_FORMATS),
                "protocol_whitelist": "",
                **(_HEADER_ONLY if header_only else {}),
            },
            io_open=_refuse,
            buffer_size=1 << 18,
        ) as container:
            yield container
    except av.error.FFmpegError as error:
        if _lacks_index(file, error):
            raise DecodeError("truncated", f"this {name} is cut off: its index (moov atom) is missing") from error
        if isinstance(error, av.error.EOFError):
            raise DecodeError("truncated", f"this {name} ends before its first sample") from error
        raise DecodeError("corrupt", f"this {name} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, UnicodeError) as error:
        raise DecodeError("corrupt", f"this {name} cannot be read: {error}") from error


def refuse_endless(duration_s: float, options: MediaOptions) -> None:
    """Raises DecodeError when a sound or video is longer than it may be."""
    if duration_s > options.max_duration_s:
        limit = options.max_duration_s / 3600
        raise DecodeError("too_long", f"longer than the limit of {limit:g} hours; --max-duration raises it")


def video_stream(container: Any) -> Any | None:
    """The first real video stream; cover art and thumbnails are pictures, not video."""
    for stream in container.streams.video:
        pictures = av.stream.Disposition.attached_pic | av.stream.Disposition.timed_thumbnails
        if not stream.disposition & pictures:
            return stream
    return None


def _refuse(*_: object) -> NoReturn:
    raise PermissionError("the file names another file, which is not opened")


def _lacks_index(file: BinaryIO, error: Exception) -> bool:
    """Whether an MP4 has no moov box among those that can be reached; ffmpeg only says so in its log."""
    if not isinstance(error, av.error.InvalidDataError):
        return False
    offset, end = 0, file.seek(0, os.SEEK_END)
    for _ in range(1000):
        if offset >= end:
            return True
        file.seek(offset)
        head = file.read(16)
        if len(head) < 8 or (offset == 0 and head[4:8] not in (b"ftyp", b"mdat", b"free", b"skip", b"wide")):
            return offset > 0
        if head[4:8] == b"moov":
            return False
        size = int.from_bytes(head[:4], "big")
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if size < 8:
            return True
        offset += size
    return False
