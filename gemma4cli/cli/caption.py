"""gemma4 caption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gemma4cli.cli._errors import reports_errors
from gemma4cli.cli._options import ANSWER, FILES, OUTPUT_DIR, WHOLE_NAME, AnswerOptions, flag, takes
from gemma4cli.cli._run import run_task

if TYPE_CHECKING:
    from gemma4cli.companions import CaptionForm


@takes(AnswerOptions)
@reports_errors
def caption(
    options: AnswerOptions,
    with_audio: Annotated[
        bool,
        flag("--with-audio", panel=ANSWER, help="Write down as well what is said in a video, as its transcript."),
    ] = False,
    language: Annotated[
        str | None,
        flag("--language", "-l", panel=ANSWER, help="What is spoken there, such as English; the model guesses else."),
    ] = None,
    summarise: Annotated[
        bool,
        flag("--summarise", panel=ANSWER, help="With --window: have the windows' answers summed up as the row's text."),
    ] = False,
    summary_prompt: Annotated[
        str | None,
        flag("--summary-prompt", panel=ANSWER, metavar="TEXT", help="What to ask for then, below those answers."),
    ] = None,
    sidecar: Annotated[
        str | None,
        flag(
            "--sidecar",
            panel=FILES,
            metavar="KIND",
            help="A file beside each input as well: txt, caption or json.",
        ),
    ] = None,
    output_dir: Annotated[Path | None, OUTPUT_DIR] = None,
    prefix: Annotated[str, flag("--prefix", panel=FILES, metavar="TEXT", help="Put before each caption there.")] = "",
    suffix: Annotated[str, flag("--suffix", panel=FILES, metavar="TEXT", help="Put after each caption there.")] = "",
    existing: Annotated[
        str | None,
        flag(
            "--existing",
            panel=FILES,
            metavar="WHAT",
            help="Where the file is there: skip the row, overwrite, append or prepend. Default: skip.",
        ),
    ] = None,
    whole_name: Annotated[bool, WHOLE_NAME] = False,
) -> int:
    """Describe images and videos.

    [bold]Examples[/]

      gemma4 caption images/
      gemma4 caption a.jpg b.png 'more/*.webp' -o captions.parquet
      gemma4 caption clips/ -p "What is the weather like?" -o weather/
      gemma4 caption films/ --window 60 --summarise --with-audio -o films/
      gemma4 caption photos/ --sidecar txt --prefix "a photo of " -o photos.jsonl

    One row out for each file or manifest row in, in gemma4-caption/ unless
    -o says otherwise. A file that cannot be read is a failed row with the
    reason.
    """
    return run_task(
        "caption",
        options,
        _form(sidecar, output_dir, prefix, suffix, existing, whole_name),
        with_audio=with_audio,
        language=language,
        summarise=summarise,
        summary_prompt=summary_prompt,
    )


def _form(
    sidecar: str | None, folder: Path | None, prefix: str, suffix: str, existing: str | None, whole_name: bool
) -> CaptionForm | None:
    from gemma4cli.companions import CaptionForm
    from gemma4cli.errors import UsageError
    from gemma4cli.sidecars import CaptionOptions, Existing, Sidecar

    if sidecar is None:
        if folder or prefix or suffix or existing or whole_name:
            flag = next(
                name
                for name, given in (
                    ("--output-dir", folder),
                    ("--prefix", prefix),
                    ("--suffix", suffix),
                    ("--existing", existing),
                    ("--whole-name", whole_name),
                )
                if given
            )
            raise UsageError(f"{flag} is about sidecars, and none are asked for", "Add --sidecar txt, caption or json.")
        return None
    if sidecar not in set(Sidecar):
        raise UsageError(f"--sidecar {sidecar} is not possible", f"It takes {', '.join(Sidecar)}.")
    if existing is not None and existing not in set(Existing):
        raise UsageError(f"--existing {existing} is not possible", f"It takes {', '.join(Existing)}.")
    return CaptionForm(
        CaptionOptions(
            kind=Sidecar(sidecar),
            folder=None if folder is None else folder.absolute(),
            prefix=prefix,
            suffix=suffix,
            existing=Existing(existing or Existing.SKIP),
            whole_name=whole_name,
        )
    )
