"""An engine without a model: deterministic answers, settable speed and faults.

It drives the same line as vLLM does, so that inputs, media, ordering and output can be tried in seconds, and it
answers the same row with the same text whatever ran beside it. Settings come as `--engine-arg`:

    latency_ms=0    time from a row's submission to its answer
    rows_per_s=0    answers a second at most; 0 for no limit
    start_s=0       time the start takes
    capacity=64     rows in flight
    fail_on=TEXT    rows whose text parts hold TEXT fail at the engine
    die_on=TEXT     the engine dies on such a row
    die_above=0     the engine dies on such a row only if its prompt takes more tokens than this
    stall_on=TEXT   the engine says nothing more after such a row
    loop_on=TEXT    the answer repeats itself up to its limit, unless sampling penalises that
    hopeless_on=TEXT  the answer repeats itself whatever the sampling
    break_on=TEXT   the answer breaks off in its middle, unless it is drawn with another seed
    broken_on=TEXT  the answer breaks off in its middle whatever the seed
    ponder_on=TEXT  the model thinks on until it is cut off, where it may think at all
    hang_on=TEXT    rendering such a row never ends
    crash_on=TEXT   rendering such a row kills the process that does it
"""

from __future__ import annotations

import hashlib
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Deliver, EngineInput, Renderer, Request
from gemma4cli.engine.fake_answers import choice_logprobs, text_of
from gemma4cli.errors import EngineError, UsageError
from gemma4cli.records import Failure, Generation, Kind, Rendered, Sample, Sampling, Stage, Tokens
from gemma4cli.transport import contents

_TARGET = re.compile("output the string '(.+): '")  # the prompt that asks for a translation


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the fake engine acts; the module's docstring lists the fields."""

    latency_ms: float = 0.0
    rows_per_s: float = 0.0
    start_s: float = 0.0
    capacity: int = 64
    fail_on: str = ""
    die_on: str = ""
    die_above: int = 0
    stall_on: str = ""
    loop_on: str = ""
    hopeless_on: str = ""
    break_on: str = ""
    broken_on: str = ""
    ponder_on: str = ""
    hang_on: str = ""
    crash_on: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    said: str  # the text parts, which faults are looked for in
    number: int  # what a choice is made by


class FakeRenderer:
    """Counts the tokens that the model would take, and digests the row into its answer."""

    exact_frames = False
    preload: tuple[str, ...] = ("PIL.Image", "av", "numpy", "gemma4cli.media.decoded")

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    def render(self, request: Request) -> EngineInput:
        from gemma4cli import gemma
        from gemma4cli.media.decoded import Audio, Image, Video

        digest, said = hashlib.sha256(request.system.encode()), []
        before = [part for turns in request.turns for part in (*turns.parts, turns.answer)]
        counts = dict.fromkeys(Kind, 0)
        label = "text"
        for part in (*before, *request.parts):
            match part:
                case str():
                    digest.update(part.encode(errors="surrogatepass"))
                    said.append(part)
                case Image():
                    digest.update(part.pixels.tobytes())
                    counts[Kind.IMAGE] += gemma.image_tokens(part.width, part.height, request.max_soft_tokens)
                    label = f"image {part.width}x{part.height}"
                case Audio():
                    digest.update(part.samples.tobytes())
                    counts[Kind.AUDIO] += gemma.audio_tokens(len(part.samples))
                    label = f"audio {part.duration_s:.2f} s"
                case Video():
                    digest.update(part.frames.tobytes())
                    frames, height, width, _ = part.frames.shape
                    counts[Kind.VIDEO] += frames * gemma.image_tokens(width, height, gemma.VIDEO_BUDGET)
                    label = f"video of {frames} frames"
        text = f"{label}, {digest.hexdigest()[:12]}"
        target = _TARGET.search(said[-1]) if said else None
        text = f"{text}\n{target[1]}: {text}" if target else text
        answer = _Answer(text, "\n".join(said), digest.digest()[0])
        if _meets(self._behaviour.hang_on, answer):
            time.sleep(86_400)
        if _meets(self._behaviour.crash_on, answer):
            os.kill(os.getpid(), signal.SIGKILL)
        words = sum(len(text.split()) for text in said)
        tokens = Tokens(words + sum(counts.values()), counts[Kind.IMAGE], counts[Kind.AUDIO], counts[Kind.VIDEO])
        return EngineInput(answer, 0, tokens)

    def render_together(self, requests: Sequence[Request]) -> list[EngineInput]:
        return [self.render(request) for request in requests]


