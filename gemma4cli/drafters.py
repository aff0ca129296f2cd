"""Models that draft tokens for another, which checks them: whether one fits, before any weights load."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4cli import models
from gemma4cli.errors import UsageError
from gemma4cli.features import AUTO, Features
from gemma4cli.models import ALIASES, Model

SUFFIX = "-assistant"  # of the drafters that are published beside the models
_ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter that fits. method: how it drafts, in vLLM's terms."""

    location: str
    revision: str | None
    method: str


def find(features: Features, model: Model) -> Drafter | None:
    """The drafter that a run asks for.

    Raises:
        UsageError: it does not fit the model, or there is none beside it.
        ModelError: it is neither on this machine nor within reach.
    """
    name = features.speculative
    if name is None:
        return None
    if name == AUTO:
        repo = ALIASES.get(model.name, model.name)
        if repo not in ALIASES.values():
            message = f"--speculative auto: no drafter is known to be published beside {model.name}"
            raise UsageError(message, "Name one: --speculative FOLDER, or a hub id.")
        name = f"{repo}{SUFFIX}"
    location, revision, config = models.located(name, "--speculative")
    kind, architectures = config.get("model_type"), config.get("architectures") or []
    if kind in _ASSISTANTS:
        method, width = "mtp", config.get("backbone_hidden_size")
    elif any("eagle3" in architecture.lower() for architecture in architectures):
        method, width = "eagle3", config.get("target_hidden_size") or config.get("hidden_size")
    else:
        found = ", ".join(architectures) or kind or "nothing"
        raise UsageError(
            f"--speculative {name} is no drafter (its configuration says {found})",
            f"It takes models named {SUFFIX} (mtp), and Eagle3 heads.",
        )
    if features.method not in (None, method):
        raise UsageError(f"--speculative-method {features.method}: {name} drafts by {method}", "Leave it out.")
    hidden = (model.config.get("text_config") or {}).get("hidden_size")
    if width is not None and hidden is not None and width != hidden:
        message = f"--speculative {name} drafts for a model {width} wide, and {model.name} is {hidden}"
        raise UsageError(message, "Take the drafter of the same model.")
    return Drafter(location, revision, method)
