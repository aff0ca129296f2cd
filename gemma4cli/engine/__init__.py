"""Opens the engine that a run asks for, after every check that needs no engine."""

from __future__ import annotations

from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine
from gemma4cli.models import Model


def open_engine(config: RunConfig, model: Model, verbose: bool = False) -> Engine:
    """An engine that is configured but has not loaded the model yet.

    Raises:
        UsageError: an --engine-arg is unknown or belongs to the program.
        ModelError: the model or the machine cannot do what the run asks.
    """
    if config.engine == "fake":
        from gemma4cli.engine.fake import FakeEngine

        return FakeEngine.configured(config)

    from gemma4cli.engine.vllm import VllmEngine

    return VllmEngine.configured(config, model, verbose)
