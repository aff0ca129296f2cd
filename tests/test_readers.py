"""The Parquet of an output, read by DuckDB, Polars, pandas and datasets: the same columns, the same values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gemma4cli.inputs import Inputs
from gemma4cli.records import Item, Media, Row, Status
from gemma4cli.sink import Sink

ANSWER = pa.struct({"name": pa.string(), "price": pa.float64(), "tags": pa.list_(pa.string())})
COLUMNS = pa.schema(
    {
        "label": pa.int32(),
        "ratio": pa.float32(),
        "when": pa.timestamp("us", "UTC"),
        "day": pa.date32(),
        "boxes": pa.list_(pa.struct({"x1": pa.int64(), "y1": pa.int64()})),
        "words": pa.list_(pa.string()),
        "raw": pa.binary(),
        "sure": pa.bool_(),
    }
)
EXTRAS: list[dict[str, Any]] = [
    {
        "label": 7, "ratio": 0.5, "when": datetime.datetime(2024, 2, 29, 12, 30, 0, 5, datetime.UTC),
        "day": datetime.date(1969, 12, 31), "boxes": [{"x1": 1, "y1": 2}, {"x1": 3, "y1": None}],
        "words": ["é", "", "日本"], "raw": b"\x00\xff", "sure": True,
    },
    dict.fromkeys(COLUMNS.names),
    {"label": -1, "ratio": 1e30, "when": None, "day": None, "boxes": [], "words": [None], "raw": b"", "sure": False},
]  # fmt: skip
SHOWN = ("row_index", "id", "status", "text", "segments", "output_tokens", "decode_ms", "answer", *COLUMNS.names)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers")
    items = [Item(i, f"r{i}", f"r{i}", (Media(f"/m/{i}.jpg"),), extra=extra) for i, extra in enumerate(EXTRAS)]
    inputs = Inputs(len(items), COLUMNS, lambda: iter(items))
    for output in ("out", "rows.parquet"):
        field = [pa.field("answer", ANSWER)]
        with Sink.open(str(folder / output), "annotate", COLUMNS, {}, part_rows=1, answers=field) as sink:
            for item in sink.pending(inputs):
                sink.write(row_of(item))
            sink.finish({"rows": {}})
    return folder


def row_of(item: Item) -> Row:
    if item.row_index == 1:
        return Row(1, item.id, item.source, "image", "annotate", Status.FAILED, error_type="x", extra=item.extra)
    segments = ({"start": 0.0, "end": 1.5, "text": "a", "tokens": 2, "transcript": None},)
    answer = {"name": "a\tb", "price": 0.1, "tags": ["x"] * item.row_index}
    return Row(item.row_index, item.id, item.source, "image", "annotate", Status.OK, 'say "hi"\n', segments,
               output_tokens=3, decode_ms=1.25, answer=answer, extra=item.extra)  # fmt: skip


def by_duckdb(folder: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute(f"SELECT * FROM '{folder}/data/*.parquet' ORDER BY row_index")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def by_polars(folder: Path) -> list[dict[str, Any]]:
    import polars

    return polars.read_parquet(folder / "data" / "*.parquet").to_dicts()


def by_pandas(folder: Path) -> list[dict[str, Any]]:
    import pandas

    frame = pandas.read_parquet(folder / "data", dtype_backend="pyarrow")
    return frame.to_dict("records")


def by_datasets(folder: Path) -> list[dict[str, Any]]:
    import datasets

    datasets.disable_progress_bars()
    cache = str(folder.parent / "cache")
    loaded = datasets.load_dataset("parquet", data_files=f"{folder}/data/*.parquet", split="train", cache_dir=cache)
    return list(loaded)


def by_folder(folder: Path) -> list[dict[str, Any]]:
    """As the hub does: by the card."""
    import datasets

    from gemma4cli import card, outputs

    datasets.disable_progress_bars()
    card.write(outputs.locate(str(folder)))
    return list(datasets.load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "cache")))


def plain(value: Any) -> Any:
    """Values as Python has them: arrays as lists, missing ones as None."""
    if hasattr(value, "tolist") and not isinstance(value, (bytes, str)):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if (
        value is None
        or type(value).__name__ in ("NAType", "NaTType")
        or (isinstance(value, float) and math.isnan(value))
    ):
        return None
    if isinstance(value, datetime.datetime):
        return datetime.datetime.fromtimestamp(value.timestamp(), datetime.UTC)
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pandas, by_datasets, by_folder])
def test_every_reader_finds_the_same(written: Path, read: Callable[[Path], list[dict[str, Any]]]) -> None:
    rows = [row_of(Item(i, f"r{i}", f"r{i}", (), extra=extra)) for i, extra in enumerate(EXTRAS)]
    found = read(written / "out")
    assert len(found) == len(rows)
    for row, record in zip(rows, found, strict=True):
        expected = {name: row.extra[name] if name in COLUMNS.names else getattr(row, name) for name in SHOWN}
        expected["status"] = str(row.status)
        if row.extra["ratio"] is not None:
            expected["ratio"] = pytest.approx(row.extra["ratio"])
        assert {name: plain(record[name]) for name in SHOWN} == plain(expected), read.__name__
