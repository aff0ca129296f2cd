"""The driver of a run on Ray: the division into shards, the stages, and the shards put together at the end."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from gemma4cli import ledger, merging, pending, shards
from gemma4cli.cluster import dealing, reading, writing
from gemma4cli.cluster.answering import Answer
from gemma4cli.cluster.connection import got, reported
from gemma4cli.cluster.rendering import Render
from gemma4cli.cluster.work import Work
from gemma4cli.config import RunConfig
from gemma4cli.errors import UsageError
from gemma4cli.escaping import first_line, printable
from gemma4cli.inputs import Inputs
from gemma4cli.models import Model
from gemma4cli.outputs import Output
from gemma4cli.pending import Resume
from gemma4cli.remaining import remaining
from gemma4cli.schema import asked_columns, output_schema
from gemma4cli.stats import Stats

SHARD_ROWS = 50_000
WRITE_ROWS = 256  # of a part, for each engine
_MOST_WRITE_ROWS = 4096
# CPUs as Ray counts them. Of the tasks only those that read take one, for Ray puts them together with the cutting of
# their rows into blocks, which does; actors must leave it to them, and there may be one CPU in all.
_RENDER_SHARE = 0.25  # of the CPUs that an actor renders on
_LEAST = 0.01  # of an engine: what takes nothing is not spread over the machines
_NONE = 0
_MOST_CORES = 16  # of an actor that renders


@dataclass(frozen=True, slots=True)
class Cluster:
    """How the machines are used.

    engines: actors with an engine.  gpus: that each of them takes.
    renderers: actors that render at most, each with so many `cores`.
    """

    engines: int
    gpus: int
    renderers: int
    cores: int


@dataclass(frozen=True, slots=True)
class Setup:
    """What an engine says of itself before it loads: a pickled RenderJob, and the rows it wants in flight."""

    job: bytes
    capacity: int
    description: dict[str, Any]


def cluster_for(config: RunConfig, engines: int | None) -> Cluster:
    """How the machines that are there now are used for a run."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = config.gpus_per_engine if config.engine == "vllm" else 0
    have = sum(int(node.get("GPU", 0)) // max(1, gpus) for node in nodes)
    if gpus and not have:
        gpus = 0  # vLLM's CPU build; where it is not, the engine says so
    cpus = [max(1, int(node.get("CPU", 1))) for node in nodes]
    cores = min(_MOST_CORES, *cpus)
    most = sum(ceil(count / cores) for count in cpus)
    return Cluster(engines or (have if gpus else len(nodes)), gpus, most, cores)


def begin(
    config: RunConfig, model: Model, inputs: Inputs, place: Output, fingerprint: Mapping[str, Any], resume: Resume
) -> tuple[Work | None, Any, list[reading.Left]]:
    """What is to do, a reference to its input, and what is left in each shard.

    None where nothing is to do, not even to put shards together.

    Rows that an earlier run has done without Ray are dealt out to shards.

    Raises:
        UsageError: the output's rows are not what the input or the settings say.
    """
    import ray

    answers = asked_columns(config)
    document = {"task": config.task, **config.as_dict(), "fingerprint": dict(fingerprint)}
    total = inputs.counted()
    whole = ledger.read_whole(place, repair=True)
    pending.refuse_settings(whole.fingerprint, fingerprint, resume, printable(str(place.path)))
    if whole.finished and not shards.begun(place):
        left = remaining(str(place.path), inputs, fingerprint, resume, overwrite=False)
        if not whole.added and not any(True for _ in left.items):
            return None, None, [reading.Left(0, 0, left.kept_ok, left.kept_failed, True)]
    work = Work(
        config=config,
        model=model,
        place=replace(place, path=place.path.absolute(), state=place.state.absolute(), parts=place.parts.absolute()),
        schema=output_schema(inputs.columns, document, answers=answers),
        columns=inputs.columns,
        answers=tuple(field.name for field in answers),
        fingerprint=dict(fingerprint),
        resume=resume,
        of=division(place, total),
        total=total,
        part=int(time.time()) + 1,
        folder=str(Path.cwd()),
    )
    try:
        reference = ray.put(inputs)
    except (TypeError, pickle.PicklingError) as error:
        said = first_line(error)
        hint = "Make a manifest of them, or leave --on ray out."
        raise UsageError(f"these inputs cannot be sent to other machines: {said}", hint) from error
    dealing.deal(work, whole)
    return work, reference, survey(work, reference)


def configure(work: Work) -> Setup:
    """Configures an engine without loading it, on a machine that could."""
    from gemma4cli.engine import open_engine
    from gemma4cli.render import RenderJob

    work.arrive()
    engine = open_engine(work.config, work.model)
    try:
        job = pickle.dumps(RenderJob(work.config, work.model, engine.renderer), 5)
        return Setup(job, engine.capacity, engine.describe())
    finally:
        engine.close()


def division(place: Output, total: int) -> int:
    """How many shards a run has: as many as it was begun with, else by its rows.

    Raises:
        UsageError: it was begun with another input.
    """
    begun = shards.begun(place)
    if not begun:
        return max(1, ceil(total / SHARD_ROWS))
    if len({(shard.of, shard.total) for shard in begun}) > 1 or begun[0].total != total:
        was = ", ".join(sorted({f"{shard.total:,}" for shard in begun}))
        raise UsageError(
            f"{printable(str(place.path))} was begun in shards of {was} rows, and the input has {total:,}",
            "Run without --on ray, which takes over what is there, or start again with --overwrite.",
        )
    return begun[0].of


def survey(work: Work, inputs: Any) -> list[reading.Left]:
    """What is left in each shard. Those where nothing was begun are not looked at.

    Raises:
        UsageError: rows that are there are not what the input or the settings say.
    """
    import ray

    look = ray.remote(num_cpus=1)(reading.survey)
    begun = {shard.number for shard in shards.begun(work.place)}
    found = dict(zip(begun, got([look.remote(work, inputs, number) for number in begun]), strict=True))
    left = [found.get(number) or reading.Left(number, work.shard(number).rows) for number in range(work.of)]
    for each in left:
        if each.error is not None:
            raise UsageError(*each.error)
    return left


def answer(work: Work, inputs: Any, left: list[reading.Left], cluster: Cluster, stats: Stats) -> dict[str, Any]:
    """Takes the rows that are left to their shards, and returns what the engines say of themselves.

    Raises:
        JobError: an engine or the output failed for good, or too many rows did; what is written is kept.
    """
    import ray
    from ray.data import ActorPoolStrategy

    numbers = [each.number for each in left if each.rows]
    if not numbers:
        return {}
    (setup,) = got([ray.remote(num_cpus=_NONE, num_gpus=cluster.gpus)(configure).remote(work)])
    blocks = ceil(1.5 * setup.capacity / reading.BLOCK_ROWS) + 1
    rows = (
        ray.data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        .map_batches(reading.rows, batch_size=1, batch_format="numpy", fn_args=[work, [inputs]])
        .repartition(target_num_rows_per_block=reading.BLOCK_ROWS)
        .map_batches(
            Render,
            fn_constructor_args=[work, setup.job, cluster.cores],
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=_RENDER_SHARE * cluster.cores if cluster.cores > 1 else _NONE,
            compute=_pool(ActorPoolStrategy, cluster.renderers, 2),
        )
        .map_batches(
            Answer,
            fn_constructor_args=[work],
            batch_size=None,
            batch_format="pyarrow",
            num_cpus=_LEAST if cluster.cores > 1 else _NONE,
            num_gpus=cluster.gpus or None,
            compute=_pool(ActorPoolStrategy, cluster.engines, blocks),
        )
        .map_batches(
            writing.write,
            batch_size=min(_MOST_WRITE_ROWS, WRITE_ROWS * cluster.engines),
            batch_format="pyarrow",
            fn_args=[work],
            num_cpus=_NONE,
        )
    )
    with reported():
        for batch in rows.iter_batches(batch_size=None, batch_format="pyarrow"):
            for tally, ready in zip(batch["tally"], batch["ready"].to_pylist(), strict=True):
                if not stats.generating:
                    stats.engine_ready(max(0.0, time.time() - ready))
                stats.add(pickle.loads(tally.as_buffer()))
            stats.check_failures()
    return {**setup.description, "actors": cluster.engines}


def put_together(work: Work, left: list[reading.Left]) -> None:
    """Puts each shard in order, on the cluster, and then all of them.

    Raises:
        JobError: rows are missing, or the output cannot be written.
    """
    import ray

    task = ray.remote(num_cpus=1)(writing.finish)
    got([task.remote(work, each.number) for each in left if not each.finished and work.shard(each.number).rows])
    merging.put_together(work.place)


def _pool(strategy: Any, most: int, calls: int) -> Any:
    """Actors from one to `most`, of which each has `calls` blocks at a time and some more on their way to it."""
    return strategy(
        min_size=1 if calls == 2 else most,
        max_size=most,
        max_concurrent_calls_per_actor=calls,
        max_tasks_in_flight_per_actor=calls + 2,
        enable_true_multi_threading=True,
    )
