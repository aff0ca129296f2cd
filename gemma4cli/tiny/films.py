"""Short videos of coloured shapes, and the words for what happens in each, in order.

    one shape after another    "red circle, then blue square, then green star"
    one shape that travels     "the red circle moves right"

Played backwards or with frames lost or exchanged, a film has other words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image

from gemma4cli.tiny import scenes
from gemma4cli.tiny.scenes import Scene, Thing

WAYS: dict[str, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


@dataclass(frozen=True, slots=True)
class Film:
    """What is to be seen from 0 to `duration_s`.

    things: in the order in which they appear; each is seen until the next one comes.
    starts: seconds at which each thing appears, the first at 0.
    way: a single thing travels this way over the whole film; empty for none.
    end: where it arrives; pixels from the top left.
    """

    width: int
    height: int
    duration_s: float
    things: tuple[Thing, ...]
    starts: tuple[float, ...]
    background: str
    seed: int
    way: str = ""
    end: tuple[float, float] = (0.0, 0.0)

    @property
    def caption(self) -> str:
        if self.way:
            return f"the {self.things[0].name} moves {self.way}"
        return ", then ".join(thing.name for thing in self.things)

    def scene_at(self, seconds: float) -> Scene:
        """The still scene of one moment."""
        index = max(i for i, start in enumerate(self.starts) if start <= max(seconds, 0.0) + 1e-9)
        thing = self.things[index]
        if self.way:
            share = min(max(seconds / self.duration_s, 0.0), 1.0)
            x, y = thing.x + share * (self.end[0] - thing.x), thing.y + share * (self.end[1] - thing.y)
            thing = replace(thing, x=x, y=y)
        return Scene(self.width, self.height, (thing,), self.background, self.seed)

    def frames_at(self, times: Sequence[float]) -> npt.NDArray[np.uint8]:
        """Frames at the given seconds: uint8 of shape (times, height, width, 3)."""
        ground = scenes.ground(self.scene_at(0.0))
        return np.stack([np.asarray(self._frame(ground, seconds)) for seconds in times])

    def frames(self, fps: float) -> npt.NDArray[np.uint8]:
        """Every frame at a constant rate, at least one."""
        return self.frames_at([index / fps for index in range(max(1, round(self.duration_s * fps)))])

    def _frame(self, ground: Image.Image, seconds: float) -> Image.Image:
        return scenes.draw(self.scene_at(seconds), ground)


def mirrored(film: Film) -> Film:
    """The film with left and right exchanged."""
    things = tuple(replace(thing, x=film.width - thing.x, tilt=-thing.tilt) for thing in film.things)
    way = {"left": "right", "right": "left"}.get(film.way, film.way)
    return replace(film, things=things, way=way, end=(film.width - film.end[0], film.end[1]))


def random_film(
    seed: int,
    count: int | None = None,
    size: tuple[int, int] | None = None,
    duration_s: float | None = None,
    alike: bool = False,
) -> Film:
    """A film of one to four shapes in turn, or (count 0, and four times in ten) of one shape that travels.

    size: width and height, else 96 to 320 pixels; duration_s: else 1 to 60 seconds.
    alike: most things have their shape or their colour in common with others of the film.
    """
    rng = np.random.default_rng([seed, 3])
    count = int(rng.choice([0, 1, 2, 3, 4], p=[0.4, 0.04, 0.24, 0.2, 0.12])) if count is None else count
    width, height = size or random_size(rng)
    duration = float(math.exp(rng.uniform(0.0, math.log(60)))) if duration_s is None else duration_s
    background = str(rng.choice(scenes.BACKGROUNDS))
    if count == 0:
        return _travel(rng, seed, width, height, duration, background)
    things = tuple(_anywhere(rng, name, width, height) for name in _names(rng, count, alike))
    weights = rng.uniform(0.7, 1.3, count)
    starts = (0.0, *np.cumsum(weights / weights.sum())[:-1].tolist())
    moments = tuple(float(start) * duration for start in starts)
    return Film(width, height, duration, things, moments, background, seed)


def random_size(rng: np.random.Generator) -> tuple[int, int]:
    side, aspect = math.exp(rng.uniform(math.log(96), math.log(280))), math.exp(rng.uniform(-0.6, 0.6))
    return round(side * math.sqrt(aspect)), round(side / math.sqrt(aspect))


def _names(rng: np.random.Generator, count: int, alike: bool = False) -> list[tuple[str, str]]:
    """Shape and colour of each thing, of few shapes and colours if `alike`; no thing comes twice."""
    shapes, colours = list(scenes.SHAPES), list(scenes.COLOURS)
    if alike:
        shapes, colours = list(rng.permutation(shapes)[:2]), list(rng.permutation(colours)[:3])
    every = [(str(shape), str(colour)) for shape in shapes for colour in colours]
    return [every[index] for index in rng.permutation(len(every))[:count]]


def _anywhere(rng: np.random.Generator, name: tuple[str, str], width: int, height: int) -> Thing:
    radius = float(rng.uniform(0.14, 0.3)) * min(width, height)
    x, y = rng.uniform(radius + 2, width - radius - 2), rng.uniform(radius + 2, height - radius - 2)
    return Thing(name[0], name[1], float(x), float(y), radius, float(rng.uniform(-20, 20)))


def _travel(rng: np.random.Generator, seed: int, width: int, height: int, duration: float, background: str) -> Film:
    way = str(rng.choice(list(WAYS)))
    across, down = WAYS[way]
    radius = float(rng.uniform(0.13, 0.2)) * min(width, height)
    room_x, room_y = width - 2 * radius - 4, height - 2 * radius - 4
    length = float(rng.uniform(0.5, 1.0)) * (room_x if across else room_y)
    low_x, low_y = radius + 2, radius + 2
    x = low_x + float(rng.uniform(0, 1)) * (room_x - abs(across) * length)
    y = low_y + float(rng.uniform(0, 1)) * (room_y - abs(down) * length)
    # (x, y) is the upper left end of the path; travelling left or up starts from the other end.
    near, far = (x, y), (x + abs(across) * length, y + abs(down) * length)
    start, end = (near, far) if across + down > 0 else (far, near)
    shape, colour = _names(rng, 1)[0]
    thing = Thing(shape, colour, start[0], start[1], radius, float(rng.uniform(-20, 20)))
    return Film(width, height, duration, (thing,), (0.0,), background, seed, way, end)
