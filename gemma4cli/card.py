"""The card of an output: a README that says to people and to the hub what its rows are and what made them.

It ends in a mark with a checksum of itself. A README without the mark, or one that is no longer what the mark says, is
somebody's own, and stays as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from gemma4cli import __version__, inspection
from gemma4cli.escaping import printable
from gemma4cli.inspection import Report
from gemma4cli.outputs import Format, Output
from gemma4cli.parts import MARK, whole_file

NAME = "README.md"
_PRIVATE = ("root",)  # tells of this machine, not of the rows
_MARK = "<!-- gemma4 card "
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"), (10**7, "1M<n<10M"))
_WORDS = {"caption": "Captions", "transcribe": "Transcripts", "annotate": "Answers"}


def write(place: Output) -> bool:
    """Writes the card into an output's folder; whether it did, for a README of others stays.

    Raises OSError, and what `inspection` raises.
    """
    path = place.path / NAME
    if place.format is not Format.FOLDER or not may_replace(path):
        return False
    with whole_file(path) as temporary:
        temporary.write_text(of_output(place, place.path.name), encoding="utf-8")
    return True


def may_replace(path: Path) -> bool:
    """Whether a README is a card that nobody changed, or none at all. Raises OSError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except UnicodeDecodeError:
        return False
    body, mark, rest = text.rpartition(_MARK)
    return bool(mark) and rest.partition(" ")[0] == _digest(body)


def of_output(place: Output, title: str) -> str:
    """The card of an output that is done. Raises as `inspection` does, and OSError."""
    report = inspection.report_at(place)
    files = sorted(place.parts.glob("*.parquet")) if place.format is Format.FOLDER else [place.path]
    schema = pq.read_schema(files[0]) if files and files[0].suffix in (".parquet", ".pq") else pa.schema([])
    made = json.loads((schema.metadata or {}).get(MARK, b"{}"))
    body = text_of(report, schema, made, data_files(place), title)
    return f"{body}{_MARK}{_digest(body)} -->\n"


def data_files(place: Output) -> str:
    """Where the rows lie in a repository."""
    return {Format.FOLDER: "data/*.parquet", Format.PARQUET: "data/train.parquet", Format.JSONL: "data/train.jsonl"}[
        place.format
    ]


def text_of(report: Report, schema: pa.Schema, made: Mapping[str, Any], files: str, title: str) -> str:
    """The card's text, up to its mark.

    Args:
        made: what the output's metadata say of the settings.
    """
    rows = report.ok + report.failed + report.skipped
    size = next((word for most, word in _SIZES if rows < most), "n>10M")
    head = {
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": files}]}],
        "size_categories": [size],
        "tags": ["gemma4cli", "synthetic"],
    }
    task = str(made.get("task", ""))
    model = f"`{_line(_model(made))}`" if "model" in made else "a Gemma 4 model"
    lines = [
        "---",
        yaml.safe_dump(head, sort_keys=False).rstrip(),
        "---",
        "",
        f"# {_line(title)}",
        "",
        f"{_WORDS.get(task, 'Rows')} by {model}, made with gemma4cli {__version__}. What a model says may be wrong.",
        "",
        "## Figures",
        "",
        "| | |",
        "|---|---|",
        f"| rows | {rows:,} |",
        f"| ok | {report.ok:,} |",
        f"| failed | {report.failed:,} |",
    ]
    lines += [f"| skipped | {report.skipped:,} |"] if report.skipped else []
    lines += [f"| finished by {_line(reason)} | {count:,} |" for reason, count in report.finish_reasons.items()]
    lines += [f"| {kind} tokens | {count:,} |" for kind, count in report.tokens.items() if count]
    lines += [f"| failed at {group.stage}: {_line(group.type)} | {group.rows:,} |" for group in report.failures]
    lines += ["", *_asked(made), *_settings(made), *_columns(schema)]
    if report.earlier:
        lines += ["Some rows were made with other settings before; the metadata of the Parquet files have them.", ""]
    return "\n".join(lines) + "\n"


def _asked(made: Mapping[str, Any]) -> list[str]:
    """The prompts, as they are."""
    lines: list[str] = []
    prompt = made.get("prompt")
    asked = {"prompt": prompt} if isinstance(prompt, str) else dict(prompt or {})
    outputs = made.get("outputs")
    for name, own in outputs.items() if isinstance(outputs, Mapping) else ():
        asked[f"outputs.{name}"] = own.get("prompt") if isinstance(own, Mapping) else own
    for name, text in {"system": made.get("system"), **asked}.items():
        if text:
            shown = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False, indent=1)
            fence = "```" if "```" not in shown else "~~~~~~"
            lines += [f"**{_line(name)}**", "", f"{fence}text", shown, fence, ""]
    return ["## Asked", "", *lines] if lines else []


def _settings(made: Mapping[str, Any]) -> list[str]:
    found = {name: made[name] for name in ("task", "engine") if name in made}
    found |= {"model": _model(made)} if "model" in made else {}
    for section in ("sampling", "media"):
        values = made.get(section)
        found |= {
            name: value
            for name, value in (values.items() if isinstance(values, Mapping) else ())
            if value is not None and value is not False and value != [] and name not in _PRIVATE
        }
    rows = [f"| {_line(name)} | `{_line(json.dumps(value, ensure_ascii=False))}` |" for name, value in found.items()]
    return ["## Settings", "", "| | |", "|---|---|", *rows, ""] if rows else []


def _model(made: Mapping[str, Any]) -> str:
    """The model's name; of a folder here, no more than its own."""
    name = str(made["model"])
    return name.rstrip("/").rpartition("/")[2] if name.startswith(("/", ".", "~")) else name


def _columns(schema: pa.Schema) -> list[str]:
    rows = [f"| `{_line(field.name)}` | `{_line(str(field.type))}` |" for field in schema]
    return ["## Features", "", "| column | type |", "|---|---|", *rows, ""] if rows else []


def _line(text: Any) -> str:
    """A text fit for a cell of a table."""
    shown = " ".join(printable(str(text)).split()).replace("|", "\\|").replace("`", "'")
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
