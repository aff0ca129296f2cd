"""gemma4 doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from gemma4cli.cli._errors import reports_errors


@reports_errors
def doctor(
    model: Annotated[
        str,
        typer.Option("--model", "-m", envvar="GEMMA4_MODEL", show_envvar=False, help="The model to look for."),
    ] = "E4B",
) -> int:
    """Check this installation: what works, what does not, and what to do about it.

    [bold]Examples[/]

      gemma4 doctor
      gemma4 doctor --model 31B
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
    for check in checks.CHECKS:
        with noise_to(None):
            found = checks.findings(check, model)
        for finding in found:
            report.print(f"{marks[finding.state]}  [bold]{escape(finding.subject)}[/]  ", end="")
            report.print(finding.message, markup=False, soft_wrap=True)
            if finding.advice:
                report.print(f"        {finding.advice}", markup=False, soft_wrap=True)
            bad = bad or finding.state is checks.State.BAD
    return 1 if bad else 0
