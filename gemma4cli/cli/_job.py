"""From flags to a job: everything that can be refused is, before anything of it is done."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from gemma4cli.cli._options import RunOptions, output_path

if TYPE_CHECKING:
    from gemma4cli.config import RunConfig
    from gemma4cli.inputs import Inputs
    from gemma4cli.models import Model
    from gemma4cli.pending import Resume
    from gemma4cli.records import Item
    from gemma4cli.shards import Shard

_LOOKED_AT = 16  # rows that say whether a job's media are elsewhere
_ELSEWHERE = 4  # readers for each core, where they wait for a network


@dataclass(frozen=True, slots=True)
class Job:
    """A run that nothing speaks against, before anything of it is done. With a shard, `inputs` are the shard's own."""

    config: RunConfig
    model: Model
    inputs: Inputs
    output: str
    fingerprint: dict[str, Any]
    resume: Resume
    shard: Shard | None = None


def prepared(task: str, options: RunOptions, **own: Any) -> Job:
    """From flags to a job. `own` holds overrides from flags that this task alone has.

    Raises:
        UsageError, JobError: see `gemma4cli.errors`.
    """
    from gemma4cli import adapters, models, prompt_templates, shards, storage, tasks
    from gemma4cli.identity import fingerprint
    from gemma4cli.inputs import InputOptions, open_inputs
    from gemma4cli.known import without_known
    from gemma4cli.overrides import Overrides, build
    from gemma4cli.pending import Resume
    from gemma4cli.records import Kind

    options = _with_texts(options)
    mine = {field.name for field in fields(options)}
    shared = {field.name: getattr(options, field.name) for field in fields(Overrides) if field.name in mine}
    named = _named(options)
    allowed = frozenset(name for text in named for name in storage.protocols(text))
    config = build(
        task,
        Overrides(**shared, engine_args=tuple(options.engine_arg or ()), allow_protocols=allowed, **own),
    )
    output = output_path(task, options)
    _refuse_contradictions(options)
    model = models.find(config.model)
    model.require(task, config.kinds)
    if config.sound is not None:
        model.require("transcribe, as --with-audio asks", frozenset({Kind.AUDIO}))
    _refuse_no_room(config, model)
    if not model.hears and any(medium.kind is Kind.AUDIO for each in config.examples for medium in each.content):
        from gemma4cli.errors import UsageError

        raise UsageError(f"{model.name} takes no audio, and an example has some", "Leave it out, or use E4B.")
    for name, path in config.features.loras:
        adapters.load(name, path, model)
    inputs = open_inputs(
        named,
        InputOptions(
            kinds=tasks.sought_kinds(config),
            kind=tasks.wanted_kind(task),
            media_columns=tuple(filter(None, (options.media_column or "").split(","))),
            prompt_column=options.prompt_column,
            id_column=options.id_column,
            limit=None if options.limit is None else min(options.limit, sys.maxsize),
            columns=None if options.columns is None else tuple(filter(None, options.columns.split(","))),
            where=options.where,
            split=options.split,
            config_name=options.name,
            revision=options.revision,
            streaming=options.streaming,
            allow_private_hosts=options.allow_private_hosts,
        ),
        _standard_input() if "-" in named else None,
    )
    _refuse_columns_of_files(options, inputs)
    inputs = prompt_templates.told(inputs, config.wordings)
    if config.features.lora_column is not None:
        inputs = _with_adapters(inputs, config.features.lora_column)
    if options.known:
        inputs = without_known(inputs, options.known)
    config = replace(config, limits=replace(config.limits, readers=_readers(config, inputs)))
    if task == "annotate" and not (config.prompts.text or config.outputs or options.prompt_column or inputs.speaking):
        from gemma4cli.errors import UsageError

        raise UsageError(
            "annotate needs to know what to ask",
            'Give --prompt "What is the brand?", or --prompt-column NAME for a prompt in each row.',
        )
    resume = Resume(options.new_only, options.retry_failed, partial=options.limit is not None)
    shard = None
    if options.shard is not None:
        number, of = shards.parse(options.shard)
        shard = shards.cut(number, of, inputs.counted())
        inputs = inputs.part(shard.first, shard.stop)
    return Job(config, model, inputs, output, fingerprint(config, model), resume, shard)


def _with_texts(options: RunOptions) -> RunOptions:
    """The options with the texts of the files that hold prompts, also those of outputs."""
    from gemma4cli.errors import UsageError
    from gemma4cli.flag_values import text_of

    found: dict[str, Any] = {}
    for name in ("prompt", "system"):
        path = getattr(options, f"{name}_file")
        if path is not None and getattr(options, name) is not None:
            raise UsageError(f"--{name} and --{name}-file contradict each other", "Give one of them.")
        if path is not None:
            found[name] = text_of(f"--{name}-file", path)
    outputs = {}
    for name, own in options.outputs.items():
        if {"prompt", "prompt_file"} <= own.keys():
            raise UsageError(f"outputs.{name} has both prompt and prompt_file", "Leave one of them out.")
        said = {"prompt": text_of(f"outputs.{name}.prompt_file", own["prompt_file"])} if "prompt_file" in own else {}
        outputs[name] = {key: value for key, value in own.items() if key != "prompt_file"} | said
    return replace(options, **found, outputs=outputs)


