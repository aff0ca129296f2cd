"""Spoken digit strings for training and for making clips; nothing here runs when the checkpoint is only used.

Speech comes from the espeak-ng program (set `ESPEAK` to its path where it is not on the PATH); levels, noise, pauses
and detours over other sampling rates are added here. Samples are float32, mono, at 16 kHz.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import wave
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soxr

Samples = npt.NDArray[np.float32]

RATE = 16_000
DETOURS = (8_000, 11_025, 22_050, 24_000, 44_100, 48_000)

_ACCENTS = ("en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-029")
_VARIANTS = (
    *("", "m1", "m2", "m3", "m4", "m6", "m7", "f1", "f2", "f3", "f5"),
    *("Andy", "Annie", "Lee", "Michael", "Alicia", "linda", "steph", "david", "john", "quincy", "victor"),
)
_NEW_VARIANTS = ("m5", "f4", "Mike", "belinda")

VOICES: tuple[str, ...] = tuple(
    f"{accent}+{variant}" if variant else accent for accent in _ACCENTS for variant in _VARIANTS
)
NEW_VOICES: tuple[str, ...] = tuple(f"{accent}+{variant}" for accent in _ACCENTS for variant in _NEW_VARIANTS)
"""Voices that training never hears."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What is said and how: words a minute, pitch of 0 to 99, pause between words in units of 10 ms."""

    transcript: str
    voice: str
    speed: int
    pitch: int
    gap: int


def held_out(digits: str) -> bool:
    """Whether training never says this string: one in eight of those with three digits or more."""
    return len(digits) >= 3 and sum((place + 3) * int(digit) for place, digit in enumerate(digits)) % 8 == 0


def random_utterance(seed: int, *, test: bool = False, voices: tuple[str, ...] = VOICES) -> Utterance:
    """One to eight digits; `test` draws strings of three or more that training never says."""
    rng = np.random.default_rng([seed, 5])
    while True:
        length = int(rng.integers(3, 9)) if test else int(rng.integers(1, 9))
        digits = "".join(str(digit) for digit in rng.integers(0, 10, length))
        if rng.random() < 0.15:  # repeated digits are the hard ones
            digits = "".join(digit * int(rng.integers(1, 4)) for digit in digits)[:length]
        if held_out(digits) == test:
            break
    speed = int(rng.integers(110, 211))
    return Utterance(
        " ".join(digits), str(rng.choice(voices)), speed, int(rng.integers(25, 76)), int(rng.integers(0, 12))
    )


def isolated(seed: int) -> list[Samples]:
    """The ten digits said one by one in one way of speaking, each without the silence around it."""
    how = random_utterance(seed)
    ten = []
    for digit in range(10):
        samples = synthesise(replace(how, transcript=str(digit)))
        loud = np.flatnonzero(np.abs(samples) > 0.01)
        ten.append(samples[loud[0] : loud[-1] + 1])
    return ten


