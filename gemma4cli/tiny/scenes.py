"""Still pictures with one to three coloured shapes, and the sentence that each one shows.

The grammar is fixed, and every scene is made so that turning or mirroring it changes its sentence:

    one shape    "a red circle in the top left"
    two shapes   "a red circle left of a blue square"
    three        "a red circle left of a blue square and above a green star"

Shapes are named in the order of `SHAPES`, then of `COLOURS`, whatever their places; the first one named is the
one that relations start from. With three shapes the second lies along one axis from the first and the third along
the other, so the eight ways to turn and mirror a picture give eight different sentences.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

SHAPES: tuple[str, ...] = ("circle", "square", "triangle", "star", "cross")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 35, 40),
    "orange": (245, 140, 20),
    "yellow": (245, 225, 40),
    "green": (35, 160, 60),
    "blue": (35, 80, 220),
    "purple": (140, 45, 175),
}
RELATIONS: tuple[str, ...] = ("left of", "right of", "above", "below")
BACKGROUNDS: tuple[str, ...] = ("plain", "gradient", "noise", "stripes", "clouds")


@dataclass(frozen=True, slots=True)
class Thing:
    """One shape: centre in pixels from the top left, radius in pixels, turned by `tilt` degrees."""

    shape: str
    colour: str
    x: float
    y: float
    radius: float
    tilt: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def rank(self) -> tuple[int, int]:
        return SHAPES.index(self.shape), list(COLOURS).index(self.colour)


@dataclass(frozen=True, slots=True)
class Scene:
    """A picture of `width` x `height` pixels; `things` are in the order in which they are named.

    seed: of everything that the sentence does not tell, such as the background's grain.
    """

    width: int
    height: int
    things: tuple[Thing, ...]
    background: str
    seed: int

    @property
    def relations(self) -> tuple[str, ...]:
        """How the first shape lies to each of the others."""
        first, *others = self.things
        return tuple(_relation(first, other) for other in others)

    @property
    def place(self) -> str:
        """The corner that the first shape lies nearest to."""
        first = self.things[0]
        vertical = "top" if first.y < self.height / 2 else "bottom"
        return f"{vertical} {'left' if first.x < self.width / 2 else 'right'}"

    @property
    def caption(self) -> str:
        first, *others = self.things
        if not others:
            return f"a {first.name} in the {self.place}".replace("a orange", "an orange")
        rest = (f"{how} a {other.name}" for how, other in zip(self.relations, others, strict=True))
        return f"a {first.name} {' and '.join(rest)}".replace("a orange", "an orange")

    @property
    def json_answer(self) -> str:
        first = self.things[0]
        how = self.relations[0] if len(self.things) > 1 else self.place
        return json.dumps({"shape": first.shape, "colour": first.colour, "relation": how})


def _relation(first: Thing, other: Thing) -> str:
    across, down = other.x - first.x, other.y - first.y
    if abs(across) > abs(down):
        return "left of" if across > 0 else "right of"
    return "above" if down > 0 else "below"


def things_by_cell(scene: Scene, rows: int, columns: int) -> npt.NDArray[np.int64]:
    """What lies where on a grid over the scene, (rows, columns): 0 for nothing, else 1 + 6 * shape + colour."""
    cells = np.zeros((rows, columns), np.int64)
    ys, xs = (np.arange(rows) + 0.5) * scene.height / rows, (np.arange(columns) + 0.5) * scene.width / columns
    for thing in scene.things:
        near = np.hypot(xs[None] - thing.x, ys[:, None] - thing.y) < 0.8 * thing.radius
        row, column = int(thing.y * rows / scene.height), int(thing.x * columns / scene.width)
        near[min(max(row, 0), rows - 1), min(max(column, 0), columns - 1)] = True
        shape, colour = thing.rank
        cells[near] = 1 + len(COLOURS) * shape + colour
    return cells


def mirrored(scene: Scene) -> Scene:
    """The scene with left and right exchanged."""
    things = tuple(replace(thing, x=scene.width - thing.x, tilt=-thing.tilt) for thing in scene.things)
    return replace(scene, things=things)


def turned(scene: Scene) -> Scene:
    """The scene after a quarter turn clockwise."""
    things = tuple(replace(thing, x=scene.height - thing.y, y=thing.x, tilt=thing.tilt + 90) for thing in scene.things)
    return replace(scene, width=scene.height, height=scene.width, things=things)


def random_scene(seed: int, count: int | None = None, size: tuple[int, int] | None = None) -> Scene:
    """A scene of one to three shapes; `size` is width and height, else drawn between 128 and 800 pixels."""
    rng = np.random.default_rng([seed, 1])
    count = int(rng.choice([1, 2, 3], p=[0.25, 0.4, 0.35])) if count is None else count
    width, height = size or random_size(rng)
    names = sorted(_distinct(rng, count))
    spots = [_corner(rng, width, height)] if count == 1 else _elbow(rng, width, height, count)
    things = tuple(
        Thing(SHAPES[shape], list(COLOURS)[colour], x, y, radius, float(rng.uniform(-20, 20)))
        for (shape, colour), (x, y, radius) in zip(names, spots, strict=True)
    )
    return Scene(width, height, things, str(rng.choice(BACKGROUNDS, p=[0.4, 0.2, 0.15, 0.1, 0.15])), seed)


def random_size(rng: np.random.Generator) -> tuple[int, int]:
    side = math.exp(rng.uniform(math.log(128), math.log(640)))
    aspect = math.exp(rng.uniform(-0.6, 0.6))
    return round(side * math.sqrt(aspect)), round(side / math.sqrt(aspect))


def _distinct(rng: np.random.Generator, count: int) -> set[tuple[int, int]]:
    names: set[tuple[int, int]] = set()
    while len(names) < count:
        names.add((int(rng.integers(len(SHAPES))), int(rng.integers(len(COLOURS)))))
    return names


def _corner(rng: np.random.Generator, width: int, height: int) -> tuple[float, float, float]:
    radius = float(rng.uniform(0.12, 0.22)) * min(width, height)
    across = float(rng.uniform(radius / width + 0.02, 0.36)) * width
    down = float(rng.uniform(radius / height + 0.02, 0.36)) * height
    x = across if rng.random() < 0.5 else width - across
    y = down if rng.random() < 0.5 else height - down
    return x, y, radius


def _elbow(rng: np.random.Generator, width: int, height: int, count: int) -> list[tuple[float, float, float]]:
    """Centres and radii: the first shape, one along a random axis from it, and one along the other axis."""
    axes = [(int(rng.choice([-1, 1])), 0), (0, int(rng.choice([-1, 1])))]
    if rng.random() < 0.5:
        axes.reverse()
    low, high = (0.11, 0.17) if count == 2 else (0.10, 0.14)
    shorter = min(width, height)
    while True:
        radii = rng.uniform(low, high, count) * shorter
        spots = [(float(rng.uniform(0, width)), float(rng.uniform(0, height)))]
        for right, down in axes[: count - 1]:
            along = float(rng.uniform(0.33, 0.8)) * (width if right else height)
            aside = float(rng.uniform(-0.35, 0.35)) * along
            spots.append(
                (
                    spots[0][0] + right * along + abs(down) * aside,
                    spots[0][1] + down * along + abs(right) * aside,
                )
            )
        placed = [(x, y, float(radius)) for (x, y), radius in zip(spots, radii, strict=True)]
        if all(r + 2 < x < width - r - 2 and r + 2 < y < height - r - 2 for x, y, r in placed) and all(
            math.dist(one[:2], other[:2]) > 1.25 * (one[2] + other[2])
            for i, one in enumerate(placed)
            for other in placed[:i]
        ):
            return placed


def ground(scene: Scene) -> Image.Image:
    """The picture before any shape is painted."""
    rng = np.random.default_rng([scene.seed, 2])
    return _background(rng, scene.width, scene.height, scene.background)


def draw(scene: Scene, on: Image.Image | None = None) -> Image.Image:
    """The scene as an RGB picture, painted over a copy of `on` where its ground is at hand."""
    picture = ground(scene) if on is None else on.copy()
    rng = np.random.default_rng([scene.seed, 4])
    for thing in scene.things:
        _paint(picture, thing, rng)
    return picture


def _paint(picture: Image.Image, thing: Thing, rng: np.random.Generator) -> None:
    scale = 4  # drawn larger and reduced, for smooth edges
    half = math.ceil(thing.radius) + 1
    left, top = math.floor(thing.x), math.floor(thing.y)
    mask = Image.new("L", (2 * half * scale, 2 * half * scale), 0)
    centre = ((thing.x - left + half) * scale, (thing.y - top + half) * scale)
    outline = [
        (centre[0] + px * thing.radius * scale, centre[1] + py * thing.radius * scale)
        for px, py in _outline(thing.shape, thing.tilt)
    ]
    ImageDraw.Draw(mask).polygon(outline, fill=255)
    mask = mask.reduce(scale)
    rgb = np.clip(np.array(COLOURS[thing.colour]) + rng.uniform(-12, 12, 3), 0, 255).astype(int)
    picture.paste(tuple(int(value) for value in rgb), (left - half, top - half), mask)


def _outline(shape: str, tilt: float) -> Iterator[tuple[float, float]]:
    """Corners within a circle of radius 1, clockwise from the top."""
    if shape == "circle":
        polar = [(0.95, 10.0 * i) for i in range(36)]
    elif shape == "square":
        polar = [(1.1, 45.0 + 90 * i) for i in range(4)]
    elif shape == "triangle":
        polar = [(1.1, 120.0 * i) for i in range(3)]
    elif shape == "star":
        polar = [(1.1 if i % 2 == 0 else 0.46, 36.0 * i) for i in range(10)]
    else:
        arm, reach = 0.3, 1.0
        corner, end = math.hypot(arm, arm), math.hypot(arm, reach)
        lean = math.degrees(math.atan2(arm, reach))
        polar = [
            point
            for i in range(4)
            for point in ((end, 90.0 * i - lean), (end, 90.0 * i + lean), (corner, 90.0 * i + 45))
        ]
    for reach, angle in polar:
        turn = math.radians(angle + tilt)
        yield reach * math.sin(turn), -reach * math.cos(turn)


def _background(rng: np.random.Generator, width: int, height: int, kind: str) -> Image.Image:
    """Pale to dark greys with a slight tint, so that every shape stands out by its colour."""
    base = rng.uniform(20, 240) + rng.uniform(-14, 14, 3)
    canvas = np.broadcast_to(base, (height, width, 3)).astype(np.float32)
    if kind == "gradient":
        other = rng.uniform(20, 240) + rng.uniform(-14, 14, 3)
        angle = rng.uniform(0, 2 * math.pi)
        ys, xs = np.mgrid[0:height, 0:width]
        ramp = math.cos(angle) * xs / width + math.sin(angle) * ys / height
        ramp = (ramp - ramp.min()) / max(float(np.ptp(ramp)), 1e-6)
        canvas = canvas + ramp[..., None].astype(np.float32) * (other - base).astype(np.float32)
    elif kind == "noise":
        canvas = canvas + rng.normal(0, rng.uniform(4, 22), (height, width, 1)).astype(np.float32)
    elif kind == "stripes":
        period = rng.uniform(6, 60)
        line = np.arange(width) if rng.random() < 0.5 else np.arange(height)[:, None]
        canvas = canvas + (np.sin(2 * math.pi * line / period) * rng.uniform(5, 30))[..., None].reshape(
            (1, width, 1) if line.ndim == 1 else (height, 1, 1)
        ).astype(np.float32)
    picture = Image.fromarray(np.clip(canvas, 0, 255).astype(np.uint8))
    if kind == "clouds":
        small = rng.normal(0, 26, (8, 8, 1)) + base
        tile = Image.fromarray(np.clip(small, 0, 255).astype(np.uint8))
        picture = tile.resize((width, height), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(2))
    return picture


def sample_answers() -> Iterator[str]:
    """One text for every word that an answer about pictures, sound or video can hold."""
    for seed in range(400):
        scene = random_scene(seed)
        yield scene.caption
        yield scene.json_answer
        yield ", then ".join(thing.name for thing in scene.things)
    for way in ("left", "right", "up", "down"):
        for colour in COLOURS:
            yield from (f"the {colour} {shape} moves {way}" for shape in SHAPES)
    for digit in range(10):
        yield from [f"{digit} {digit} {digit}"] * 20
    yield from ["yes no", "nothing"] * 5
