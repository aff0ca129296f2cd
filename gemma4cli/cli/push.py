"""gemma4 push."""

from __future__ import annotations

from typing import Annotated

import typer

from gemma4cli.cli._errors import DONE, reports_errors


@reports_errors
def push(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="What -o named: a folder, .parquet or .jsonl file.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The data set, made where it is not there.")],
    private: Annotated[bool, typer.Option("--private", help="Nobody else sees it, where it is made now.")] = False,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="BRANCH", help="The branch to push to. Default: main.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Of the commit.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> int:
    """Push an output to the Hugging Face hub as a data set, with its card.

    [bold]Examples[/]

      gemma4 push gemma4-caption/ owner/name --private
      gemma4 push s3://bucket/captions owner/name --revision v2

    Its rows take the place of those that are there. A README on the hub that
    is not a card of gemma4, or was changed by hand, stays as it is.
    """
    from gemma4cli import pushing
    from gemma4cli.cli import _output

    done = pushing.push(output, repository, private=private, revision=revision, message=message)
    if not quiet:
        _output.print_line(f"{done.rows:,} rows -> {done.address}")
        if not done.carded:
            _output.print_line("note: the README there is somebody's own, and stays as it is")
    return DONE
