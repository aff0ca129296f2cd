"""Questions have one right answer, and are asked only where they do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gemma4cli.tiny import questions
from gemma4cli.tiny.scenes import Scene, Thing, random_scene

SCENE = Scene(
    200,
    150,
    (Thing("circle", "red", 40, 50, 9), Thing("circle", "blue", 150, 50, 9), Thing("star", "blue", 40, 120, 9)),
    "plain",
    0,
)


def test_colour_is_asked_of_shapes_that_are_there_once() -> None:
    assert dict(questions.colour_of(SCENE))["What colour is the star?"] == "blue"
    assert not [prompt for prompt, _ in questions.colour_of(SCENE) if "circle" in prompt]


def test_shape_is_asked_of_colours_that_are_there_once() -> None:
    assert dict(questions.shape_of(SCENE))["What shape is red?"] == "circle"
    assert not [prompt for prompt, _ in questions.shape_of(SCENE) if "blue" in prompt]


def test_counting() -> None:
    assert dict(questions.how_many(SCENE))["How many shapes are there?"] == "3"


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_yes_and_no_are_true(seed: int) -> None:
    scene = random_scene(seed)
    for prompt, answer in questions.is_there(scene, np.random.default_rng(seed)):
        there = any(
            thing.name in prompt or (thing.shape in prompt and thing.colour not in prompt and _plain(prompt))
            for thing in scene.things
        )
        assert answer == ("yes" if there else "no")


def _plain(prompt: str) -> bool:
    """Whether the prompt names a shape without a colour."""
    return not any(colour in prompt for colour in ("red", "orange", "yellow", "green", "blue", "purple"))
