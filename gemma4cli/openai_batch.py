"""Rows as lines of an OpenAI batch's output: one object a line, with the row's id as `custom_id`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gemma4cli import parts, reading, strict_json
from gemma4cli.errors import JobError
from gemma4cli.records import Status

FILE = "openai.jsonl"
_COLUMNS = (
    "row_index", "id", "status", "text", "finish_reason", "prompt_tokens", "output_tokens",
    "error_type", "error_message",
)  # fmt: skip


def line_of(row: Mapping[str, Any], model: str, created: int) -> dict[str, Any]:
    """A row, by the names of its columns, as the answer to one request; a row without an answer as its error.

    created: when, in seconds of Unix time.
    """
    name = f"batch_req_{row['row_index']}"
    line: dict[str, Any] = {"id": name, "custom_id": row["id"], "response": None, "error": None}
    if row["status"] != Status.OK:
        code = row["error_type"] or str(row["status"])
        return {**line, "error": {"code": code, "message": row["error_message"] or "the row was skipped"}}
    prompt, output = row["prompt_tokens"] or 0, row["output_tokens"] or 0
    body = {
        "id": f"chatcmpl-{row['row_index']}",
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": row["text"]},
                "finish_reason": "length" if row["finish_reason"] in ("length", "repetition") else "stop",
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
    }
    return {**line, "response": {"status_code": 200, "request_id": name, "body": body}}


def write(folder: Path, model: str) -> Path:
    """Writes the rows of a finished data set folder, in their order, to a file in it, and says where.

    Raises JobError when it cannot be written, or the data cannot be read.
    """
    path, created = folder / FILE, int(time.time())
    try:
        with parts.whole_file(path) as temporary, temporary.open("wb") as file:
            for part in sorted((folder / "data").glob("*.parquet")):
                for table in reading.tables(part, _COLUMNS):
                    for row in table.to_pylist():
                        file.write(strict_json.encode(line_of(row, model, created)) + b"\n")
    except (OSError, parts.DamagedPartError) as error:
        message = f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        raise JobError(message, "the rows themselves are kept; run the same command again") from error
    return path
