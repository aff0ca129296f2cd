"""Files that go with rows are written when the output keeps the rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from gemma4cli.companions import CaptionForm, Companions
from gemma4cli.records import Item, Media, Row, Status
from gemma4cli.sidecars import CaptionOptions
from gemma4cli.sink import Sink


def test_a_row_that_a_crash_would_lose_has_no_file_yet_for_which_it_would_be_skipped(tmp_path: Path) -> None:
    companions = Companions(CaptionForm(CaptionOptions()), lambda _: None)
    with Sink.open(str(tmp_path / "out"), "caption", pa.schema([]), {}, part_rows=2, part_seconds=60) as sink:
        for index, there in enumerate([[], ["0.txt", "1.txt"], ["0.txt", "1.txt"]]):
            row = Row(index, str(index), f"{index}.jpg", "image", "caption", Status.OK, text="a cat")
            companions.take(Item(index, row.id, row.source, (Media(str(tmp_path / row.source)),)), row)
            sink.write(row)
            companions.write_but(sink.held)
            assert sorted(path.name for path in tmp_path.glob("*.txt")) == there
        sink.flush()
        companions.write_but(sink.held)
        assert (tmp_path / "2.txt").read_text() == "a cat\n"
        assert companions.written == 3
