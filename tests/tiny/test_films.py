"""Films: the words follow the frames, in order."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.tiny import questions
from gemma4cli.tiny.films import Film, mirrored, random_film
from gemma4cli.tiny.scenes import COLOURS, Thing

seeds = st.integers(0, 2**32)
few = settings(max_examples=25, deadline=None)

RED, BLUE = Thing("circle", "red", 40, 30, 15), Thing("square", "blue", 80, 40, 15)
FILM = Film(120, 80, 4.0, (RED, BLUE), (0.0, 2.5), "plain", 1)


def shown(frame: np.ndarray, thing: Thing) -> bool:
    pixel = frame[round(thing.y), round(thing.x)].astype(int)
    return bool(np.abs(pixel - COLOURS[thing.colour]).max() < 40)


def test_one_shape_after_another() -> None:
    assert FILM.caption == "red circle, then blue square"
    frames = FILM.frames(2.0)
    assert frames.shape == (8, 80, 120, 3)
    assert [shown(frame, RED) for frame in frames] == [True] * 5 + [False] * 3
    assert [shown(frame, BLUE) for frame in frames] == [False] * 5 + [True] * 3


@given(seeds)
@few
def test_the_same_seed_gives_the_same_frames(seed: int) -> None:
    first, second = (random_film(seed).frames_at([0.0, 0.5]) for _ in range(2))
    assert np.array_equal(first, second)


@given(seeds)
@few
def test_every_thing_is_seen_for_an_eighth_of_the_film(seed: int) -> None:
    film = random_film(seed)
    ends = [*film.starts[1:], film.duration_s]
    assert all(end - start >= film.duration_s / 8 for start, end in zip(film.starts, ends, strict=True))


@given(seeds)
@few
def test_a_shape_that_travels_arrives_where_its_words_say(seed: int) -> None:
    film = random_film(seed, count=0)
    (thing,) = film.things
    across, down = film.end[0] - thing.x, film.end[1] - thing.y
    way = ("right" if across > 0 else "left") if abs(across) > abs(down) else ("down" if down > 0 else "up")
    assert film.caption == f"the {thing.name} moves {way}"
    last = film.scene_at(film.duration_s).things[0]
    assert (last.x, last.y) == pytest.approx(film.end)
    for x, y in ((thing.x, thing.y), film.end):
        assert 0 < x < film.width
        assert 0 < y < film.height


@given(seeds)
@few
def test_a_mirrored_film_moves_the_other_way(seed: int) -> None:
    film = random_film(seed, count=0)
    words = {"left": "right", "right": "left", "up": "up", "down": "down"}
    assert mirrored(film).caption == film.caption.replace(f"moves {film.way}", f"moves {words[film.way]}")
    assert mirrored(mirrored(film)).caption == film.caption


def test_the_time_asked_for_is_that_of_the_first_frame_that_shows_it() -> None:
    asked = dict(questions.when(FILM, [0.0, 1.0, 2.0, 3.0]))
    assert asked["When does the red circle appear?"] == "00:00"
    assert asked["When does the blue square appear?"] == "00:03"
    late = replace(FILM, duration_s=100.0, starts=(0.0, 70.0))
    assert dict(questions.when(late, [0.0, 50.0, 75.0]))["When does the blue square appear?"] == "01:15"


@given(seeds)
@few
def test_things_that_are_alike_share_two_shapes_and_three_colours(seed: int) -> None:
    film = random_film(seed, count=4, alike=True)
    assert len({thing.name for thing in film.things}) == 4
    assert len({thing.shape for thing in film.things}) == 2
    assert len({thing.colour for thing in film.things}) <= 3
