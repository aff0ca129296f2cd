"""Sample media with known answers, for `gemma4 demo`: drawn scenes, a film of them, and recorded digits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4cli.gemma import AUDIO_RATE
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Kind
from gemma4cli.tiny import CLIPS, films, scenes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SCENES = (11, 42, 23)  # the last one is asked about by a shape, which it has once
FILMS = (5, 19)
RECORDINGS = 3
FPS = 8


def write(folder: Path) -> Path:
    """Draws and copies the media into `folder`, and returns the manifest that asks about them.

    Each line holds `id`, `path`, `task`, `prompt` and `expected`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "rows.jsonl"
    with manifest.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in _rows(folder))
    return manifest


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    caption = build("caption", Overrides()).prompts.by_kind
    speech = build("transcribe", Overrides()).prompts.by_kind[Kind.AUDIO]
    for seed in SCENES:
        path = folder / f"scene-{seed}.png"
        scene = scenes.random_scene(seed, count=2)
        scenes.draw(scene).save(path)
        yield _row(path, "caption", caption[Kind.IMAGE], scene.caption)
    thing = scene.things[0]
    yield _row(path, "annotate", f"What colour is the {thing.shape}?", thing.colour)
    for seed in FILMS:
        path = folder / f"film-{seed}.mp4"
        film = films.random_film(seed)
        write_video(path, film)
        yield _row(path, "caption", caption[Kind.VIDEO], film.caption)
    for clip in clips()[:RECORDINGS]:
        path = folder / clip["file"]
        shutil.copyfile(CLIPS / clip["file"], path)
        yield _row(path, "transcribe", speech, clip["transcript"])


def _row(path: Path, task: str, prompt: str, expected: str) -> dict[str, Any]:
    return {"id": path.name, "path": path.name, "task": task, "prompt": prompt, "expected": expected}


def clips() -> list[dict[str, Any]]:
    """The recordings that come with the package: `file` and `transcript` of each."""
    with (CLIPS / "clips.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def write_video(path: Path, film: films.Film, fps: int = FPS) -> None:
    """Encodes a film as H.264, near enough to lossless for colours to keep their names."""
    encode(path, film.frames(fps), fps)


def encode(
    path: Path, frames: npt.NDArray[np.uint8], fps: int = FPS, sound: npt.NDArray[np.float32] | None = None
) -> None:
    """The same for any frames (n, h, w, 3), with a sound track of 16 kHz samples where one is given."""
    import av

    _, height, width, _ = frames.shape
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps), options={"crf": "12"})
        stream.width, stream.height = width - width % 2, height - height % 2
        stream.pix_fmt = "yuv420p"
        track = None if sound is None else container.add_stream("aac", rate=AUDIO_RATE, layout="mono")
        for pixels in frames:
            cropped = pixels[: stream.height, : stream.width].copy()
            container.mux(stream.encode(av.VideoFrame.from_ndarray(cropped, format="rgb24")))
        container.mux(stream.encode())
        if track is None or sound is None:
            return
        for at in range(0, len(sound), 1024):
            heard = av.AudioFrame.from_ndarray(sound[None, at : at + 1024], format="fltp", layout="mono")
            heard.sample_rate, heard.pts, heard.time_base = AUDIO_RATE, at, Fraction(1, AUDIO_RATE)
            container.mux(track.encode(heard))
        container.mux(track.encode())
