"""Recordings of any length, made of the bundled clips, with the digits that are said in them and when."""

from __future__ import annotations

import json
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

    Between them are pauses of 0.3 to 2 s, or none: then one voice breaks off where the next one begins.
    """
    rng = np.random.default_rng([seed, 11])
    parts: list[Samples] = []
    said: list[Said] = []
    at = 0
    while at < seconds * RATE:
        samples, digits = spoken()[rng.integers(len(spoken()))]
        said.append(Said(at / RATE, (at + len(samples)) / RATE, digits))
        pause = round(rng.uniform(0.3, 2.0) * RATE) if pauses else 0
        parts += [samples, np.zeros(pause, np.float32)]
        at += len(samples) + pause
    return np.concatenate(parts), tuple(said)
