"""Questions about scenes and films, each with the one answer that counts as right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from gemma4cli.tiny import prompts
from gemma4cli.tiny.films import Film
from gemma4cli.tiny.scenes import COLOURS, SHAPES, Scene

Asked = tuple[str, str]
"""An instruction and its right answer."""


def colour_of(scene: Scene) -> list[Asked]:
    """What colour each shape has that is there once."""
    shapes = Counter(thing.shape for thing in scene.things)
    lone = [thing for thing in scene.things if shapes[thing.shape] == 1]
    return [(wording.format(shape=thing.shape), thing.colour) for wording in prompts.COLOUR_OF for thing in lone]


def shape_of(scene: Scene) -> list[Asked]:
    """What shape each colour has that is there once."""
    colours = Counter(thing.colour for thing in scene.things)
    lone = [thing for thing in scene.things if colours[thing.colour] == 1]
    return [(wording.format(colour=thing.colour), thing.shape) for wording in prompts.SHAPE_OF for thing in lone]


def how_many(scene: Scene) -> list[Asked]:
    return [(wording, str(len(scene.things))) for wording in prompts.HOW_MANY]


def is_there(scene: Scene, rng: np.random.Generator) -> list[Asked]:
    """Whether a shape, or a shape of one colour, is there; as often yes as no."""
    here = scene.things[int(rng.integers(len(scene.things)))]
    if rng.random() < 0.5:
        shown = {thing.shape for thing in scene.things}
        absent = [shape for shape in SHAPES if shape not in shown]
        asked, answer = (here.shape, "yes") if rng.random() < 0.5 else (str(rng.choice(absent)), "no")
    else:
        names = {thing.name for thing in scene.things}
        absent = [f"{colour} {shape}" for shape in SHAPES for colour in COLOURS if f"{colour} {shape}" not in names]
        asked, answer = (here.name, "yes") if rng.random() < 0.5 else (str(rng.choice(absent)), "no")
    return [(_article(wording.format(thing=asked)), answer) for wording in prompts.IS_THERE]


def as_json(scene: Scene) -> list[Asked]:
    return [(wording, scene.json_answer) for wording in prompts.JSON_ANSWER]


def when(film: Film, times: Sequence[float]) -> list[Asked]:
    """At what mm:ss each thing is first seen, given the seconds of the frames that are shown."""
    answers: list[Asked] = []
    for thing, start in zip(film.things, film.starts, strict=True):
        first = next((seconds for seconds in times if seconds >= start - 1e-9), None)
        if first is not None:
            stamp = f"{int(first) // 60:02d}:{int(first) % 60:02d}"
            answers.extend((wording.format(thing=thing.name), stamp) for wording in prompts.WHEN)
    return answers


def _article(text: str) -> str:
    return text.replace(" a orange", " an orange")
