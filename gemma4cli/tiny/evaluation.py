"""How often the tiny checkpoint is right, on media that its training never used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from gemma4cli.gemma import MAX_FRAMES, even_frames
from gemma4cli.records import Kind
from gemma4cli.tiny import films, prompts, questions, scenes, speech
from gemma4cli.tiny.lessons import TEST_SEED
from gemma4cli.tiny.reference import Medium, Reference

_BATCH = {70: 16, 140: 12, 280: 8, 560: 3, 1120: 1}
_FRAMES = (8, 16, MAX_FRAMES)


def figures(checkpoint: Path, count: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Shares of right answers and rates of wrong digits, with how many were asked (`n`).

    count: pictures for the main figures, at 70 and 280, and clips, and films of each number of frames, of which
    six in ten show shapes in turn. device: a GPU takes larger batches.
    """
    reference = Reference(checkpoint, device=device)
    return dict(_figures(reference, count))


def _figures(reference: Reference, count: int) -> Iterator[tuple[str, dict[str, float]]]:
    for budget, some in ((70, count), (280, count), (140, count // 4), (560, count // 10), (1120, count // 20)):
        right: dict[int, list[bool]] = {1: [], 2: [], 3: []}
        for seeds in _chunks(reference, some, _BATCH[budget]):
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
    for frames in _FRAMES:
        yield from _watched(reference, count, frames)


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
        for seeds in _chunks(reference, count // 2, _BATCH[70]):
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


def _watched(reference: Reference, count: int, frames: int) -> Iterator[tuple[str, dict[str, float]]]:
    right: dict[str, list[bool]] = {"order": [], "way": [], "time": []}
    for seeds in _chunks(reference, count, 4):
        shown = [films.random_film(seed) for seed in seeds]
        times = [[i * film.duration_s / 120 for i in even_frames(120, frames)] for film in shown]
        seen = [film.frames_at(each) for film, each in zip(shown, times, strict=True)]
        said = reference.answers(Kind.VIDEO, seen, [prompts.DESCRIBE_VIDEO[0]] * len(shown), times=times)
        for film, text in zip(shown, said, strict=True):
            right["way" if film.way else "order"].append(text == film.caption)
        several = [i for i, film in enumerate(shown) if len(film.things) > 1]
        if frames == _FRAMES[0] and several:
            asked = [questions.when(shown[i], times[i])[-len(prompts.WHEN)] for i in several]
            some, when = [seen[i] for i in several], [times[i] for i in several]
            stamps = reference.answers(Kind.VIDEO, some, [prompt for prompt, _ in asked], times=when)
            right["time"] += [stamp == wanted for stamp, (_, wanted) in zip(stamps, asked, strict=True)]
    yield f"video of {frames} frames, order of shapes", _share(right["order"])
    yield f"video of {frames} frames, way of a shape", _share(right["way"])
    if right["time"]:
        yield f"video of {frames} frames, time of a shape", _share(right["time"])


def _transcribed(reference: Reference, clips: list[speech.Samples]) -> list[str]:
    said: list[str] = []
    order = sorted(range(len(clips)), key=lambda i: len(clips[i]))
    for chunk in _chunks(reference, len(order), 16, 0):
        some = [clips[order[i]] for i in chunk]
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


def _chunks(reference: Reference, count: int, size: int, first: int = TEST_SEED) -> Iterator[range]:
    """`count` numbers from `first` on, by `size`, or four times as many at once on a GPU."""
    size *= 4 if reference.device.type == "cuda" else 1
    for start in range(0, count, size):
        yield range(first + start, first + min(start + size, count))


def _share(right: list[bool]) -> dict[str, float]:
    return {"right": round(float(np.mean(right)), 4) if right else 0.0, "n": len(right)}
