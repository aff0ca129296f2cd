"""gemma4 inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemma4cli.cli._errors import reports_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gemma4cli.inspection import Report


@reports_errors
def inspect(
    output: Annotated[str, typer.Argument(metavar="OUTPUT", help="What -o named: a folder, .parquet or .jsonl file.")],
    failed: Annotated[
        bool, typer.Option("--failed", help="Print the inputs of failed rows as a manifest, to run again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Say what an output holds: done, failed and why, left, tokens, slowest rows.

    [bold]Examples[/]

      gemma4 inspect gemma4-caption
      gemma4 inspect captions.parquet --json
      gemma4 inspect out --failed > failed.jsonl && gemma4 caption failed.jsonl

    Works while the job is running, after it was interrupted, and when it is
    done. To do failed rows again in their place: the command, --retry-failed.
    In a manifest of failed rows, a row's own prompt is its column `prompt`.
    """
    import sys

    from rich.console import Console

    from gemma4cli import inspection, strict_json
    from gemma4cli.cli._stdout import write_lines
    from gemma4cli.errors import JobError

    without = 0
    lines: Iterator[bytes]
    try:
        _refuse_no_name(output)
        if failed:
            records, without = inspection.failed_inputs(output)
            lines = (strict_json.encode(record) for record in records)
        elif as_json:
            lines = iter([strict_json.encode(inspection.inspect(output).as_dict(), indent=2)])
        else:
            width = Console().width if sys.stdout is not None and sys.stdout.isatty() else None
            told = _lines(inspection.inspect(output))
            lines = ((line if width is None else _cut(line, width)).encode(errors="backslashreplace") for line in told)
    except OSError as error:
        raise JobError(
            f"cannot read {_plain(str(error.filename or output))}: {error.strerror or error}", "Is it yours to read?"
        ) from error
    write_lines(lines)
    if without:
        rows = "1 failed row has" if without == 1 else f"{without:,} failed rows have"
        typer.echo(f"{rows} no input that could be named: its bytes are in the manifest, or unreadable", err=True)
    return 0


def _refuse_no_name(output: str) -> None:
    """An empty text or a working folder that holds no rows is not an output, whatever its state folder is of."""
    from pathlib import Path

    from gemma4cli import outputs
    from gemma4cli.errors import UsageError

    hint = "name what -o named: a folder, a .parquet or a .jsonl file"
    if not output:
        raise UsageError("the name of the output is empty", hint)
    place = outputs.locate(output)
    if (
        place.format is outputs.Format.FOLDER
        and place.state.is_dir()
        and not any(path.is_file() for path in place.state.iterdir())
    ):
        # X.parquet in this folder has its state in .gemma4cli/X.parquet/.
        inside = sorted(str(Path(output, path.name)) for path in place.state.iterdir() if path.is_dir())
        raise UsageError(
            f"{_plain(output)} is not an output, only the folder of one",
            f"Try {_plain(inside[0])}." if inside else hint,
        )


def _lines(report: Report) -> list[str]:
    owner = f" ({report.owner})" if report.owner else ""
    skipped = f", {report.skipped:,} skipped" if report.skipped else ""
    left = f", {report.left:,} left" if report.left else ""
    lines = [f"{report.output}: {report.state}{owner}"]
    lines.append(_field("rows", f"{report.ok:,} ok, {report.failed:,} failed{skipped}{left}"))
    if report.shards:
        lines.append(_field("shards", _shards(report)))
    if report.finish_reasons:
        reasons = (f"{rows:,} {reason}" for reason, rows in report.finish_reasons.items())
        lines.append(_field("finished by", ", ".join(reasons)))
    tokens = report.tokens
    if any(tokens.values()):
        kinds = ", ".join(f"{tokens[name]:,} {name}" for name in ("image", "audio", "video") if tokens[name])
        given = f"{tokens['prompt']:,} in" + (f" ({kinds})" if kinds else "")
        lines.append(_field("tokens", f"{given}, {tokens['output']:,} out"))
    if report.mean_ms:
        times = ", ".join(f"{name} {ms:,.1f}" for name, ms in report.mean_ms.items())
        lines.append(_field("mean ms", times))
    if report.last_run:
        rates = report.last_run
        rate = f"{rates.get('rows_per_s', 0):,.1f} rows/s, {rates.get('output_tokens_per_s', 0):,.0f} output tokens/s"
        lines.append(_field("last run", rate))
    for group in report.failures:
        lines.append(_field("failed", f"{group.rows:,} {group.stage} {group.type}, such as {_plain(group.id)}:"))
        lines.append(_field("", _plain(group.message or "")))
    for row in report.slowest:
        bucket = f" ({row['bucket']})" if row["bucket"] else ""
        lines.append(_field("slow", f"{row['ms']:,.0f} ms {_plain(row['id'])}{bucket}"))
    lines += [_field("note", notice) for notice in report.notices]
    return lines


def _shards(report: Report) -> str:
    states, of = report.shards, report.shards["of"]
    if len(states["done"]) == of:
        return f"all {of:,} done: gemma4 merge {_plain(report.output)}"
    said = [f"{len(states['done']):,} of {of:,} done"]
    for state in ("running", "interrupted", "not_begun"):
        names = states[state]
        if names:
            shown = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
            said.append(f"{len(names):,} {state.replace('_', ' ')} ({shown})")
    return ", ".join(said)


def _field(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _plain(text: str) -> str:
    from gemma4cli.escaping import printable

    return printable(text)


def _cut(line: str, width: int) -> str:
    """The line, no wider than the terminal: some characters take two cells of it, some none."""
    from rich.cells import cell_len, set_cell_size

    return line if cell_len(line) <= width else set_cell_size(line, max(width - 3, 0)).rstrip() + "..."
