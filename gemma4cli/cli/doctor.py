"""gemma4 doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import flag

if TYPE_CHECKING:
    from gemma4cli import checks

OPTIONS = "Options"  # as Typer calls the panel of those that are in none


@reports_errors
def doctor(
    model: Annotated[str, flag("--model", "-m", panel=OPTIONS, help="The model to look for.")] = "E4B",
    gpus: Annotated[
        str | None, flag("--gpus", panel=OPTIONS, metavar="N|all|I,J", help="How a run would group them.")
    ] = None,
    tensor_parallel: Annotated[
        int, flag("--tensor-parallel", panel=OPTIONS, metavar="N", min=1, help="GPUs that an engine takes.")
    ] = 1,
    pipeline_parallel: Annotated[
        int, flag("--pipeline-parallel", panel=OPTIONS, metavar="N", min=1, help="Times these.")
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
