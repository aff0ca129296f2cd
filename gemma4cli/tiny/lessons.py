"""What the checkpoint is taught: media with an instruction and the right answer, endless and reproducible.

Seeds below `TEST_SEED` are for training, those from it on for tests.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from gemma4cli.gemma import even_frames
from gemma4cli.tiny import films, prompts, questions, scenes
from gemma4cli.tiny.films import Film
from gemma4cli.tiny.questions import Asked
from gemma4cli.tiny.scenes import Scene

TEST_SEED = 1_000_000_000

_RATES = (1, 2, 4, 5, 8, 10, 12.5, 15, 24, 25, 29.97, 30)  # frames a second


@dataclass(frozen=True, slots=True)
class Turn:
    """The words around one medium: `before` and `after` it in the user's turn, `system` in a turn of its own."""

    answer: str
    after: str = ""
    before: str = ""
    system: str = ""


def turn(asked: Asked, rng: np.random.Generator) -> Turn:
    """The instruction after the medium; now and then before it, or in the system turn."""
    instruction, answer = asked
    where = rng.random()
    if where < 0.88:
        return Turn(answer, after=instruction)
    if where < 0.95:
        return Turn(answer, system=instruction)
    return Turn(answer, before=instruction)


def reworded(wordings: Sequence[str], rng: np.random.Generator) -> str:
    """The usual wording half the time, else any."""
    return wordings[0] if rng.random() < 0.5 else wordings[int(rng.integers(len(wordings)))]


def about_scene(scene: Scene, rng: np.random.Generator) -> Asked:
    """A caption six times in ten, else a question or JSON."""
    kind = rng.random()
    if kind < 0.6:
        return reworded(prompts.DESCRIBE_IMAGE, rng), scene.caption
    if kind < 0.72:
        return reworded(prompts.JSON_ANSWER, rng), scene.json_answer
    choices = [questions.colour_of(scene), questions.shape_of(scene), questions.how_many(scene)]
    choices = [asked for asked in [*choices, questions.is_there(scene, rng)] if asked]
    asked = choices[int(rng.integers(len(choices)))]
    return asked[int(rng.integers(len(asked)))]


def about_film(film: Film, times: Sequence[float], rng: np.random.Generator, captions: float = 0.5) -> Asked:
    """A caption in that share of films that do not travel, else the time at which something appears."""
    if film.way or rng.random() < captions:
        return reworded(prompts.DESCRIBE_VIDEO, rng), film.caption
    asked = questions.when(film, times)
    return asked[int(rng.integers(len(asked)))]


def scene_lesson(
    seed: int, size: tuple[int, int] | None = None, most: int = 3, asked: int = 1
) -> tuple[npt.NDArray[np.uint8], Scene, list[Turn]]:
    """A picture of at most `most` shapes, as files bring it: perhaps blurred, perhaps through JPEG.

    Returns uint8 of shape (height, width, 3), the scene, and the words of `asked` turns about it.
    """
    rng = np.random.default_rng([seed, 6])
    scene = scenes.random_scene(seed, size=size)
    if len(scene.things) > most:
        scene = scenes.random_scene(seed, count=most, size=size)
    picture = scenes.draw(scene)
    if rng.random() < 0.1:
        picture = picture.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 1.2))))
    if rng.random() < 0.3:
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=int(rng.integers(50, 96)))
        picture = Image.open(file).convert("RGB")
    return np.asarray(picture), scene, [turn(about_scene(scene, rng), rng) for _ in range(asked)]


def film_lesson(
    seed: int, frames: int, size: tuple[int, int] | None = None, in_turn: bool = False
) -> tuple[npt.NDArray[np.uint8], Film, list[float], Turn]:
    """Just `frames` frames of a film, uint8 (frames, height, width, 3), the film, and the seconds of the frames.

    A film shows no more things than half its frames, so that none is missed.
    in_turn: nearly always shapes in turn, half the time ones that are easily confused, and nearly always the question
    what happens.
    """
    rng = np.random.default_rng([seed, 7])
    if in_turn:
        count = int(rng.choice([0, 1, 2, 3, 4], p=[0.14, 0.12, 0.14, 0.25, 0.35]))
        film = films.random_film(seed, count, size, alike=rng.random() < 0.5)
    else:
        film = films.random_film(seed, size=size)
    if len(film.things) > frames // 2:
        film = films.random_film(seed, count=max(1, frames // 2), size=size)
    fps = max(float(rng.choice(_RATES)), frames / film.duration_s)
    times = [index / fps for index in even_frames(max(frames, round(film.duration_s * fps)), frames)]
    pixels = film.frames_at(times)
    if rng.random() < 0.5:
        grain = rng.normal(0, rng.uniform(1, 6), pixels.shape[:3])[..., None]
        pixels = np.clip(pixels + grain, 0, 255).astype(np.uint8)
    return pixels, film, times, turn(about_film(film, times, rng, 0.9 if in_turn else 0.5), rng)


def speech_turn(transcript: str, rng: np.random.Generator) -> Turn:
    """An instruction to write down what is said; `transcript` is empty where nothing is."""
    usual = prompts.TRANSCRIBE[:2] if rng.random() < 0.6 else prompts.TRANSCRIBE
    return turn((str(rng.choice(usual)), transcript), rng)
