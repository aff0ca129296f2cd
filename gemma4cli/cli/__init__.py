"""The `gemma4` command. A file for each subcommand; whatever is slow to import is imported when it is used."""

from __future__ import annotations

import os

import typer

from gemma4cli import __version__
from gemma4cli.cli._descriptors import hold_standard_descriptors
from gemma4cli.cli.annotate import annotate
from gemma4cli.cli.caption import caption
from gemma4cli.cli.demo import demo
from gemma4cli.cli.doctor import doctor
from gemma4cli.cli.inspect import inspect
from gemma4cli.cli.merge import merge
from gemma4cli.cli.plan import plan
from gemma4cli.cli.push import push
from gemma4cli.cli.recipes import recipes
from gemma4cli.cli.run import run
from gemma4cli.cli.transcribe import transcribe

app = typer.Typer(
    name="gemma4",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gemma4 {__version__}")
        raise typer.Exit


@app.callback()
def _gemma4(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Caption, transcribe and annotate files in bulk with Gemma 4.

    [bold]Examples[/]

      gemma4 caption images/
      gemma4 transcribe audio/*.wav --language English
      gemma4 annotate rows.jsonl --prompt "What is the brand?" -o out/
      gemma4 run caption-short images/

    Exit codes: 0 done, 1 the job failed, 2 usage, 3 done with failed rows
    or files that could not be written, 130 interrupted.
    """


app.command()(caption)
app.command()(transcribe)
app.command()(annotate)
app.command()(run)
app.add_typer(recipes)
app.command()(demo)
app.command()(plan)
app.command()(inspect)
app.command()(merge)
app.command()(push)
app.command()(doctor)


def main() -> None:
    """Entry point of the console script."""
    hold_standard_descriptors()
    # Before Arrow is there: its own allocator keeps most of what was freed, and the more the longer a job runs.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    app()
