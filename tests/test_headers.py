"""Headers read in processes: the same as here, and a process that dies or hangs costs its file alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from gemma4cli.headers import Headers
from gemma4cli.media import MediaOptions
from gemma4cli.probe import probe
from gemma4cli.records import Item, Kind, Media

ALL = frozenset(Kind)


class Deadly(str):
    """A location that ends the process that looks at it."""

    def __getitem__(self, part: Any) -> str:
        os._exit(7)


class Endless(str):
    """A location that holds whoever looks at it for an hour."""

    def __getitem__(self, part: Any) -> str:
        time.sleep(3600)
        return ""


@pytest.fixture(scope="module")
def headers() -> Iterator[Headers]:
    with Headers(ALL, MediaOptions()) as made:
        yield made


def of(*media: Media) -> Item:
    return Item(0, "a", "a", media)


def test_rows_of_any_number_of_media_come_back_in_order(headers: Headers, photos: Path, clip: Path) -> None:
    a, b, c = Media(str(photos / "a.jpg")), Media(str(clip)), Media("/no/such/file")
    rows = [of(a), of(), of(b, c), *(of(a) for _ in range(100)), of(c, b, a)]
    expected = [tuple(probe(medium, ALL, MediaOptions()) for medium in row.media) for row in rows]
    assert headers.read(rows) == expected
    assert headers.read([]) == []


def test_large_media_in_rows_are_known_from_their_head_where_that_is_enough(headers: Headers) -> None:
    import numpy as np
    import soundfile

    picture, sound = BytesIO(), BytesIO()
    Image.effect_noise((900, 700), 90).save(picture, "PNG")
    soundfile.write(sound, np.zeros(16_000 * 20, np.int16), 16_000, format="WAV")
    for file in (picture, sound):
        assert len(file.getvalue()) > 1 << 18
        medium = Media("", file.getvalue())
        assert headers.read([of(medium)]) == [(probe(medium, ALL, MediaOptions()),)]


def test_a_header_that_ends_its_process_costs_its_file_alone(photos: Path) -> None:
    good, bad = Media(str(photos / "a.jpg")), Media(Deadly("/x"), kind=Kind.IMAGE)
    with Headers(ALL, MediaOptions()) as headers:
        found = headers.read([of(good), of(bad), of(good)])
    assert [row[0].width for row in found] == [64, None, 64]
    assert found[1][0].failure is not None
    assert (found[1][0].kind, found[1][0].failure.type) == (Kind.IMAGE, "worker_died")


def test_a_header_that_never_ends_costs_its_file_alone(photos: Path) -> None:
    good, bad = Media(str(photos / "a.jpg")), Media(Endless("/x"))
    with Headers(ALL, MediaOptions(), limit_s=3.0) as headers:
        found = headers.read([of(good), of(bad)])
    assert found[0][0].width == 64
    assert found[1][0].failure is not None
    assert found[1][0].failure.type == "timeout"


def test_what_is_closed_knows_nothing_and_starts_nothing(photos: Path) -> None:
    headers = Headers(ALL, MediaOptions())
    headers.close()
    assert headers.read([of(Media(str(photos / "a.jpg")))]) == [(probe(Media("http://x"), ALL, MediaOptions()),)]
