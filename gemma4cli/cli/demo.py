"""gemma4 demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemma4cli.cli._errors import FAILED_ROWS, reports_errors
from gemma4cli.cli._options import RunOptions
from gemma4cli.cli._run import run_task


@reports_errors
def demo(
    model: Annotated[
        str, typer.Option("--model", "-m", envvar="GEMMA4_MODEL", show_envvar=False, help="Who answers.")
    ] = "tiny",
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Where the sample media and the rows go.")
    ] = Path("gemma4-demo"),
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="vLLM's own log, on standard error.")] = False,
) -> int:
    """Make sample media with known answers, run the tasks on them, and compare.

    [bold]Examples[/]

      gemma4 demo
      gemma4 demo --model E2B -o /tmp/demo

    Proves an installation offline with the bundled model, tiny: a test
    instrument that knows drawn shapes and spoken digits and nothing else.
    Exit code 3 if one of its answers is wrong.
    """
    from gemma4cli import demo as samples
    from gemma4cli.cli._output import console

    try:
        manifest = samples.write(output / "media")
    except OSError as error:
        from gemma4cli.errors import UsageError

        raise UsageError(
            f"cannot write to {output}: {error.strerror or error}", "Name another folder: -o DIR"
        ) from None
    options = RunOptions(
        inputs=[str(manifest)],
        model=model,
        prompt_column="prompt",
        temperature=0.0,
        max_tokens=64,
        output=str(output / "rows"),
        overwrite=True,
        verbose=verbose,
    )
    code = run_task("annotate", options)
    wrong = _show(output / "rows" / "data")
    if wrong and model == "tiny":  # which was trained until it knew them; of other models they are only questions
        console().print("tiny knows these answers: something between the media and the model is not as it should be")
        return FAILED_ROWS
    return code


def _show(data: Path) -> int:
    """The rows as a table on standard output: what was asked, what came out, whether it was right.

    Returns how many answers were not.
    """
    import pyarrow.parquet as pq
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gemma4cli.escaping import printable

    rows = pq.read_table(data).to_pylist()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("file", "asked", "answer", "right?"):
        table.add_column(name, overflow="fold")
    right = 0
    for row in rows:
        asked = {"caption": "(caption)", "transcribe": "(transcript)"}.get(row["input_task"], row["prompt"])
        answer = row["error_message"] if row["text"] is None else row["text"]
        same = answer == row["expected"]
        right += same
        table.add_row(row["id"], asked, Text(printable(answer) or '""'), "yes" if same else f"no: {row['expected']}")
    report = Console()
    report.print(table)
    report.print(f"{right} of {len(rows)} right", highlight=False)
    return len(rows) - right
