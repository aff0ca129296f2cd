"""What the line asks of an engine. Two fulfil it: `vllm`, and `fake`, which needs no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemma4cli.errors import EngineError
from gemma4cli.records import Generation, Rendered, Sampling, Tokens

if TYPE_CHECKING:
    from gemma4cli.media.decoded import Audio, Image, Video

    Part = Image | Audio | Video | str


@dataclass(frozen=True, slots=True)
class Turns:
    """A question, as the parts of a request, and its answer, which come before a row. `name` is that of its media."""

    parts: tuple[Part, ...]
    answer: str
    name: str


@dataclass(frozen=True, slots=True)
class Request:
    """One row in the engine's terms: decoded media and texts in order, the prompt last.

    turns: what comes before it, the same for each row.
    max_tokens: of all that may be generated for it.  thinking: whether the model is to think before it answers.
    """

    row_index: int
    parts: tuple[Part, ...]
    system: str
    max_soft_tokens: int
    max_tokens: int
    thinking: bool = False
    turns: tuple[Turns, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineInput:
    """A request made ready: the engine's own payload, about `nbytes` large, and the tokens it takes."""

    payload: Any
    nbytes: int
    tokens: Tokens


Deliver = Callable[[Generation | EngineError], None]


class Renderer(Protocol):
    """Makes engine inputs. Can be pickled, so that other processes can do it; one thread at a time."""

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that a process needs for it: worth importing once and forking."""
        ...

    @property
    def exact_frames(self) -> bool:
        """Whether it takes a video's frames at the size that the model sees (see MediaOptions)."""
        ...

    def render(self, request: Request) -> EngineInput:
        """Raises RenderError when the row does not fit the model."""
        ...

    def render_together(self, requests: Sequence[Request]) -> list[EngineInput]:
        """One for each of several requests with the same media: what is made of these is made once, and shared.

        Raises RenderError when one of them does not fit the model.
        """
        ...


class Engine(Protocol):
    """A generator of text for rendered rows.

    Rows are submitted from one thread; each comes back exactly once through `deliver`, as it finishes and in any
    order, from a thread of the engine's. An engine that died delivers one EngineError and nothing after it; closed
    and started again it takes rows anew.
    """

    @property
    def renderer(self) -> Renderer: ...

    @property
    def sequences(self) -> int:
        """Rows that it works on at a time: with fewer, a part of it is idle."""
        ...

    @property
    def capacity(self) -> int:
        """Rows worth having between their admission and their answer: a few more, so that none is waited for."""
        ...

    @property
    def progress(self) -> int:
        """A number that changes whenever a token was made or a row finished."""
        ...

    def describe(self) -> dict[str, Any]:
        """Versions and settings, for the run summary."""
        ...

    def start(self, deliver: Deliver) -> None:
        """Loads the model; returns when rows can be taken.

        Raises:
            EngineError: it does not load, with the reason.
        """
        ...

    def submit(self, rendered: Rendered, sampling: Sampling) -> None: ...

    def kill(self) -> None:
        """Ends the engine's processes without waiting for anything: for a signal's handler, before the program ends."""
        ...

    def close(self) -> None:
        """Ends the engine and all its processes, at once. Safe to call twice, while it starts, from any thread."""
        ...


class Around:
    """What an engine around another one says of itself, where that is what the other one says."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def renderer(self) -> Renderer:
        return self._engine.renderer

    @property
    def sequences(self) -> int:
        return self._engine.sequences

    @property
    def capacity(self) -> int:
        return self._engine.capacity

    @property
    def progress(self) -> int:
        return self._engine.progress

    def describe(self) -> dict[str, Any]:
        return self._engine.describe()
