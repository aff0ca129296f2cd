"""What the line asks of an engine. Two fulfil it: `vllm`, and `fake`, which needs no model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gemma4cli.errors import EngineError
from gemma4cli.records import Generation, Rendered, Sampling, Tokens

if TYPE_CHECKING:
    from gemma4cli.media.decoded import Audio, Image, Video

    Part = Image | Audio | Video | str


@dataclass(frozen=True, slots=True)
class Request:
    """One row in the engine's terms: decoded media and texts in order, the prompt last."""

    row_index: int
    parts: tuple[Part, ...]
    system: str
    max_soft_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class EngineInput:
    """A request made ready: the engine's own payload, about `nbytes` large, and the tokens it takes."""

    payload: Any
    nbytes: int
    tokens: Tokens


Deliver = Callable[[Generation | EngineError], None]


class Engine(Protocol):
    """A generator of text for rendered rows.

    Rows may be submitted from one thread only; each comes back exactly once through `deliver`, as it finishes and in
    any order, from a thread of the engine's. An engine that died delivers one EngineError and nothing after it.
    """

    @property
    def capacity(self) -> int:
        """Rows worth having in the engine at a time."""
        ...

    def describe(self) -> dict[str, Any]:
        """Versions and settings, for the run summary."""
        ...

    def render(self, request: Request) -> EngineInput:
        """Makes the engine's input. One thread at a time, not necessarily the submitting one.

        Raises:
            RenderError: the row does not fit the model.
        """
        ...

    def start(self, deliver: Deliver) -> None:
        """Loads the model.

        Raises:
            EngineError: it does not load, with the reason.
        """
        ...

    def submit(self, rendered: Rendered, sampling: Sampling) -> None: ...

    def close(self) -> None:
        """Ends the engine and every process that it started. Safe to call twice."""
        ...