def synthesise(utterance: Utterance) -> Samples:
    """The utterance as spoken, peak 0.5; raises CalledProcessError when espeak-ng fails."""
    how = ["-v", utterance.voice, "-s", utterance.speed, "-p", utterance.pitch, "-g", utterance.gap, "--stdout"]
    command = [os.environ.get("ESPEAK", "espeak-ng"), *map(str, how), utterance.transcript]
    # espeak-ng cannot know the length in advance and writes an oversized header; wave reads what is there.
    spoken = subprocess.run(command, check=True, capture_output=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        rate = file.getframerate()
    heard = np.frombuffer(spoken[44:], np.int16) / np.float32(32768)
    samples = np.asarray(soxr.resample(heard, rate, RATE), np.float32)
    return np.asarray(samples * np.float32(0.5 / max(float(np.abs(samples).max()), 1e-6)), np.float32)


def detour(samples: Samples, rate: int) -> Samples:
    """The samples as they come back from another sampling rate."""
    away = soxr.resample(samples, RATE, rate)
    return np.asarray(soxr.resample(away, rate, RATE), np.float32)


def recorded(samples: Samples, rng: np.random.Generator) -> tuple[Samples, int]:
    """A recording of the samples: pauses around, some level, perhaps noise, perhaps another rate on the way.

    Returns it with the place at which the samples now begin.
    """
    before, after = (int(rng.exponential(0.35) * RATE) for _ in range(2))
    if rng.random() < 0.06:
        before = int(rng.uniform(0.0, 8.0) * RATE)
    result = np.concatenate([np.zeros(before, np.float32), samples, np.zeros(after, np.float32)])
    if rng.random() < 0.3:
        result = detour(result, int(rng.choice(DETOURS, p=[0.5, 0.1, 0.1, 0.1, 0.1, 0.1])))
    level = np.float32(0.5 * 10 ** (-rng.uniform(0, 26) / 20) * 1.9)
    if rng.random() < 0.7:
        snr = rng.uniform(12, 45)
        result = result + noise(rng, len(result)) * np.float32(0.1 * 10 ** (-snr / 20))
    return np.clip(result * level, -1.0, 1.0).astype(np.float32), before


def quiet(rng: np.random.Generator) -> Samples:
    """Half a second to ten seconds without speech: silence, noise of any level, a hum."""
    length = int(np.exp(rng.uniform(np.log(0.3), np.log(10.0))) * RATE)
    kind = rng.random()
    if kind < 0.35:
        return np.zeros(length, np.float32)
    level = np.float32(10 ** rng.uniform(-4.5, -0.7))
    if kind < 0.85:
        return np.clip(noise(rng, length) * level, -1, 1)
    times = np.arange(length, dtype=np.float32) / RATE
    hum = sum(np.sin(2 * np.pi * rng.uniform(50, 2000) * times + rng.uniform(0, 6)) for _ in range(2))
    return np.asarray(np.float32(level * 0.5) * hum, np.float32)


def noise(rng: np.random.Generator, length: int) -> Samples:
    """White to brownish noise of unit deviation."""
    white = rng.standard_normal(length).astype(np.float32)
    colour = float(rng.choice([0.0, 0.0, 0.5, 1.0]))
    if colour and length > 1:
        spectrum = np.fft.rfft(white)
        spectrum /= np.maximum(np.arange(len(spectrum)), 1) ** colour
        white = np.fft.irfft(spectrum, length).astype(np.float32)
    return white / np.float32(white.std() + 1e-9)


def write_clips(folder: Path, count: int = 38) -> None:
    """Writes short FLAC clips of strings that training never says, and `clips.jsonl` with what each one says.

    Every third clip is at 8 kHz and every seventh at 24 kHz, the others at 16 kHz; the last two hold silence and noise.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    rng = np.random.default_rng(9)
    for index in range(count):
        utterance = random_utterance(2_000_000_000 + index, test=True)
        digits = utterance.transcript.split()[: 3 + index % 4]
        utterance = replace(utterance, transcript=" ".join(digits), speed=max(utterance.speed, 150))
        samples, said = synthesise(utterance) * np.float32(0.5), utterance.transcript
        if index >= count - 2:
            samples, said = np.zeros(RATE, np.float32), ""
            if index == count - 1:
                samples = (noise(rng, RATE // 2) * 0.01).astype(np.float32)
        rate = 8_000 if index % 3 == 2 else 24_000 if index % 7 == 6 else RATE
        samples = np.asarray(soxr.resample(samples, RATE, rate), np.float32)
        # Twelve bits are enough, and FLAC then stores no more.
        twelve = np.round(samples * 2048).clip(-2048, 2047).astype(np.int16) * np.int16(16)
        soundfile.write(folder / f"{index:02d}.flac", twelve, rate, subtype="PCM_16")
        lines.append({"file": f"{index:02d}.flac", "transcript": said, "rate": rate, "seconds": len(twelve) / rate})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "clips.jsonl").write_text(text, encoding="utf-8")
