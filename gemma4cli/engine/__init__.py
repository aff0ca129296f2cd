"""Opens the engines that a run asks for, after every check that needs no engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gemma4cli import gpus, resources
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Engine
from gemma4cli.models import Model

if TYPE_CHECKING:
    from gemma4cli.engine.fleet import Fleet

# What an engine's process needs whatever it will be told, and can import while it is not told yet.
_PRELOAD = {"vllm": ("gemma4cli.engine.vllm", "vllm.v1.engine.async_llm"), "fake": ("gemma4cli.engine.fake",)}


def open_engine(config: RunConfig, model: Model, verbose: bool = False) -> Engine:
    """An engine that is configured but has not loaded the model yet. Started, it runs in this process.

    Raises:
        UsageError: an --engine-arg is unknown or belongs to the program.
        ModelError: the model or the machine cannot do what the run asks.
    """
    if config.engine == "fake":
        from gemma4cli.engine.fake import FakeEngine

        return FakeEngine.configured(config)

    from gemma4cli.engine.vllm import VllmEngine

    return VllmEngine.configured(config, model, verbose)


def refuse(config: RunConfig, model: Model, verbose: bool = False) -> None:
    """Raises what `open_fleet` would; nothing is started."""
    places = gpus.of_run(config.gpus, config.gpus_per_engine, config.engine)
    _prepare(config, places, verbose)
    open_engine(config, model, verbose)


def open_fleet(
    config: RunConfig,
    model: Model,
    ready: Callable[[], None],
    notice: Callable[[str], None] = lambda line: None,
    verbose: bool = False,
) -> Fleet:
    """The engines of a run, none of which has loaded the model yet: for each GPU, or group of GPUs, that is named.

    Each runs in a process of its own, but for the fake engine where --gpus asks for nothing. Close the fleet also if
    it was never started. `ready` and `notice` are those of `Fleet`.

    Raises:
        UsageError: as `open_engine`, or the GPUs are not there or do not divide.
        ModelError: as `open_engine`.
    """
    from gemma4cli.engine.fleet import Fleet

    places = gpus.of_run(config.gpus, config.gpus_per_engine, config.engine)
    limits = config.limits
    if config.engine == "fake" and config.gpus is None:
        engines: list[tuple[str, Engine]] = [(places[0].name, open_engine(config, model, verbose))]
    else:
        engines = _processes(config, model, places, verbose)
    fleet = Fleet(
        engines, limits.max_engine_deaths, limits.stall_timeout_s, ready, notice, [place.after for place in places]
    )
    try:
        resources.allow_open_files(fleet.capacity)
    except BaseException:
        fleet.close()
        raise
    return fleet


def _prepare(config: RunConfig, places: list[gpus.Place], verbose: bool) -> None:
    if config.engine == "vllm":
        from gemma4cli.engine.vllm_settings import prepare_environment

        prepare_environment(verbose, len(places))


def _processes(config: RunConfig, model: Model, places: list[gpus.Place], verbose: bool) -> list[tuple[str, Engine]]:
    from gemma4cli.engine.child import Child
    from gemma4cli.engine.process import EngineProcess

    _prepare(config, places, verbose)
    first = Child(places[0], _PRELOAD[config.engine])  # imports while we do
    try:
        engine = open_engine(config, model, verbose)
    except BaseException:
        first.end()
        raise
    return [(place.name, EngineProcess(engine, place, None if i else first)) for i, place in enumerate(places)]
