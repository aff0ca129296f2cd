"""gemma4 transcribe."""

from __future__ import annotations

from typing import Annotated

import typer

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import ANSWER, MEDIA, RunOptions, takes
from gemma4cli.cli._run import run_task


@takes(RunOptions)
@reports_errors
def transcribe(
    options: RunOptions,
    language: Annotated[
        str | None,
        typer.Option(
            "--language",
            "-l",
            rich_help_panel=ANSWER,
            help="What is spoken, such as English; the model guesses else.",
        ),
    ] = None,
    vad: Annotated[
        bool | None,
        typer.Option(
            "--vad/--no-vad", rich_help_panel=MEDIA, help="Leave out clips in which nobody speaks. Default: yes."
        ),
    ] = None,
) -> int:
    """Write down what is said in audio files and videos.

    [bold]Examples[/]

      gemma4 transcribe audio/*.wav --language English
      gemma4 transcribe talks/ -o transcripts.parquet
      find . -name '*.flac' | gemma4 transcribe - -o - > transcripts.jsonl

    A recording of more than 30 seconds, which is what the model hears at a
    time, is cut where the speaker pauses. The column segments holds the
    parts with the times of the cuts.
    """
    return run_task("transcribe", options, language=language, vad=vad)
