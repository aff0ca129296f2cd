"""Scenes: the sentence is true of the picture, and every way to turn or mirror the picture changes it."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from gemma4cli.tiny import scenes
from gemma4cli.tiny.scenes import COLOURS, SHAPES, Scene, Thing, draw, mirrored, random_scene, turned

seeds = st.integers(0, 2**32)
few = settings(max_examples=40, deadline=None)


def nearest_colour(picture: Image.Image, x: float, y: float) -> str:
    pixel = np.array(picture.getpixel((round(x), round(y))))
    return min(COLOURS, key=lambda name: float(np.abs(pixel - COLOURS[name]).sum()))


@given(seeds)
@few
def test_the_same_seed_gives_the_same_picture(seed: int) -> None:
    assert random_scene(seed) == random_scene(seed)
    assert draw(random_scene(seed)).tobytes() == draw(random_scene(seed)).tobytes()


@given(seeds)
@few
def test_each_shape_is_painted_in_its_colour_at_its_place(seed: int) -> None:
    scene = random_scene(seed)
    picture = draw(scene)
    assert picture.size == (scene.width, scene.height)
    assert [nearest_colour(picture, thing.x, thing.y) for thing in scene.things] == [t.colour for t in scene.things]


@given(seeds)
@few
def test_shapes_stay_within_the_picture_and_apart(seed: int) -> None:
    scene = random_scene(seed)
    for i, one in enumerate(scene.things):
        assert one.radius < one.x < scene.width - one.radius
        assert one.radius < one.y < scene.height - one.radius
        for other in scene.things[:i]:
            assert np.hypot(one.x - other.x, one.y - other.y) > one.radius + other.radius


@given(seeds)
@few
def test_things_are_named_in_the_order_of_shapes_then_colours(seed: int) -> None:
    scene = random_scene(seed)
    ranks = [(SHAPES.index(t.shape), list(COLOURS).index(t.colour)) for t in scene.things]
    assert ranks == sorted(set(ranks))
    assert all(thing.name in scene.caption for thing in scene.things)


def test_the_sentences_of_the_grammar() -> None:
    circle, square = Thing("circle", "red", 40, 50, 9), Thing("square", "orange", 150, 55, 9)
    star = Thing("star", "blue", 45, 120, 9)

    def caption(*things: Thing) -> str:
        return Scene(200, 150, things, "plain", 0).caption

    assert caption(circle) == "a red circle in the top left"
    assert caption(square) == "an orange square in the top right"
    assert caption(circle, square) == "a red circle left of an orange square"
    assert caption(circle, square, star) == "a red circle left of an orange square and above a blue star"


def test_the_json_answer_is_about_the_first_shape() -> None:
    scene = Scene(200, 150, (Thing("circle", "red", 40, 50, 9), Thing("star", "blue", 45, 120, 9)), "plain", 0)
    assert json.loads(scene.json_answer) == {"shape": "circle", "colour": "red", "relation": "above"}


def swapped(text: str) -> str:
    return text.replace("left", "?").replace("right", "left").replace("?", "right")


@given(seeds)
@few
def test_a_mirrored_scene_has_the_mirrored_sentence(seed: int) -> None:
    scene = random_scene(seed)
    assert mirrored(scene).caption == swapped(scene.caption)
    assert mirrored(mirrored(scene)).caption == scene.caption


@given(seeds)
@few
def test_drawing_the_mirrored_scene_mirrors_the_shapes(seed: int) -> None:
    scene = random_scene(seed)
    flipped = ImageOps.mirror(draw(scene))
    for thing in mirrored(scene).things:
        assert nearest_colour(flipped, thing.x - 1, thing.y) == thing.colour


@given(seeds)
@few
def test_one_and_two_shapes_are_told_from_their_quarter_turns(seed: int) -> None:
    scene = random_scene(seed)
    captions = [scene.caption]
    for _ in range(3):
        scene = turned(scene)
        captions.append(scene.caption)
    assert len(set(captions)) == 4
    assert turned(scene).caption == captions[0]


@given(seeds)
@few
def test_three_shapes_have_eight_sentences_for_eight_orientations(seed: int) -> None:
    scene = random_scene(seed, count=3)
    captions = set()
    for _ in range(4):
        scene = turned(scene)
        captions |= {scene.caption, mirrored(scene).caption}
    assert len(captions) == 8


@pytest.mark.parametrize("count", [1, 2, 3])
def test_count_and_size_can_be_chosen(count: int) -> None:
    scene = random_scene(5, count=count, size=(320, 180))
    assert (scene.width, scene.height, len(scene.things)) == (320, 180, count)


def test_cells_say_where_each_thing_lies() -> None:
    scene = Scene(80, 40, (Thing("square", "green", 70, 30, 6),), "plain", 0)
    cells = scenes.things_by_cell(scene, 2, 4)
    square_green = 1 + 6 * SHAPES.index("square") + list(COLOURS).index("green")
    assert cells.tolist() == [[0, 0, 0, 0], [0, 0, 0, square_green]]


@pytest.mark.parametrize("background", scenes.BACKGROUNDS)
def test_backgrounds_are_pale_beside_any_shape(background: str) -> None:
    saturation: Callable[[np.ndarray], np.ndarray] = lambda rgb: np.ptp(rgb.astype(int), axis=-1)  # noqa: E731
    ground = np.asarray(scenes.ground(Scene(90, 60, (), background, 3)))
    assert saturation(ground).max() < min(saturation(np.array(list(COLOURS.values()))))
