"""What a job says about reading media; one record for the whole line."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4cli.gemma import MAX_FRAMES


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """How media are fetched and decoded.

    background: colour that shows through transparent pixels.
    max_duration_s: sound and video that turn out to be longer are refused; a header's word for it does not count.
    max_pixels: images whose header promises more are refused before they are decoded.
    budget: soft tokens that the model will see; an image far larger than those need may then be returned scaled
        down, never below twice the model's size. None returns every pixel.
    max_audio_s: seconds of sound after which decoding stops, one second later; None decodes everything.
    max_frames: frames of a video, at most.
    fps: frames a second of a video, as long as they come to no more than `max_frames`; None takes even ones.
    start_s, end_s: the part of a video that its frames are taken from, in seconds from its first frame.
    part_only: of a file with an index, read no more than the part; `frame_indices` and `total_frames` then count the
        frames of the part, and one before.
    animation_frames: an animated picture is a video of so many frames; None takes its first picture, unless the row
        asks for a video.
    pages: how many pages of a file become pictures, from the first on; None takes all.
    channel: of a sound: `mix`, `left`, `right`, or a number from 1.
    frame_scale: a video's frames are kept at no more than this many times the size that the model sees.
    exact_frames: they come at that very size, by the model's own resize, which needs torch.
    timeout_s: seconds for a download as a whole.
    max_bytes: size of a download, at most.
    keep: hold on to a download for the next time that this process reads it.
    root: files outside this folder are refused, whatever links and `..` lead there; None allows all.
    allow_private_hosts: let URLs name loopback, private and link-local addresses, and any protocol.
    allow_protocols: of fsspec, beside those of object stores, that rows may name: those of the job's own arguments.
    """

    background: tuple[int, int, int] = (255, 255, 255)
    max_pixels: int = 178_956_970
    max_duration_s: float = 86_400.0
    budget: int | None = None
    max_audio_s: float | None = None
    max_frames: int = MAX_FRAMES
    fps: float | None = None
    start_s: float | None = None
    end_s: float | None = None
    part_only: bool = False
    animation_frames: int | None = None
    pages: int | None = 1
    channel: str = "mix"
    frame_scale: float = 2.0
    exact_frames: bool = False
    timeout_s: float = 60.0
    max_bytes: int = 2 << 30
    keep: bool = False
    root: str | None = None
    allow_private_hosts: bool = False
    allow_protocols: frozenset[str] = frozenset()
