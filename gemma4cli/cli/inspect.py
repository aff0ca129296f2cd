"""gemma4 inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemma4cli.cli._errors import reports_errors

if TYPE_CHECKING:
    from gemma4cli.inspection import Report

WIDTH = 80


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
    import os
    import sys

    from gemma4cli import inspection, strict_json

    if failed:
        records, without = inspection.failed_inputs(output)
        for record in records:
            sys.stdout.buffer.write(strict_json.encode(record) + b"\n")
        if without:
            rows = "1 failed row has" if without == 1 else f"{without:,} failed rows have"
            typer.echo(f"{rows} no input that could be named: its bytes are in the manifest, or unreadable", err=True)
    elif as_json:
        document = inspection.inspect(output).as_dict()
        sys.stdout.buffer.write(strict_json.encode(document, indent=2) + b"\n")
    else:
        for line in _lines(inspection.inspect(output)):
            typer.echo(_cut(line))
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _lines(report: Report) -> list[str]:
    owner = f" ({report.owner})" if report.owner else ""
    skipped = f", {report.skipped:,} skipped" if report.skipped else ""
    left = f", {report.left:,} left" if report.left else ""
    lines = [f"{report.output}: {report.state}{owner}"]
    lines.append(_field("rows", f"{report.ok:,} ok, {report.failed:,} failed{skipped}{left}"))
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


def _field(name: str, text: str) -> str:
    return f"  {name:<12}{text}"


def _plain(text: str) -> str:
    from gemma4cli.escaping import printable

    return printable(text)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 3] + "..."
