"""gemma4 annotate."""

from __future__ import annotations

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import AnswerOptions, takes
from gemma4cli.cli._run import run_task


@takes(AnswerOptions)
@reports_errors
def annotate(options: AnswerOptions) -> int:
    """Ask your own question of each row: images, audio and video, mixed and several to a row.

    [bold]Examples[/]

      gemma4 annotate rows.jsonl --prompt "What is the brand?" -o out/
      gemma4 annotate rows.parquet --prompt-column question -o answers/
      gemma4 annotate photos/ -p "Is there a person?" --choices yes,no
      gemma4 annotate photos/ -p "Describe it as JSON." --schema item.json

    A manifest's other columns go along to the output; one that has the name
    of a column of ours becomes input_NAME.
    """
    return run_task("annotate", options)
