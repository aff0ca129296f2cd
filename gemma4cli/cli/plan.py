"""gemma4 plan."""

from __future__ import annotations

from typing import Annotated

import typer

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._job import prepared
from gemma4cli.cli._options import INPUT, RunOptions, flag, takes


@takes(RunOptions)
@reports_errors
def plan(
    options: RunOptions,
    task: Annotated[
        str | None, flag("--task", panel=INPUT, help="caption, transcribe or annotate. Default: caption.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", rich_help_panel="Output", help="Print one JSON document.")] = False,
) -> int:
    """Say what a job will come to: buckets, tokens, memory, time, failures.

    [bold]Examples[/]

      gemma4 plan images/
      gemma4 plan audio/ --task transcribe
      gemma4 plan rows.parquet --max-soft-tokens auto --json

    Reads headers only and loads no model. Takes the flags of the tasks, each
    of which has --dry-run for the same. Times are those of earlier runs of
    the task with the model on this machine.
    """
    from gemma4cli.cli._plan import show
    from gemma4cli.config import TASKS
    from gemma4cli.flag_values import one_of

    job = prepared(one_of("--task", task or "caption", TASKS), options)
    return show(job, options, as_json=as_json)