def _named(options: RunOptions) -> list[str]:
    """The inputs, with the data set of --dataset as what it is among them."""
    from gemma4cli.inputs.hub import PREFIX

    return [*(options.inputs or ()), *([] if options.dataset is None else [PREFIX + options.dataset])]


def _readers(config: RunConfig, inputs: Inputs) -> int | None:
    """Rows that are read at a time: waiting for a network takes no core."""
    from itertools import islice

    from gemma4cli import resources
    from gemma4cli.probe import is_elsewhere

    if config.limits.readers is not None or inputs.total is None:  # a stream would begin twice
        return config.limits.readers
    first = (medium for item in islice(inputs, _LOOKED_AT) for medium in item.media if medium.data is None)
    return _ELSEWHERE * resources.cores() if any(is_elsewhere(medium.location) for medium in first) else None


def _refuse_contradictions(options: RunOptions) -> None:
    from gemma4cli.errors import UsageError

    if options.overwrite and (options.new_only or options.retry_failed):
        other = "--new-only" if options.new_only else "--retry-failed"
        raise UsageError(f"--overwrite starts again, which leaves {other} nothing to keep", "Leave one of them out.")
    if options.on not in (None, "ray"):
        raise UsageError(f"--on {options.on} is not possible", "It takes ray; without it the work is done here.")
    for name, value in (("--address", options.address), ("--engines", options.engines)):
        if value is not None and options.on is None:
            raise UsageError(f"{name} is about a cluster", "Add --on ray.")
    if options.shard is not None and options.new_only:
        raise UsageError(
            "--new-only and --shard contradict each other: shards need an input that stays as it is",
            "Merge the shards first, then run with --new-only and without --shard.",
        )
    if options.shard is not None and options.format == "openai":
        raise UsageError(
            "--format openai is for whole outputs, and --shard makes a part of one",
            "Leave it out, merge the shards, then run the command with --format openai and without --shard.",
        )
    if options.outputs:
        flags = {"--format openai": options.format == "openai", "--prompt-column": options.prompt_column is not None}
        flag = next((flag for flag, given in flags.items() if given), None)
        if flag is not None:
            raise UsageError(f"{flag} is about one answer, and outputs make several", "Leave one of them out.")


def _refuse_no_room(config: RunConfig, model: Model) -> None:
    """An answer as long as the context would make every row fail, after the model was loaded for it."""
    from gemma4cli.engine.vllm_settings import CONTEXT
    from gemma4cli.errors import UsageError

    recipes = [*config.asks(None), *filter(None, (config.sound, config.summary))]
    most = max(recipe.sampling.most_tokens for recipe in recipes)
    shown = sum(example.tokens for example in config.examples)
    context = model.context
    if config.engine == "vllm":
        context = config.engine_args.get("max_model_len", min(context, CONTEXT))
    if isinstance(context, int) and 0 < context <= most:
        thought = "" if config.sampling.thinking_budget is None else " (with --thinking-budget)"
        way = f", or raise the context, up to {model.context}: --engine-arg max_model_len=N"
        raise UsageError(
            f"--max-tokens {most}{thought} leaves no room for a prompt: the context is {context} tokens",
            f"Lower it{way if context < model.context else ''}.",
        )
    if isinstance(context, int) and context <= most + shown:
        raise UsageError(
            f"the examples take about {shown:,} tokens, which with {most:,} of an answer leave no room for a row in a "
            f"context of {context:,}",
            "Leave some out, lower --max-soft-tokens or --max-tokens, or raise --engine-arg max_model_len=N.",
        )


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        from gemma4cli.errors import UsageError

        raise UsageError("- reads paths from standard input, which is closed", "Leave out <&-, or name the files.")
    return sys.stdin.buffer


def _refuse_columns_of_files(options: RunOptions, inputs: Inputs) -> None:
    """Files and folders have no columns: a flag about them would say nothing."""
    from gemma4cli.errors import UsageError

    given = {
        "--media-column": options.media_column,
        "--prompt-column": options.prompt_column,
        "--id-column": options.id_column,
        "--lora-column": options.lora_column,
    }
    flag = next((flag for flag, column in given.items() if column), None)
    if flag is None or inputs.tabular:
        return
    raise UsageError(
        f"{flag} names a column of a manifest, and the inputs are files",
        f"Leave it out, or give a .jsonl or .parquet manifest that has the column {given[flag]}.",
    )


def _with_adapters(inputs: Inputs, column: str) -> Inputs:
    """The rows, each with the name of its adapter."""
    from gemma4cli.errors import UsageError

    if column not in inputs.columns.names:
        listed = ", ".join(inputs.columns.names) or "none"
        raise UsageError(f"--lora-column {column}: no such column", f"The manifest's columns are {listed}.")

    def named(item: Item) -> Item:
        value = item.extra.get(column)
        return replace(item, adapter="" if value is None else str(value))

    return inputs.changed(named)
