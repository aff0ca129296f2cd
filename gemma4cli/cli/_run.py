"""What caption, transcribe and annotate have in common: from flags to a run, and from its summary to an exit code."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from gemma4cli.cli import _errors, _output
from gemma4cli.cli._options import RunOptions, output_path

if TYPE_CHECKING:
    from gemma4cli.cli._finish import Finish
    from gemma4cli.companions import Companions, Form
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
    from gemma4cli import config as configuration
    from gemma4cli.identity import fingerprint
    from gemma4cli.inputs import InputOptions, open_inputs
    from gemma4cli.known import without_known
    from gemma4cli.pending import Resume
    from gemma4cli.records import Kind

    options = _with_texts(options)
    mine = {field.name for field in fields(options)}
    shared = {
        field.name: getattr(options, field.name) for field in fields(configuration.Overrides) if field.name in mine
    }
    named = _named(options)
    allowed = frozenset(name for text in named for name in storage.protocols(text))
    config = configuration.build(
        task,
        configuration.Overrides(**shared, engine_args=tuple(options.engine_arg or ()), allow_protocols=allowed, **own),
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
    if options.known is not None:
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


def run_task(task: str, options: RunOptions, form: Form | None = None, **own: Any) -> int:
    """Runs a task and returns the exit code. Everything that can be refused is, before the model loads.

    `form` says which files go with each row; `own` holds overrides from flags that this task alone has.

    Raises:
        UsageError, JobError: see `gemma4cli.errors`.
    """
    from gemma4cli.cli._finish import finishing

    with finishing(task, options) as finish:
        finish.code = _run(task, options, finish, form, **own)
        return finish.code


def _run(task: str, options: RunOptions, finish: Finish, form: Form | None, **own: Any) -> int:
    from gemma4cli import openai_batch, rates
    from gemma4cli.companions import Companions
    from gemma4cli.schema import asked_columns
    from gemma4cli.sink import Sink
    from gemma4cli.stats import Stats

    job = prepared(task, options, **own)
    if form is not None and job.config.outputs:
        from gemma4cli.errors import UsageError

        raise UsageError("--sidecar is about one answer, and outputs make several", "Leave one of them out.")
    if options.dry_run:
        from gemma4cli.cli._plan import show

        return show(job, options, form)
    if options.on is not None:
        from gemma4cli.cli._cluster import run_on_ray

        return run_on_ray(job, options, finish, form)
    config, model, inputs, output = job.config, job.model, job.inputs, job.output
    in_openai = options.format == "openai"
    sink = Sink.open(
        output,
        task,
        inputs.columns,
        config.as_dict(),
        options.overwrite,
        fingerprint=job.fingerprint,
        resume=job.resume,
        dedupe=options.dedupe,
        stdout=_output.standard_output() if output == "-" else None,
        answers=asked_columns(config),
        shard=job.shard,
        line_of=(lambda row: openai_batch.line_of(row, config.model, int(time.time()))) if in_openai else None,
    )
    with sink:
        pending = sink.pending(inputs)
        finish.kept = {"ok": pending.kept_ok, "failed": pending.kept_failed}
        companions = None if form is None else Companions(form, lambda line: _output.print_line(f"note: {line}"))
        for notice in (*inputs.notes, *sink.notices):
            _output.print_line(f"note: {notice}")
        if companions is not None:
            companions.catch_up(sink.kept(inputs, companions.lacking))
        if pending.idle:
            if not options.quiet:
                _output.print_line(_nothing_left(pending, output))
            if in_openai and sink.path is not None:
                openai_batch.write(sink.path, config.model)
            return _exit_code(pending.kept_failed, companions, options)
        stats = Stats(pending.total, config.limits.max_failures)
        if options.verbose:
            with _output.noise_to_standard_error():
                summary = _job(config, model, pending, sink, stats, options, companions)
        else:
            log = None if sink.state is None else sink.state / "engine.log"
            with _output.noise_to(log) as path:
                try:
                    summary = _job(config, model, pending, sink, stats, options, companions)
                except Exception as error:
                    _explain(error, path, kept=log is not None)
                    raise
        if in_openai and sink.path is not None:
            openai_batch.write(sink.path, config.model)
        if sink.path is not None and job.shard is None:
            _output.write_card(sink.path)
    finish.summary = summary
    rates.record(config, stats.pace)
    if not options.quiet:
        _output.print_summary(summary, output if job.shard is None else f"{output}, shard {options.shard}")
        if pending.skipped:
            _output.print_line(f"  {pending.skipped:>6,} rows of earlier runs are kept")
        if job.shard is not None:
            _output.print_line(f"  when all {job.shard.of:,} shards are done: gemma4 merge {output}")
    return _exit_code(summary["rows"]["failed"] + pending.kept_failed, companions, options)


def _exit_code(failed: int, companions: Companions | None, options: RunOptions) -> int:
    """Says what came of the files that go with rows, and counts those that could not be written as failures."""
    if companions is None:
        return _errors.FAILED_ROWS if failed else _errors.DONE
    problems = companions.problems
    if not options.quiet:
        _output.print_line(f"  {companions.written:>6,} files written")
        for reason, rows in problems.most_common():
            _output.print_line(f"  {rows:>6,} rows have no file: {reason}")
    return _errors.FAILED_ROWS if failed or problems else _errors.DONE


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


def _nothing_left(pending: Any, output: str) -> str:
    failed = f", {pending.kept_failed:,} of them failed; --retry-failed does those again" if pending.kept_failed else ""
    rows = "1 row is" if pending.skipped == 1 else f"{pending.skipped:,} rows are"
    return f"nothing is left to do: {rows} in {output}{failed}"


def _job(
    config: Any, model: Any, pending: Any, sink: Any, stats: Any, options: RunOptions, companions: Companions | None
) -> dict[str, Any]:
    import queue

    from gemma4cli import pipeline, resources, stop
    from gemma4cli.engine import open_fleet
    from gemma4cli.pool import RenderPool
    from gemma4cli.render import RenderJob

    events: queue.SimpleQueue[pipeline.Event] = queue.SimpleQueue()
    limits = config.limits

    def drain(asked: stop.Stop) -> None:
        # Nothing can finish before the model is loaded, so then there is nothing to wait for.
        events.put(asked if stats.generating else stop.Stop(0.0))
        if stats.generating and not options.quiet:
            _output.print_line(
                f"stopping: up to {limits.grace_s:g} s for the rows in the engine; once more stops at once"
            )

    def kill() -> None:
        _output.console().show_cursor()
        fleet.kill()

    def notice(line: str) -> None:
        if not options.quiet:
            # Where nobody reads it any more, which is no engine's concern, rich would end the thread.
            with contextlib.suppress(OSError, SystemExit):
                _output.print_line(f"note: {line}")

    with (
        _output.display(stats, f"{config.task} with {model.name}", options.quiet),
        contextlib.closing(open_fleet(config, model, stats.engine_ready, notice, options.verbose)) as fleet,
    ):
        if options.verbose:
            for name, value in sorted(fleet.describe().get("settings", {}).items()):
                _output.print_line(f"  {name} = {value}")
        rows = None if config.cuts else pending.total
        room = resources.bytes_in_flight(len(fleet))
        job = RenderJob(config, model, fleet.renderer)
        pool = RenderPool(job, limits.row_timeout_s, events.put, rows, limits.readers)
        try:
            with stop.on_signals(limits.grace_s, drain, kill):
                return pipeline.run(config, pending, pool, fleet, sink, stats, events, companions, room)
        finally:
            pool.close()


def _explain(error: Exception, log: Any, kept: bool) -> None:
    """Adds to an engine's error what its log says the cause was."""
    from gemma4cli.errors import EngineError

    if not isinstance(error, EngineError):
        return
    cause = _output.cause_in(log)
    lines = [f"The cause, by its log: {cause}"] if cause else []
    lines.append(f"Its whole log: {log}" if kept else "Run again with -v to see its whole log.")
    error.hint = "\n".join(filter(None, [*lines, error.hint]))
