"""What the stages of training show: shapes of batch, and how often each comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """One shape of batch: how often it comes and how many rows it has.

    measure: budget of a picture, frames of a film, seconds of a clip.
    aspects: how many ratios of width to height, spread evenly from 0.55 to 1.8.
    """

    measure: int
    chance: float
    rows: int
    aspects: int = 0


@dataclass(frozen=True, slots=True)
class Mixture:
    """The batches of one stage.

    first: number of its first step; stages of unlike numbers show unlike media.
    from_nothing: easy media come first, for a model that knows nothing yet.
    in_turn: nearly all films show shapes in turn, most of them three or four, and nearly all questions ask for the
    order; else films travel and tell the time as often.
    """

    pictures: tuple[Shape, ...]
    films: tuple[Shape, ...]
    clips: tuple[Shape, ...]
    first: int = 0
    from_nothing: bool = True
    in_turn: bool = False


EVERYTHING = Mixture(
    pictures=(
        Shape(70, 0.34, 48, 7),
        Shape(140, 0.14, 24, 5),
        Shape(280, 0.36, 16, 7),
        Shape(560, 0.09, 6, 3),
        Shape(1120, 0.07, 3, 3),
    ),
    films=(
        Shape(4, 0.10, 12, 5),
        Shape(8, 0.40, 8, 5),
        Shape(12, 0.20, 6, 5),
        Shape(16, 0.15, 4, 3),
        Shape(32, 0.15, 2, 3),
    ),
    clips=(Shape(3, 0.35, 48), Shape(5, 0.35, 32), Shape(9, 0.20, 16), Shape(16, 0.10, 8)),
)
"""The first stage."""

LONG_FILMS = Mixture(
    # Pictures and clips are there to keep what is known, so fewer will do.
    pictures=(
        Shape(70, 0.40, 24, 5),
        Shape(140, 0.14, 12, 3),
        Shape(280, 0.36, 8, 5),
        Shape(560, 0.06, 4, 3),
        Shape(1120, 0.04, 2, 3),
    ),
    films=(Shape(8, 0.15, 16, 5), Shape(16, 0.20, 12, 5), Shape(24, 0.15, 8, 5), Shape(32, 0.50, 8, 7)),
    clips=(Shape(3, 0.30, 24), Shape(5, 0.35, 16), Shape(9, 0.25, 12), Shape(16, 0.10, 8)),
    first=1_000_000,
    from_nothing=False,
    in_turn=True,
)
"""The second stage, for films of as many frames as are shown by default."""
