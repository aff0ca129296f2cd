"""gemma4 transcribe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import ANSWER, FILES, MEDIA, OUTPUT, OUTPUT_DIR, WHOLE_NAME, RunOptions, flag, takes
from gemma4cli.cli._run import run_task

if TYPE_CHECKING:
    from gemma4cli.companions import TranscriptForm


@takes(RunOptions)
@reports_errors
def transcribe(
    options: RunOptions,
    language: Annotated[
        str | None,
        flag(
            "--language",
            "-l",
            panel=ANSWER,
            help="What is spoken, such as English; the model guesses else.",
        ),
    ] = None,
    task: Annotated[
        str | None,
        flag("--task", panel=ANSWER, help="transcribe, or translate. Default: transcribe."),
    ] = None,
    to: Annotated[
        str | None,
        flag("--to", panel=ANSWER, metavar="LANGUAGE", help="What to translate into."),
    ] = None,
    condition_on_previous_text: Annotated[
        bool,
        flag(
            "--condition-on-previous-text",
            panel=ANSWER,
            help="Tell the model what was said before each part of a long recording. Its parts then run one after "
            "another, not side by side; whether it helps depends on the model and the recording.",
        ),
    ] = False,
    vad: Annotated[
        bool | None,
        flag("--vad/--no-vad", panel=MEDIA, help="Leave out clips in which nobody speaks. Default: yes."),
    ] = None,
    max_segment: Annotated[
        float | None,
        flag(
            "--max-segment",
            panel=MEDIA,
            metavar="S",
            help="Cut recordings into parts of S seconds at most: 4 to 30, which is what the model hears. Default: 30.",
        ),
    ] = None,
    format: Annotated[
        str | None,
        flag(
            "--format",
            panel=OUTPUT,
            help="parquet, jsonl or openai for the rows; srt, vtt, tsv, txt, json or all for a file beside each input "
            "as well. Several with commas.",
        ),
    ] = None,
    output_dir: Annotated[Path | None, OUTPUT_DIR] = None,
    max_line_width: Annotated[
        int | None,
        flag("--max-line-width", panel=FILES, metavar="N", help="Characters of a subtitle line. Default: 42."),
    ] = None,
    max_lines: Annotated[
        int | None,
        flag("--max-lines", panel=FILES, metavar="N", help="Lines of a subtitle. Default: 2."),
    ] = None,
    whole_name: Annotated[bool, WHOLE_NAME] = False,
) -> int:
    """Write down what is said in audio files and videos.

    [bold]Examples[/]

      gemma4 transcribe audio/*.wav --language English
      gemma4 transcribe talks/ -o transcripts.parquet
      gemma4 transcribe interviews/ --task translate --to German -o german/
      gemma4 transcribe talks/ --format srt,vtt --output-dir subs/ -o talks.jsonl
      find . -name '*.flac' | gemma4 transcribe - -o - > transcripts.jsonl

    A recording of more than 30 seconds, which is what the model hears at a
    time, is cut where the speaker pauses. The column segments holds the
    parts with the times of the cuts. Subtitles have these times too: a model
    says what was said, not when, so no word has a time of its own.
    """
    rows, files = _split(format)
    form = _form(files, output_dir, max_line_width, max_lines, whole_name)
    target = _target(task, to, options)
    return run_task(
        "transcribe",
        replace(options, format=rows or None),
        form,
        language=language,
        translate_to=target,
        condition_on_previous_text=condition_on_previous_text,
        vad=vad,
        max_segment=max_segment,
    )


def _target(task: str | None, to: str | None, options: RunOptions) -> str | None:
    from gemma4cli.errors import UsageError

    if task not in (None, "transcribe", "translate"):
        raise UsageError(f"--task {task} is not possible", "It takes transcribe or translate.")
    if task == "translate" and to is None:
        raise UsageError("--task translate needs a language", "Example: --task translate --to German")
    if to is not None and task != "translate":
        raise UsageError("--to is about translation", f"Add --task translate to --to {to}.")
    if to is not None and options.prompt_column is not None:
        raise UsageError("--prompt-column and --task translate contradict each other", "Leave one of them out.")
    return to


def _split(format: str | None) -> tuple[str, str]:
    """What is said of the rows, and what of files, as it was said."""
    names = [name.strip().lower() for name in (format or "").split(",") if name.strip()]
    rows = [name for name in names if name in ("parquet", "jsonl", "openai")]
    return ",".join(rows), ",".join(name for name in names if name not in rows)


def _form(
    formats: str, folder: Path | None, width: int | None, lines: int | None, whole_name: bool
) -> TranscriptForm | None:
    from gemma4cli.companions import TranscriptForm
    from gemma4cli.errors import UsageError
    from gemma4cli.subtitles import CueOptions, formats_of

    wanted = formats_of(formats)
    if not wanted:
        if folder is not None or width is not None or lines is not None or whole_name:
            raise UsageError("no files beside the rows are asked for", "Add --format srt, vtt, tsv, txt, json or all.")
        return None
    usual = CueOptions()
    cues = CueOptions(usual.lines if lines is None else lines, usual.width if width is None else width)
    return TranscriptForm(wanted, None if folder is None else folder.absolute(), cues, whole_name)
