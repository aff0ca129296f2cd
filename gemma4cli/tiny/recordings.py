"""Recordings of any length, made of the bundled clips, with the digits that are said in them and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import soundfile
import soxr

from gemma4cli.tiny import CLIPS
from gemma4cli.tiny.speech import RATE, Samples

_QUIET = 0.004  # of full scale; what is below it at the ends of a clip is no speech


@dataclass(frozen=True, slots=True)
class Said:
    """One clip in a recording: from when to when it sounds, and its digits with spaces between them."""

    start_s: float
    end_s: float
    digits: str


@cache
def spoken() -> tuple[tuple[Samples, str], ...]:
    """The bundled clips in which something is said, at 16 kHz, without the silence around them; and what that is."""
    found = []
    for line in (CLIPS / "clips.jsonl").read_text(encoding="utf-8").splitlines():
        clip = json.loads(line)
        if clip["transcript"]:
            stored, rate = soundfile.read(CLIPS / clip["file"], dtype="float32")
            samples = np.asarray(soxr.resample(stored, rate, RATE), np.float32)
            loud = np.flatnonzero(np.abs(samples) > _QUIET)
            found.append((samples[loud[0] : loud[-1] + 1], clip["transcript"]))
    return tuple(found)


def recording(seed: int, seconds: float, *, pauses: bool = True) -> tuple[Samples, tuple[Said, ...]]:
    """Clips in random order for at least so many seconds.

    Between them are pauses of 0.5 to 2.5 s, or none: then one voice breaks off where the next one begins.
    """
    rng = np.random.default_rng([seed, 11])
    parts: list[Samples] = []
    said: list[Said] = []
    at = 0
    while at < seconds * RATE:
        samples, digits = spoken()[rng.integers(len(spoken()))]
        said.append(Said(at / RATE, (at + len(samples)) / RATE, digits))
        pause = round(rng.uniform(0.5, 2.5) * RATE) if pauses else 0
        parts += [samples, np.zeros(pause, np.float32)]
        at += len(samples) + pause
    return np.concatenate(parts), tuple(said)


def aligned(said: Sequence[str], truth: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Which word of the one stands for which of the other, in order, at the fewest edits; None for no word."""
    costs = np.zeros((len(said) + 1, len(truth) + 1), np.int32)
    costs[:, 0] = np.arange(len(said) + 1)
    costs[0] = columns = np.arange(len(truth) + 1)
    for i, word in enumerate(said, 1):
        differs = np.array([word != other for other in truth], np.int32)
        costs[i, 1:] = np.minimum(costs[i - 1, :-1] + differs, costs[i - 1, 1:] + 1)
        # A word left out costs one more than the cell before it, so a row is a running minimum on a slope.
        costs[i] = np.minimum.accumulate(costs[i] - columns) + columns
    pairs: list[tuple[int | None, int | None]] = []
    i, j = len(said), len(truth)
    while i or j:
        if i and j and costs[i, j] == costs[i - 1, j - 1] + (said[i - 1] != truth[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif i and costs[i, j] == costs[i - 1, j] + 1:
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs[::-1]


def error_rate(said: Sequence[str], truth: Sequence[str]) -> float:
    """Wrong, lost and added words for each word that was said."""
    wrong = sum(i is None or j is None or said[i] != truth[j] for i, j in aligned(said, truth))
    return wrong / len(truth)


def faulty_seams(parts: Sequence[Sequence[str]], truth: Sequence[str], near: int = 3) -> int:
    """Of the seams between the parts of a transcript, how many have a word lost or added within `near` words."""
    ends = np.cumsum([len(part) for part in parts])[:-1]
    at, faults = 0, []
    for i, j in aligned([word for part in parts for word in part], truth):
        if i is None or j is None:
            faults.append(at if i is None else at + 0.5)
        at += i is not None
    return sum(any(abs(fault - end) <= near for fault in faults) for end in ends)
