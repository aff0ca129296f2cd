"""What caption, transcribe and annotate have in common: from a job to its run, and from its summary to an exit code."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4cli.cli import _errors, _output
from gemma4cli.cli._job import prepared
from gemma4cli.cli._options import RunOptions

if TYPE_CHECKING:
    from gemma4cli.cli._finish import Finish
    from gemma4cli.companions import Companions, Form


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
    from gemma4cli import openai_batch, rates, storage
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
    if options.overwrite and (storage.is_remote(output) or Path(output).exists()):
        _refuse_before_overwriting(config, model, options.verbose)
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


def _refuse_before_overwriting(config: Any, model: Any, verbose: bool) -> None:
    """Checks what is else checked while the engine is opened: a command that is refused takes no output away."""
    from gemma4cli import engine

    with _output.noise_to_standard_error() if verbose else _output.noise_to(None):
        engine.refuse(config, model, verbose)


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
                # The readers' memory is free before rows are put in order, which takes some as well.
                return pipeline.run(config, pending, pool, fleet, sink, stats, events, companions, room, pool.close)
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
