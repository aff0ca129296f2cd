"""Batches for training: bytes of media with token ids, made on the CPU and of few enough shapes to record once each.

A batch holds one kind of medium. All its pictures have one size, all its films one size and number of frames, and all
its clips are padded to one length, so that nothing on the device depends on what is in them.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gemma4cli.gemma import VIDEO_BUDGET, audio_tokens, image_size, timestamp
from gemma4cli.tiny import blueprint, films, lessons, scenes, speech
from gemma4cli.tiny.lessons import TEST_SEED, Turn
from gemma4cli.tiny.mixtures import EVERYTHING, Mixture, Shape

Batch = dict[str, Any]
Marks = list[tuple[int, int, int]]
"""Digits that are said, each with the samples at which it begins and ends."""


_STEP = 640  # samples from one soft token of a clip to the next

# Tokens of a row beside its medium, and of its answer, at most.
_WORDS = {"image": 88, "audio": 128, "video": 72}
_ANSWER = {"image": 40, "audio": 36, "video": 28}


@dataclass(frozen=True, slots=True)
class Pool:
    """Spoken digits in one file of int16 samples; piece `i` ends at `ends[i]`.

    The first pieces are whole strings, those of `transcripts`. After them come ten single digits for every way of
    speaking.
    """

    path: str
    ends: npt.NDArray[np.int64]
    transcripts: list[str]

    @property
    def ways(self) -> int:
        return (len(self.ends) - len(self.transcripts)) // 10

    def string(self, index: int) -> speech.Samples:
        return self._piece(index)

    def digit(self, way: int, digit: int) -> speech.Samples:
        return self._piece(len(self.transcripts) + 10 * way + digit)

    def _piece(self, index: int) -> speech.Samples:
        start = int(self.ends[index - 1]) if index else 0
        samples = np.memmap(self.path, np.int16, "r", start * 2, (int(self.ends[index]) - start,))
        return np.asarray(samples / np.float32(32768), np.float32)


def _say(task: tuple[int, bool]) -> tuple[str, list[npt.NDArray[np.int16]]]:
    seed, test = task
    utterance = speech.random_utterance(seed, test=test)
    return utterance.transcript, [_int16(speech.synthesise(utterance))]


def _spell(task: tuple[int, bool]) -> tuple[str, list[npt.NDArray[np.int16]]]:
    return "", [_int16(samples) for samples in speech.isolated(task[0])]


def _int16(samples: speech.Samples) -> npt.NDArray[np.int16]:
    return (samples * 32767).astype(np.int16)


def build_pool(path: Path, strings: int, ways: int, *, test: bool = False) -> Pool:
    """Speaks with all processors and keeps the sound in the file `path`."""
    ends: list[int] = [0]
    transcripts = []
    first = TEST_SEED if test else 0
    # Forked: the children need nothing but espeak-ng, and a fresh interpreter each would first import torch.
    with path.open("wb") as file, multiprocessing.get_context("fork").Pool(os.cpu_count()) as processes:
        for work, count in ((_say, strings), (_spell, ways)):
            for transcript, pieces in processes.imap(work, ((first + i, test) for i in range(count)), 16):
                for samples in pieces:
                    file.write(samples.tobytes())
                    ends.append(ends[-1] + len(samples))
                if transcript:
                    transcripts.append(transcript)
    return Pool(str(path), np.array(ends[1:], np.int64), transcripts)


class Steps:
    """What step number `index` of the training shows: a batch of pictures, one of clips, one of films.

    share: of the rows that each batch should have, for small machines.
    mixture: shapes to draw from.
    asked: turns about each picture, which cost little beside looking at it.
    test: media that training never shows, pictures at 70 and 280 in turn.
    """

    def __init__(
        self,
        pool: Pool,
        steps: int,
        share: float = 1.0,
        *,
        mixture: Mixture = EVERYTHING,
        asked: int = 1,
        test: bool = False,
    ) -> None:
        self._pool, self._share, self._test, self._steps = pool, share, test, steps
        self._mixture, self._asked = mixture, asked
        self._digits = np.array([len(text.split()) for text in pool.transcripts])
        self._tokenizer = blueprint.tokenizer()

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, index: int) -> dict[str, Batch]:
        return {kind: self.batch(kind, index) for kind in ("image", "audio", "video")}

    def batch(self, kind: str, index: int) -> Batch:
        """The part of a step that holds one kind of medium."""
        rng = np.random.default_rng([self._number(index), int(self._test), 8, ord(kind[0])])
        made = {"image": self._images, "audio": self._audio, "video": self._video}[kind]
        return made(index, rng)

    def _number(self, index: int) -> int:
        """The step's number among those of all stages; tests are the same in all."""
        return index if self._test else self._mixture.first + index

    def _progress(self, index: int) -> float:
        return index / self._steps if self._mixture.from_nothing and not self._test else 1.0

    def _seeds(self, index: int, shape: Shape) -> range:
        first = (TEST_SEED if self._test else 0) + self._number(index) * 128
        return range(first, first + max(1, round(shape.rows * self._share)))

    def _images(self, index: int, rng: np.random.Generator) -> Batch:
        # One shape in few tokens first: attention has to find out that there is something to look at.
        progress = self._progress(index)
        shape = self._mixture.pictures[0] if progress < 0.04 else _drawn(self._mixture.pictures, rng)
        if self._test:
            shape = self._mixture.pictures[(0, 2)[index % 2]]
        most = 1 + sum(progress >= bound for bound in (0.02, 0.06))
        size, grid = _size(rng, shape, shape.measure, scenes.random_size)
        taught = [lessons.scene_lesson(seed, size, most, self._asked) for seed in self._seeds(index, shape)]
        medium = f"<|image>{'<|image|>' * _tokens(grid)}<image|>"
        pixels = torch.from_numpy(np.stack([pixels for pixels, _, _ in taught]))
        rows = self._rows("image", [(turn, medium) for _, _, turns in taught for turn in turns], _tokens(grid), 2)
        hints = _cells([scene for _, scene, _ in taught], grid)
        return {"shape": (shape.measure, *grid), "grid": grid, "pixels": pixels, "hints": hints} | rows

    def _video(self, index: int, rng: np.random.Generator) -> Batch:
        choices, in_turn = self._mixture.films, self._mixture.in_turn
        shape = choices[0] if self._progress(index) < 0.03 else _drawn(choices, rng)
        if self._test:
            shape = choices[index % len(choices)]
        size, grid = _size(rng, shape, VIDEO_BUDGET, films.random_size)
        taught = [lessons.film_lesson(seed, shape.measure, size, in_turn) for seed in self._seeds(index, shape)]
        frame = f"<|image>{'<|image|>' * _tokens(grid)}<image|>"
        turns = [(turn, " ".join(f"{timestamp(s)} {frame}" for s in times)) for _, _, times, turn in taught]
        pixels = torch.from_numpy(np.concatenate([pixels for pixels, _, _, _ in taught]))
        rows = self._rows("video", turns, shape.measure * _tokens(grid), shape.measure * 9)
        hints = _cells([film.scene_at(s) for _, film, times, _ in taught for s in times], grid)
        return {"shape": (shape.measure, *grid), "grid": grid, "pixels": pixels, "hints": hints} | rows

    def _audio(self, index: int, rng: np.random.Generator) -> Batch:
        # Short strings first: they teach what to listen for, and longer ones then to follow it.
        progress = self._progress(index)
        shape = self._mixture.clips[0] if progress < 0.05 else _drawn(self._mixture.clips, rng)
        most = 1 if progress < 0.02 else int(min(8, 2 + 6 * (progress - 0.02) / 0.2))
        length = shape.measure * speech.RATE
        clips = torch.zeros((len(self._seeds(index, shape)), length), dtype=torch.int16)
        hints = torch.full((len(clips), audio_tokens(length)), -100)
        lengths, turns = [], []
        for clip, hint in zip(clips, hints, strict=True):
            samples, transcript, marks = self._clip(most, rng, length)
            clip[: len(samples)] = torch.from_numpy(_int16(samples))
            lengths.append(len(samples))
            if marks is not None:
                _mark(hint, marks, len(samples))
            medium = f"<|audio>{'<|audio|>' * audio_tokens(len(samples))}<audio|>"
            turns.append((lessons.speech_turn(transcript, rng), medium))
        rows = self._rows("audio", turns, audio_tokens(length), 2)
        shown = {"samples": clips, "lengths": torch.tensor(lengths), "hints": hints}
        return {"shape": (shape.measure,)} | shown | rows

    def _clip(self, most: int, rng: np.random.Generator, longest: int) -> tuple[speech.Samples, str, Marks | None]:
        """A recording of at most `longest` samples, what is said in it, and where if that is known."""
        while True:
            kind = rng.random()
            marks: Marks | None = None
            if kind < 0.08:
                samples, transcript, marks = speech.quiet(rng), "", []
            elif (kind < 0.5 and not self._test) or most < 3:
                spoken, transcript, marks = self._assembled(most, rng, longest)
                samples, before = speech.recorded(spoken, rng)
                marks = [(digit, start + before, end + before) for digit, start, end in marks]
            else:
                known = np.flatnonzero(self._digits <= most)
                twice = longest > 8 * speech.RATE and rng.random() < 0.3
                chosen = [int(rng.choice(known)) for _ in range(2 if twice else 1)]
                parts = [self._pool.string(i) for i in chosen]
                if twice:
                    parts.insert(1, np.zeros(int(rng.uniform(0.1, 1.2) * speech.RATE), np.float32))
                transcript = " ".join(self._pool.transcripts[i] for i in chosen)
                samples, _ = speech.recorded(np.concatenate(parts), rng)
            if len(samples) <= longest:
                return samples, transcript, marks

    def _assembled(self, most: int, rng: np.random.Generator, longest: int) -> tuple[speech.Samples, str, Marks]:
        """Single digits of one speaker with short pauses, and where each begins and ends."""
        way, tempo = int(rng.integers(self._pool.ways)), rng.uniform(0.0, 0.25)
        parts: list[speech.Samples] = []
        digits: list[int] = []
        marks: Marks = []
        at = 0
        for _ in range(int(rng.integers(1, most + 1))):
            again = bool(digits) and rng.random() < 0.1
            digit = digits[-1] if again else int(rng.integers(10))
            said = self._pool.digit(way, digit)
            pause = np.zeros(int(rng.uniform(0.2, 1.0) * tempo * speech.RATE), np.float32)
            if at + len(said) > longest:
                break
            marks.append((digit, at, at + len(said)))
            parts += [said, pause]
            digits.append(digit)
            at += len(said) + len(pause)
        return np.concatenate(parts[:-1]), " ".join(map(str, digits)), marks

    def _rows(self, kind: str, turns: list[tuple[Turn, str]], soft: int, around: int) -> dict[str, Tensor]:
        """Token ids and what is to be learnt of them.

        soft: media tokens of a row at most; around: tokens that surround them.
        Returns ids (rows, tokens); source (rows, tokens): which of the row's media embeddings stands there, or -1;
        picks (rows, answer): positions whose next token is learnt; wanted (rows, answer): that token, or -100.
        """
        width = soft + around + _WORDS[kind]
        ids = torch.zeros((len(turns), width), dtype=torch.long)
        picks = torch.zeros((len(turns), _ANSWER[kind]), dtype=torch.long)
        wanted = torch.full_like(picks, -100)
        for i, (turn, medium) in enumerate(turns):
            system = f"<|turn>system\n{turn.system}<turn|>\n" if turn.system else ""
            asked = f"<bos>{system}<|turn>user\n{turn.before}{medium}{turn.after}<turn|>\n<|turn>model\n"
            prompt, answer = (self._tokenizer.encode(text).ids for text in (asked, f"{turn.answer}<turn|>"))
            ids[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            picks[i, : len(answer)] = torch.arange(len(prompt) - 1, len(prompt) - 1 + len(answer))
            wanted[i, : len(answer)] = torch.tensor(answer)
        token = blueprint.IDS["audio_token" if kind == "audio" else "image_token"]
        here = ids == token
        source = torch.where(here, here.long().cumsum(1) - 1, -1)
        return {"ids": ids, "source": source, "picks": picks, "wanted": wanted}


def _drawn(shapes: tuple[Shape, ...], rng: np.random.Generator) -> Shape:
    return shapes[int(rng.choice(len(shapes), p=[shape.chance for shape in shapes]))]


def _tokens(grid: tuple[int, int]) -> int:
    return grid[0] * grid[1] // blueprint.POOL**2


def _cells(shown: list[scenes.Scene], grid: tuple[int, int]) -> Tensor:
    """What each soft token of each picture shows: (pictures, tokens), as `scenes.things_by_cell` has it."""
    rows, columns = grid[0] // blueprint.POOL, grid[1] // blueprint.POOL
    return torch.from_numpy(np.stack([scenes.things_by_cell(scene, rows, columns).ravel() for scene in shown]))


def _mark(hint: Tensor, marks: Marks, length: int) -> None:
    """Fills in what each soft token of a clip hears: a digit, 10 for none, or -100 where it is too early to say."""
    hint[: audio_tokens(length)] = 10
    for digit, start, end in marks:
        hint[start // _STEP : end // _STEP + 2] = -100
        hint[(start + 3 * (end - start) // 5) // _STEP : end // _STEP + 1] = digit


def _size(
    rng: np.random.Generator,
    shape: Shape,
    budget: int,
    random_size: Callable[[np.random.Generator], tuple[int, int]],
) -> tuple[tuple[int, int], tuple[int, int]]:
    """A width and height in pixels, and the rows and columns of patches that the budget makes of it."""
    aspect = math.exp(np.linspace(-0.6, 0.6, shape.aspects)[int(rng.integers(shape.aspects))])
    grid = _grid((round(1000 * math.sqrt(aspect)), round(1000 / math.sqrt(aspect))), budget)
    while True:
        width, height = random_size(rng)
        area, near = width * height, aspect * math.exp(rng.uniform(-0.06, 0.06))
        size = round(math.sqrt(area * near)), round(math.sqrt(area / near))
        if _grid(size, budget) == grid:
            return size, grid


def _grid(size: tuple[int, int], budget: int) -> tuple[int, int]:
    width, height = image_size(*size, budget)
    return height // blueprint.PATCH, width // blueprint.PATCH
