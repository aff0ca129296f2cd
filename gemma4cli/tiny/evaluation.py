"""How often the tiny checkpoint is right, on media that its training never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gemma4cli.gemma import even_frames
from gemma4cli.records import Kind
from gemma4cli.tiny import films, prompts, questions, scenes, speech
from gemma4cli.tiny.lessons import TEST_SEED
from gemma4cli.tiny.reference import Medium, Reference

_BATCH = {70: 16, 140: 12, 280: 8, 560: 3, 1120: 1}
_FRAMES = 8


def figures(checkpoint: Path, count: int) -> dict[str, dict[str, float]]:
    """Shares of right answers and rates of wrong digits, with how many were asked (`n`).

    count: pictures for the main figures, at 70 and 280; clips and films follow it.
    """
    reference = Reference(checkpoint)
    return dict(_figures(reference, count))


def _figures(reference: Reference, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    for budget, some in ((70, count), (280, count), (140, count // 4), (560, count // 10), (1120, count // 20)):
        right: dict[int, list[bool]] = {1: [], 2: [], 3: []}
        for seeds in _chunks(some, _BATCH[budget]):
            shown = [scenes.random_scene(seed) for seed in seeds]
            said = reference.answers(Kind.IMAGE, _drawn(shown), [prompts.DESCRIBE_IMAGE[0]] * len(shown), budget)
            for scene, text in zip(shown, said, strict=True):
                right[len(scene.things)].append(text == scene.caption)
        yield f"caption at {budget}", _share([*right[1], *right[2], *right[3]])
        if some == count:
            for things, answers in right.items():
                yield f"caption at {budget}, {things} shapes", _share(answers)
    yield from _asked(reference, count)
    yield from _heard(reference, count)
    yield from _watched(reference, count // 2)


def _asked(reference: Reference, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    rng = np.random.default_rng(TEST_SEED)
    kinds: dict[str, Callable[[scenes.Scene], list[questions.Asked]]] = {
        "json": questions.as_json,
        "what colour": questions.colour_of,
        "what shape": questions.shape_of,
        "how many": questions.how_many,
        "is there": lambda scene: questions.is_there(scene, rng),
    }
    for name, ask in kinds.items():
        right = []
        for seeds in _chunks(count // 2, _BATCH[70]):
            shown = [scene for seed in seeds if ask(scene := scenes.random_scene(seed + 500_000))]
            asked = [ask(scene)[0] for scene in shown]
            said = reference.answers(Kind.IMAGE, _drawn(shown), [prompt for prompt, _ in asked], 70)
            right += [text == answer for text, (_, answer) in zip(said, asked, strict=True)]
        yield name, _share(right)


def _heard(reference: Reference, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    told = [speech.random_utterance(TEST_SEED + i, test=True) for i in range(count)]
    new = [speech.random_utterance(TEST_SEED + i, test=True, voices=speech.NEW_VOICES) for i in range(count)]
    plain = [speech.synthesise(utterance) for utterance in told]
    ways: dict[str, list[speech.Samples]] = {"at 16000 Hz": plain}
    for rate in (8_000, 44_100, 48_000):
        ways[f"by way of {rate} Hz"] = [speech.detour(samples, rate) for samples in plain]
    rng = np.random.default_rng(TEST_SEED)
    ways["recorded with noise and pauses"] = [speech.recorded(samples, rng)[0] for samples in plain]
    for name, clips in ways.items():
        yield f"digits {name}", _digits(reference, clips, [utterance.transcript for utterance in told])
    unheard = [speech.synthesise(utterance) for utterance in new]
    yield "digits, new voices", _digits(reference, unheard, [utterance.transcript for utterance in new])
    nothing = [speech.quiet(rng) for _ in range(count // 2)]
    yield "nothing said, empty answer", _share([not text for text in _transcribed(reference, nothing)])


def _watched(reference: Reference, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    right: dict[str, list[bool]] = {"order": [], "way": [], "time": []}
    for seeds in _chunks(count, 4):
        shown = [films.random_film(seed) for seed in seeds]
        times = [[i * film.duration_s / 120 for i in even_frames(120, _FRAMES)] for film in shown]
        frames = [film.frames_at(each) for film, each in zip(shown, times, strict=True)]
        said = reference.answers(Kind.VIDEO, frames, [prompts.DESCRIBE_VIDEO[0]] * len(shown), times=times)
        asked = [questions.when(film, each)[-len(prompts.WHEN)] for film, each in zip(shown, times, strict=True)]
        when = reference.answers(Kind.VIDEO, frames, [prompt for prompt, _ in asked], times=times)
        for film, text, stamp, (_, wanted) in zip(shown, said, when, asked, strict=True):
            right["way" if film.way else "order"].append(text == film.caption)
            if len(film.things) > 1:
                right["time"].append(stamp == wanted)
    yield "video, order of shapes", _share(right["order"])
    yield "video, way of a shape", _share(right["way"])
    yield "video, time of a shape", _share(right["time"])


def _transcribed(reference: Reference, clips: list[speech.Samples]) -> list[str]:
    said: list[str] = []
    order = sorted(range(len(clips)), key=lambda i: len(clips[i]))
    for start in range(0, len(order), 16):
        some = [clips[i] for i in order[start : start + 16]]
        said += reference.answers(Kind.AUDIO, some, [prompts.TRANSCRIBE[0]] * len(some))
    back = dict(zip(order, said, strict=True))
    return [back[i] for i in range(len(clips))]


def _digits(reference: Reference, clips: list[speech.Samples], wanted: list[str]) -> dict[str, float]:
    """Wrong, missing and extra digits for each digit that was said; and clips that are wholly right."""
    said = _transcribed(reference, clips)
    wrong = sum(edits(text.split(), truth.split()) for text, truth in zip(said, wanted, strict=True))
    exact = np.mean([text == truth for text, truth in zip(said, wanted, strict=True)])
    total = sum(len(truth.split()) for truth in wanted)
    return {"error rate": round(wrong / total, 4), "exact": round(float(exact), 4), "n": len(clips)}


def edits(said: list[str], truth: list[str]) -> int:
    """The fewest words to change, add or drop."""
    row = list(range(len(truth) + 1))
    for i, word in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(truth, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != other))
    return row[-1]


def _drawn(shown: list[scenes.Scene]) -> list[Medium]:
    return [np.asarray(scenes.draw(scene)) for scene in shown]


def _chunks(count: int, size: int) -> Iterator[range]:
    for start in range(0, count, size):
        yield range(TEST_SEED + start, TEST_SEED + min(start + size, count))


def _share(right: list[bool]) -> dict[str, float]:
    return {"right": round(float(np.mean(right)), 4) if right else 0.0, "n": len(right)}