class FakeEngine:
    """See the module's docstring."""

    def __init__(self, behaviour: Behaviour, seed: int = 0) -> None:
        self.renderer: Renderer = FakeRenderer(behaviour)
        self._behaviour, self._seed = behaviour, seed
        self._finished = 0
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._inbox: queue.SimpleQueue[tuple[float, Rendered, Sampling] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def configured(cls, config: RunConfig) -> FakeEngine:
        known = {field.name: field.type for field in fields(Behaviour)}
        for name in config.engine_args:
            if name not in known:
                raise UsageError(f"--engine-arg {name} is unknown to the fake engine", f"It takes {', '.join(known)}.")
        casts = {"float": float, "int": int, "str": str}
        try:
            values = {name: casts[str(known[name])](value) for name, value in config.engine_args.items()}
        except ValueError as error:
            raise UsageError(f"--engine-arg: {error}") from None
        return cls(Behaviour(**values), config.sampling.seed)

    def __reduce__(self) -> tuple[type[FakeEngine], tuple[Behaviour, int]]:
        return FakeEngine, (self._behaviour, self._seed)

    @property
    def sequences(self) -> int:
        return max(1, self._behaviour.capacity * 4 // 5)

    @property
    def capacity(self) -> int:
        return self._behaviour.capacity

    @property
    def progress(self) -> int:
        return self._finished

    def describe(self) -> dict[str, Any]:
        return {"engine": "fake"}

    def start(self, deliver: Deliver) -> None:
        if self._over.wait(self._behaviour.start_s):
            raise EngineError("ended while it started")
        with self._closing:
            self._thread = threading.Thread(target=self._answer_all, args=(deliver,), name="fake-engine", daemon=True)
            self._thread.start()

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._inbox.put((time.monotonic(), rendered, sampling))

    def kill(self) -> None:
        pass  # it has no process of its own

    def close(self) -> None:
        self._over.set()
        with self._closing:
            if self._thread is not None:
                self._inbox.put(None)
                self._thread.join()
                self._thread, self._inbox = None, queue.SimpleQueue()  # a row left in it went down with the engine
            self._over.clear()

    def _answer_all(self, deliver: Deliver) -> None:
        try:
            self._answer_each(deliver)
        except Exception as error:  # a thread that ends says nothing to anybody
            deliver(EngineError(f"the fake engine failed: {type(error).__name__}: {error}"))

    def _answer_each(self, deliver: Deliver) -> None:
        """Answers in order of submission, each when it is due."""
        pace = 1 / self._behaviour.rows_per_s if self._behaviour.rows_per_s else 0.0
        free, first = time.monotonic(), True
        while (entry := self._inbox.get()) is not None:
            if first:
                print("fake engine: the first row is here", flush=True)  # to the log, as vLLM does
                first = False
            submitted, rendered, sampling = entry
            due = max(submitted + self._behaviour.latency_ms / 1000, free + pace)
            if self._over.wait(max(0.0, due - time.monotonic())):
                return
            free = time.monotonic()
            answer: _Answer = contents(rendered.payload)
            if _meets(self._behaviour.die_on, answer) and rendered.tokens.prompt > self._behaviour.die_above:
                deliver(EngineError("the fake engine died, as --engine-arg die_on asked"))
                return
            if _meets(self._behaviour.stall_on, answer):
                while self._inbox.get() is not None:
                    pass
                return
            self._finished += 1
            deliver(self._generation(rendered, answer, sampling, (free - submitted) * 1000))

    def _generation(self, rendered: Rendered, answer: _Answer, sampling: Sampling, elapsed_ms: float) -> Generation:
        if _meets(self._behaviour.fail_on, answer):
            failure = Failure(Stage.ENGINE, "fake_failure", "failed, as --engine-arg fail_on asked")
            return Generation(rendered.row_index, None, None, 0, 0.0, elapsed_ms, failure)
        samples = tuple(self._sample(answer, sampling, i) for i in range(sampling.n or 1))
        first, choices = samples[0], sampling.constraint.choices if sampling.constraint is not None else None
        scores = choice_logprobs(choices, answer.number) if sampling.logprobs and choices is not None else None
        return Generation(
            rendered.row_index,
            first.text,
            first.finish_reason,
            sum(sample.output_tokens for sample in samples),
            0.0,
            elapsed_ms,
            logprob=first.logprob,
            thinking=first.thinking,
            thinking_tokens=first.thinking_tokens,
            samples=samples if sampling.n is not None else (),
            choice_logprobs=scores,
        )

    def _sample(self, answer: _Answer, sampling: Sampling, number: int) -> Sample:
        seed, text = sampling.seed + number, answer.text if number == 0 else f"{answer.text}, sample {number}"
        if sampling.constraint is not None:
            text = text_of(sampling.constraint, text, answer.number + number)
        thinking = thinking_tokens = None
        if sampling.thinking_budget is not None:
            endless = _meets(self._behaviour.ponder_on, answer)
            thoughts = re.findall(r"\S+\s*", "What is there: " + answer.text)
            kept = ["hm "] * sampling.most_tokens if endless else thoughts[: sampling.thinking_budget]
            thinking, thinking_tokens = "".join(kept).strip(), len(kept)
            if endless:
                return Sample("", "length", len(kept), None, thinking, thinking_tokens)
        breaks = _meets(self._behaviour.break_on, answer) and seed == self._seed
        if breaks or _meets(self._behaviour.broken_on, answer):
            text = text[: len(text) // 2]
        words = re.findall(r"\S+\s*", text)
        curable = _meets(self._behaviour.loop_on, answer) and sampling.repetition_penalty == 1.0
        if curable or _meets(self._behaviour.hopeless_on, answer):
            words = ["and ", "so ", "on "] * sampling.max_tokens
        kept = words[: sampling.max_tokens]
        reason = "stop" if len(kept) == len(words) else "length"
        logprob = -0.125 * len(kept) if sampling.logprobs or sampling.n is not None else None
        tokens = len(kept) + (thinking_tokens or 0)
        return Sample("".join(kept).strip(), reason, tokens, logprob, thinking, thinking_tokens)


def _meets(fault: str, answer: _Answer) -> bool:
    return bool(fault) and fault in answer.said
