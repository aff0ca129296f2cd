"""A task on a Ray cluster: what can be refused is, then the run, and what it came to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gemma4cli.cli import _errors, _output

if TYPE_CHECKING:
    from gemma4cli.cli._finish import Finish
    from gemma4cli.cli._job import Job
    from gemma4cli.cli._options import RunOptions
    from gemma4cli.companions import Form
    from gemma4cli.outputs import Output


def run_on_ray(job: Job, options: RunOptions, finish: Finish, form: Form | None) -> int:
    """Runs a job on Ray and returns the exit code.

    Raises:
        UsageError, JobError: see `gemma4cli.errors`.
    """
    from gemma4cli import outputs

    _refuse(job, options, form)
    place = outputs.locate(job.output)
    lock = outputs.claim(place, options.overwrite)
    try:
        with _output.noise_to(place.state / "engine.log"):
            code = _run(job, options, finish, place)
            _output.write_card(place.path)
    finally:
        outputs.release(lock)
    if options.format == "openai":
        from gemma4cli import openai_batch

        openai_batch.write(Path(job.output), job.config.model)
    return code


def _refuse(job: Job, options: RunOptions, form: Form | None) -> None:
    from gemma4cli import storage
    from gemma4cli.errors import UsageError

    here = "Leave one of them out."
    for flag, given, hint in (
        ("--gpus", options.gpus is not None, "Ray has an actor for each GPU; --engines says for how many."),
        ("--shard", options.shard is not None, "Ray divides the work by itself; leave --shard out."),
        ("-o -", job.output == "-", "Name a folder or a .parquet file that all machines reach."),
        ("an output on a store", storage.is_remote(job.output), "Use a shared file system, or --shard without Ray."),
        ("--dedupe", options.dedupe, here),
        (
            "files beside the rows",
            form is not None,
            "The command without --on ray writes them afterwards.",
        ),
    ):
        if given:
            raise UsageError(f"--on ray does not go with {flag}", hint)


def _run(job: Job, options: RunOptions, finish: Finish, place: Output) -> int:
    from gemma4cli import parts
    from gemma4cli.cluster import connection, run
    from gemma4cli.stats import Stats

    quiet = options.quiet
    with connection.connected(options.address):
        work, inputs, left = run.begin(job.config, job.model, job.inputs, place, job.fingerprint, job.resume)
        kept_ok, kept_failed = sum(each.ok for each in left), sum(each.failed for each in left)
        finish.kept = {"ok": kept_ok, "failed": kept_failed}
        stats = Stats(sum(each.rows for each in left), job.config.limits.max_failures)
        if work is None:
            if not quiet:
                _output.print_line(f"nothing is left to do: {kept_ok + kept_failed:,} rows are in {job.output}")
            return _errors.FAILED_ROWS if kept_failed else _errors.DONE
        cluster = run.cluster_for(job.config, options.engines)
        what = f"{job.config.task} with {job.model.name} on Ray, {cluster.engines} engines"
        with _output.display(stats, what, quiet):
            engines = run.answer(work, inputs, left, cluster, stats)
            summary = stats.summary(job.config.as_dict(), engines)
            run.put_together(work, left)
    summary["kept"], finish.summary = finish.kept, summary
    parts.write_document(place.state / "summary.json", summary, indent=2)
    if not quiet:
        _output.print_summary(summary, job.output)
        if kept_ok + kept_failed:
            _output.print_line(f"  {kept_ok + kept_failed:>6,} rows of earlier runs are kept")
    return _errors.FAILED_ROWS if stats.failed + kept_failed else _errors.DONE
