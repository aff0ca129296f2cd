"""gemma4 caption."""

from __future__ import annotations

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import RunOptions, takes
from gemma4cli.cli._run import run_task


@takes(RunOptions)
@reports_errors
def caption(options: RunOptions) -> int:
    """Describe images and videos.

    [bold]Examples[/]

      gemma4 caption images/
      gemma4 caption a.jpg b.png 'more/*.webp' -o captions.parquet
      gemma4 caption clips/ -p "What is the weather like?" --max-soft-tokens 70

    One row out for each file or manifest row in, in gemma4-caption/ unless
    -o says otherwise. A file that cannot be read is a failed row with the
    reason.
    """
    return run_task("caption", options)
