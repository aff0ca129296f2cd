"""The checkpoint in transformers sees, hears and watches: what it says of media it never met is right."""

import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import soxr

from gemma4cli.records import Kind
from gemma4cli.tiny import CLIPS, films, lessons, prompts, scenes, speech
from gemma4cli.tiny.evaluation import edits
from gemma4cli.tiny.reference import Reference

SEED = lessons.TEST_SEED + 7_000


@pytest.fixture(scope="module")
def reference() -> Reference:
    return Reference()


@pytest.mark.parametrize("budget", [70, 280])
def test_it_describes_scenes(reference: Reference, budget: int) -> None:
    shown = [scenes.random_scene(SEED + i, count=2) for i in range(4)]
    pixels = [np.asarray(scenes.draw(scene)) for scene in shown]
    said = reference.answers(Kind.IMAGE, pixels, [prompts.DESCRIBE_IMAGE[0]] * len(shown), budget)
    assert sum(text == scene.caption for text, scene in zip(said, shown, strict=True)) >= len(shown) - 1


@pytest.mark.parametrize("seed", [SEED, SEED + 1])
def test_a_turned_or_mirrored_scene_gets_its_own_description(reference: Reference, seed: int) -> None:
    scene = scenes.random_scene(seed, count=2, size=(320, 240))
    ways = [scene, scenes.turned(scene), scenes.turned(scenes.turned(scene)), scenes.mirrored(scene)]
    ways = [replace(way, things=tuple(replace(thing, tilt=0.0) for thing in way.things)) for way in ways]
    pixels = [np.asarray(scenes.draw(way)) for way in ways]
    said = reference.answers(Kind.IMAGE, pixels, [prompts.DESCRIBE_IMAGE[0]] * len(ways), 70)
    assert said == [way.caption for way in ways]


def test_it_answers_questions_and_json(reference: Reference) -> None:
    pixels, asked, wanted = [], [], []
    for scene in [scenes.random_scene(SEED + i, count=2, size=(300, 300)) for i in range(4)]:
        first, second = scene.things
        turns = {
            f"What colour is the {first.shape}?": first.colour,
            "How many shapes are there?": "2",
            prompts.JSON_ANSWER[0]: scene.json_answer,
            f"Is there a {second.colour} {second.shape}?": "yes",
        }
        asked += turns
        wanted += turns.values()
        pixels += [np.asarray(scenes.draw(scene))] * len(turns)
    said = reference.answers(Kind.IMAGE, pixels, asked, 70)
    assert sum(text == answer for text, answer in zip(said, wanted, strict=True)) >= len(asked) - 1


def test_it_transcribes_the_clips_and_says_nothing_of_silence(reference: Reference) -> None:
    lines = [json.loads(line) for line in (CLIPS / "clips.jsonl").read_text().splitlines()]
    lines = lines[:10] + lines[-2:]
    clips = []
    for line in lines:
        samples, rate = soundfile.read(CLIPS / line["file"], dtype="float32")
        clips.append(soxr.resample(samples, rate, speech.RATE).astype(np.float32))
    said = reference.answers(Kind.AUDIO, clips, [prompts.TRANSCRIBE[0]] * len(clips))
    truth = [line["transcript"] for line in lines]
    wrong = sum(edits(text.split(), wanted.split()) for text, wanted in zip(said, truth, strict=True))
    assert wrong <= 0.02 * sum(len(wanted.split()) for wanted in truth)
    assert [text for text, wanted in zip(said, truth, strict=True) if not wanted] == ["", ""]


def test_a_lost_second_changes_the_transcript(reference: Reference) -> None:
    samples, rate = soundfile.read(CLIPS / "03.flac", dtype="float32")
    whole = soxr.resample(samples, rate, speech.RATE).astype(np.float32)
    full, cut = reference.answers(Kind.AUDIO, [whole, whole[speech.RATE :]], [prompts.TRANSCRIBE[0]] * 2)
    assert full != cut
    assert full.endswith(cut.split()[-1])


def test_it_says_what_happens_in_order(reference: Reference) -> None:
    shown = [films.random_film(SEED + i, count=2 + i % 2, duration_s=6.0) for i in range(4)]
    times = [[float(second) for second in range(6)]] * 8
    forwards = [film.frames_at(times[0]) for film in shown]
    frames = forwards + [pixels[::-1].copy() for pixels in forwards]
    back = [", then ".join(reversed(film.caption.split(", then "))) for film in shown]
    wanted = [film.caption for film in shown] + back
    said = reference.answers(Kind.VIDEO, frames, [prompts.DESCRIBE_VIDEO[0]] * len(frames), times=times)
    assert sum(text == words for text, words in zip(said, wanted, strict=True)) >= len(frames) - 2
    assert not set(said[:4]) & set(back)  # it may miss a shape, but does not take the end for the beginning
    assert not set(said[4:]) & set(wanted[:4])


def test_it_says_which_way_a_shape_moves(reference: Reference) -> None:
    shown = [films.random_film(SEED + 50 + i, count=0, duration_s=4.0) for i in range(2)]
    shown += [films.mirrored(film) for film in shown]
    times = [[0.0, 1.0, 2.0, 3.0]] * len(shown)
    said = reference.answers(
        Kind.VIDEO, [f.frames_at(times[0]) for f in shown], [prompts.DESCRIBE_VIDEO[0]] * len(shown), times=times
    )
    assert sum(text == film.caption for text, film in zip(said, shown, strict=True)) >= len(shown) - 1
