"""gemma4 doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4cli.cli._errors import reports_errors

if TYPE_CHECKING:
    from gemma4cli import checks


@reports_errors
def doctor(
    model: Annotated[
        str,
        typer.Option("--model", "-m", envvar="GEMMA4_MODEL", show_envvar=False, help="The model to look for."),
    ] = "E4B",
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="N|all|I,J", envvar="GEMMA4_GPUS", show_envvar=False, help="How a run would group them."
        ),
    ] = None,
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel",
            metavar="N",
            min=1,
            envvar="GEMMA4_TENSOR_PARALLEL",
            show_envvar=False,
            help="GPUs that an engine takes.",
        ),
    ] = 1,
    pipeline_parallel: Annotated[
        int,
        typer.Option(
            "--pipeline-parallel",
            metavar="N",
            min=1,
            envvar="GEMMA4_PIPELINE_PARALLEL",
            show_envvar=False,
            help="Times these.",
        ),
    ] = 1,
) -> int:
    """Check this installation: what works, what does not, and what to do about it.

    [bold]Examples[/]

      gemma4 doctor
      gemma4 doctor --model 31B --gpus all --tensor-parallel 2
    """
    from rich.console import Console
    from rich.markup import escape

    from gemma4cli import checks
    from gemma4cli.cli._output import noise_to

    marks = {
        checks.State.OK: "[green]ok  [/]",
        checks.State.WARN: "[yellow]warn[/]",
        checks.State.BAD: "[red]bad [/]",
    }
    report, bad = Console(highlight=False), False

    def engines(model: str) -> Iterator[checks.Finding]:
        return checks.engines(gpus, tensor_parallel * pipeline_parallel)

    for check in (*checks.CHECKS, engines):
        with noise_to(None):
            found = checks.findings(check, model)
        for finding in found:
            report.print(f"{marks[finding.state]}  [bold]{escape(finding.subject)}[/]  ", end="")
            report.print(finding.message, markup=False, soft_wrap=True)
            if finding.advice:
                report.print(f"        {finding.advice}", markup=False, soft_wrap=True)
            bad = bad or finding.state is checks.State.BAD
    return 1 if bad else 0
