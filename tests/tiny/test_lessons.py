"""The stages of training show what they are for, and nothing twice."""

from pathlib import Path

import numpy as np
import pytest

from gemma4cli.tiny import batches, lessons, speech
from gemma4cli.tiny.mixtures import EVERYTHING, LONG_FILMS, Mixture


def first_step(path: Path, mixture: Mixture, kind: str, *, test: bool = False) -> batches.Batch:
    """One row or two of the first batch, over made-up sound: one string and one way of speaking."""
    pieces = [speech.noise(np.random.default_rng(i), 4_000) * 0.1 for i in range(11)]
    path.write_bytes((np.concatenate(pieces) * 32767).astype(np.int16).tobytes())
    pool = batches.Pool(str(path), np.arange(1, 12) * 4_000, ["3 5 0"])
    return batches.Steps(pool, 100, share=0.04, mixture=mixture, test=test).batch(kind, 0)


@pytest.mark.parametrize("mixture", [EVERYTHING, LONG_FILMS])
def test_the_chances_of_a_stage_are_whole(mixture: Mixture) -> None:
    for shapes in (mixture.pictures, mixture.films, mixture.clips):
        assert sum(shape.chance for shape in shapes) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["image", "video"])
def test_the_second_stage_shows_other_media_than_the_first(tmp_path: Path, kind: str) -> None:
    one, other = (first_step(tmp_path / "sound", mixture, kind) for mixture in (EVERYTHING, LONG_FILMS))
    assert one["pixels"].shape != other["pixels"].shape or not one["pixels"].equal(other["pixels"])


def test_the_first_batch_from_nothing_is_of_the_easiest_films(tmp_path: Path) -> None:
    assert first_step(tmp_path / "sound", EVERYTHING, "video")["shape"][0] == EVERYTHING.films[0].measure
    assert first_step(tmp_path / "sound", LONG_FILMS, "video")["shape"][0] > EVERYTHING.films[0].measure


def test_films_in_turn_show_several_shapes_and_are_asked_what_happens() -> None:
    taught = [lessons.film_lesson(seed, 8, (96, 96), in_turn=True) for seed in range(120)]
    shown = [film for _, film, _, _ in taught]
    assert sum(not film.way for film in shown) > 90
    assert sum(len(film.things) >= 3 for film in shown) > 60
    assert sum(turn.answer == film.caption for _, film, _, turn in taught) > 100
    assert {len(film.things) for film in shown} == {1, 2, 3, 4}
