"""An engine without a model: deterministic answers, settable speed and faults.

It drives the same line as vLLM does, so that inputs, media, ordering and output can be tried in seconds, and it
answers the same row with the same text whatever ran beside it. Settings come as `--engine-arg`:

    latency_ms=0    time from a row's submission to its answer
    rows_per_s=0    answers a second at most; 0 for no limit
    start_s=0       time the start takes
    capacity=64     rows in flight
    fail_on=TEXT    rows whose text parts hold TEXT fail at the engine
    die_on=TEXT     the engine dies on such a row
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from dataclasses import dataclass, fields
from typing import Any

from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Deliver, EngineInput, Request
from gemma4cli.errors import EngineError, RenderError, UsageError
from gemma4cli.models import Model
from gemma4cli.records import Failure, Generation, Kind, Rendered, Sampling, Stage, Tokens


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the fake engine acts; the module's docstring lists the fields."""

    latency_ms: float = 0.0
    rows_per_s: float = 0.0
    start_s: float = 0.0
    capacity: int = 64
    fail_on: str = ""
    die_on: str = ""


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    said: str  # the text parts, which faults are looked for in


class FakeEngine:
    """See the module's docstring."""

    def __init__(self, behaviour: Behaviour, model: Model) -> None:
        self._behaviour = behaviour
        self._model = model
        self._inbox: queue.SimpleQueue[tuple[float, Rendered, Sampling] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def configured(cls, config: RunConfig, model: Model) -> FakeEngine:
        known = {field.name: field.type for field in fields(Behaviour)}
        for name in config.engine_args:
            if name not in known:
                raise UsageError(f"--engine-arg {name} is unknown to the fake engine", f"It takes {', '.join(known)}.")
        casts = {"float": float, "int": int, "str": str}
        try:
            values = {name: casts[str(known[name])](value) for name, value in config.engine_args.items()}
        except ValueError as error:
            raise UsageError(f"--engine-arg: {error}") from None
        return cls(Behaviour(**values), model)

    @property
    def capacity(self) -> int:
        return self._behaviour.capacity

    def describe(self) -> dict[str, Any]:
        return {"engine": "fake"}

    def start(self, deliver: Deliver) -> None:
        time.sleep(self._behaviour.start_s)
        self._thread = threading.Thread(target=self._answer_all, args=(deliver,), name="fake-engine", daemon=True)
        self._thread.start()

    def render(self, request: Request) -> EngineInput:
        from gemma4cli import gemma
        from gemma4cli.media.decoded import Audio, Image, Video

        digest, said = hashlib.sha256(request.system.encode()), []
        counts = dict.fromkeys(Kind, 0)
        label = "text"
        for part in request.parts:
            match part:
                case str():
                    digest.update(part.encode(errors="surrogatepass"))
                    said.append(part)
                case Image():
                    digest.update(part.pixels.tobytes())
                    counts[Kind.IMAGE] += gemma.image_tokens(part.width, part.height, request.max_soft_tokens)
                    label = f"image {part.width}x{part.height}"
                case Audio():
                    if not self._model.hears:
                        raise RenderError("no_audio_tower", f"{self._model.name} takes no audio")
                    digest.update(part.samples.tobytes())
                    counts[Kind.AUDIO] += gemma.audio_tokens(len(part.samples))
                    label = f"audio {part.duration_s:.2f} s"
                case Video():
                    digest.update(part.frames.tobytes())
                    frames, height, width, _ = part.frames.shape
                    counts[Kind.VIDEO] += frames * gemma.image_tokens(width, height, gemma.VIDEO_BUDGET)
                    label = f"video of {frames} frames"
        words = sum(len(text.split()) for text in said)
        tokens = Tokens(words + sum(counts.values()), counts[Kind.IMAGE], counts[Kind.AUDIO], counts[Kind.VIDEO])
        return EngineInput(_Answer(f"{label}, {digest.hexdigest()[:12]}", "\n".join(said)), 0, tokens)

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._inbox.put((time.monotonic(), rendered, sampling))

    def close(self) -> None:
        if self._thread is not None:
            self._inbox.put(None)
            self._thread.join()
            self._thread = None

    def _answer_all(self, deliver: Deliver) -> None:
        """Answers in order of submission, each when it is due."""
        pace = 1 / self._behaviour.rows_per_s if self._behaviour.rows_per_s else 0.0
        free = time.monotonic()
        while (entry := self._inbox.get()) is not None:
            submitted, rendered, sampling = entry
            due = max(submitted + self._behaviour.latency_ms / 1000, free + pace)
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            free = time.monotonic()
            answer: _Answer = rendered.payload
            if self._behaviour.die_on and self._behaviour.die_on in answer.said:
                deliver(EngineError("the fake engine died, as --engine-arg die_on asked"))
                return
            deliver(self._generation(rendered, answer, sampling, (free - submitted) * 1000))

    def _generation(self, rendered: Rendered, answer: _Answer, sampling: Sampling, elapsed_ms: float) -> Generation:
        if self._behaviour.fail_on and self._behaviour.fail_on in answer.said:
            failure = Failure(Stage.ENGINE, "fake_failure", "failed, as --engine-arg fail_on asked")
            return Generation(rendered.row_index, None, None, 0, 0.0, elapsed_ms, failure)
        words = answer.text.split()
        kept = words[: sampling.max_tokens]
        reason = "stop" if len(kept) == len(words) else "length"
        return Generation(rendered.row_index, " ".join(kept), reason, len(kept), 0.0, elapsed_ms)
