"""gemma4 merge."""

from __future__ import annotations

from typing import Annotated

import typer

from gemma4cli.cli._errors import DONE, FAILED_ROWS, reports_errors


@reports_errors
def merge(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="What -o named, for all shards alike.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> int:
    """Put the shards of an output together, when all of them are done.

    [bold]Examples[/]

      gemma4 caption images/ -o out/ --shard 0/2
      gemma4 caption images/ -o out/ --shard 1/2   # elsewhere, meanwhile
      gemma4 merge out/

    The output is then what one run would have made, and can be resumed as
    such. What is missing or not done is named, and nothing is changed.
    """
    from pathlib import Path

    from gemma4cli import merging, storage
    from gemma4cli.cli import _output
    from gemma4cli.escaping import printable

    found = merging.merge(output)
    if not storage.is_remote(output):
        _output.write_card(Path(output))
    if not quiet:
        rows = f"{found.ok:,} rows ok" + (f", {found.failed:,} failed" if found.failed else "")
        rows += f", {found.skipped:,} skipped" if found.skipped else ""
        shards = "1 shard" if found.shards == 1 else f"{found.shards:,} shards"
        how = f"{shards} merged" if found.shards else "there is nothing to merge"
        _output.print_line(f"{how}: {rows} in {printable(output)}")
    return FAILED_ROWS if found.failed else DONE
