"""What headers say, without a frame being decoded, and what is wrong with them in the words of the run."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from gemma4cli import media
from gemma4cli.engine.fake import Behaviour, FakeRenderer
from gemma4cli.media import MediaOptions
from gemma4cli.models import Model
from gemma4cli.overrides import Overrides, build
from gemma4cli.probe import probe, stated
from gemma4cli.records import Item, Kind, Media, Unrendered
from gemma4cli.render import RenderJob

ALL = frozenset(Kind)
PICTURES = frozenset({Kind.IMAGE, Kind.VIDEO})
CASES = Path(__file__).parents[1].parent / "shared" / "cases"


def picture(size: tuple[int, int], form: str, **how: object) -> bytes:
    file = BytesIO()
    Image.new("RGB", size, "red").save(file, form, **how)
    return file.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_is_that_of_the_upright_picture(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = picture((40, 30), form, exif=exif)
    found, loaded = probe(Media("", data), ALL, MediaOptions()), media.load(Media("", data), ALL, MediaOptions())
    assert (found.kind, found.width, found.height) == (Kind.IMAGE, loaded.width, loaded.height)


def test_no_pixel_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    def refuse(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    for form in ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF"):
        assert probe(Media("", picture((40, 30), form)), ALL, MediaOptions()).failure is None, form


def test_sound_has_its_length(clip: Path) -> None:
    found = probe(Media(str(clip)), ALL, MediaOptions())
    assert (found.kind, found.duration_s) == (Kind.AUDIO, 1.0)


def test_an_animation_is_a_video_where_the_run_takes_it_for_one() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:], duration=100)
    medium = Media("", file.getvalue())
    assert probe(medium, ALL, MediaOptions()).kind is Kind.IMAGE
    moving = probe(medium, ALL, MediaOptions(animation_frames=16))
    assert (moving.kind, moving.frames) == (Kind.VIDEO, 3)


def test_pages_are_counted_where_they_are_wanted() -> None:
    pages = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    file = BytesIO()
    pages[0].save(file, "TIFF", save_all=True, append_images=pages[1:])
    assert [probe(Media("", file.getvalue()), ALL, MediaOptions(pages=n)).frames for n in (1, 2, None)] == [1, 2, 3]


def test_what_is_on_other_hosts_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemma4cli.media.download.download", None)
    assert probe(Media("http://127.0.0.1:9/a"), PICTURES, MediaOptions()).kind is None
    assert probe(Media("http://127.0.0.1:9/a.jpg?x=.mp4"), PICTURES, MediaOptions()).kind is Kind.IMAGE
    assert probe(Media("s3://bucket/a.mp4"), PICTURES, MediaOptions()).kind is Kind.VIDEO
    found = probe(Media("https://example.org/a", kind=Kind.AUDIO), ALL, MediaOptions())
    assert (found.kind, found.failure) == (Kind.AUDIO, None)


@pytest.mark.parametrize(
    ("kind", "columns", "expected"),
    [
        (Kind.IMAGE, {"width": 640, "height": 480}, (Kind.IMAGE, 640, 480, None, 1)),
        (Kind.AUDIO, {"duration": 2.5}, (Kind.AUDIO, None, None, 2.5, None)),
        (
            Kind.VIDEO,
            {"width": 64, "height": 48, "duration": 2, "num_frames": 50},
            (Kind.VIDEO, 64, 48, 2.0, 50),
        ),
        (Kind.VIDEO, {"width": 64, "height": 48, "duration": 2.0, "fps": 25}, (Kind.VIDEO, 64, 48, 2.0, 50)),
        (None, {"width": 64, "height": 48, "duration": 2.0}, (Kind.VIDEO, 64, 48, 2.0, None)),
        (None, {"width": 64, "height": 48}, None),  # an image or a video: the file must say
        (None, {"duration": 3.0}, (Kind.AUDIO, None, None, 3.0, None)),
        (Kind.IMAGE, {"width": 640}, None),
        (Kind.IMAGE, {"width": -1, "height": 480}, None),
        (Kind.IMAGE, {"width": "wide", "height": 480}, None),
        (Kind.IMAGE, {"width": float("nan"), "height": 480}, None),
        (Kind.IMAGE, {"width": True, "height": True}, None),
        (Kind.IMAGE, {}, None),
    ],
)
def test_columns_that_say_it_all_save_opening_the_file(kind: Kind | None, columns: dict, expected: tuple) -> None:
    found = stated(Item(0, "a", "", (Media("/nowhere", kind=kind),), extra=columns), ALL)
    shown = None if found is None else (found.kind, found.width, found.height, found.duration_s, found.frames)
    assert shown == expected


def test_columns_are_not_about_rows_of_several_media() -> None:
    two = (Media("/a", kind=Kind.IMAGE), Media("/b", kind=Kind.IMAGE))
    assert stated(Item(0, "a", "", two, extra={"width": 1, "height": 1}), ALL) is None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", None),
        (b"hello", None),
        (b"<svg></svg>", None),
        (b"\xff\xd8\xff\xe0 and no more", None),
        (b"RIFF\0\0\0\0WAVE", None),
        (b"\0\0\0\x18ftypisom\0\0\0\0isommp42", None),
        (b"OggS and no more", None),
        (picture((40, 30), "JPEG"), Kind.VIDEO),
        (picture((40, 30), "PNG"), Kind.AUDIO),
        (picture((4000, 3000), "PNG"), None),
    ],
)
@pytest.mark.parametrize("task", ["caption", "transcribe", "annotate"])
def test_what_is_wrong_is_said_as_the_run_says_it(data: bytes, kind: Kind | None, task: str) -> None:
    config = build(task, Overrides(prompt="x", engine="fake", max_pixels=1_000_000))
    medium = Media("", data, kind)
    job = RenderJob(config, Model("m", "m", None, hears=True, sees=True, context=8192), FakeRenderer(Behaviour()))
    done = job.render(Item(0, "a", "", (medium,)))
    assert isinstance(done, Unrendered)
    assert probe(medium, config.kinds, config.media.options()).failure == done.failure


@pytest.mark.parametrize("location", ["/nowhere/at/all.jpg", "/", "/dev/null", "gopher://x/y", ""])
def test_what_cannot_be_had_is_said_as_the_run_says_it(location: str) -> None:
    config = build("annotate", Overrides(prompt="x", engine="fake"))
    job = RenderJob(config, Model("m", "m", None, hears=True, sees=True, context=8192), FakeRenderer(Behaviour()))
    done = job.render(Item(0, "a", "", (Media(location),)))
    assert isinstance(done, Unrendered)
    assert probe(Media(location), ALL, config.media.options()).failure == done.failure


def cases(*kinds: str) -> list[dict]:
    if not (CASES / "cases.jsonl").is_file():
        return []
    every = [json.loads(line) for line in (CASES / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    return [entry for entry in every if entry["kind"] in kinds and entry["file"]]


@pytest.mark.cases
@pytest.mark.parametrize("entry", cases("image", "audio", "video"), ids=lambda entry: entry["file"])
def test_a_case_is_known_from_its_header_as_from_its_decoding(entry: dict) -> None:
    from gemma4cli.errors import RowError
    from gemma4cli.media import Audio, Video

    medium, options = Media(str(CASES / entry["file"]), kind=Kind(entry["kind"])), MediaOptions()
    found = probe(medium, ALL, options)
    loaded, failure = None, None
    try:
        loaded = media.load(medium, ALL, options)
    except RowError as error:
        failure = error.failure()
    assert found.failure in (None, failure)  # some faults show in the data alone
    if loaded is None:
        return
    if not isinstance(loaded, Audio):
        turned = isinstance(loaded, Video) and "rotat" in entry["file"]
        assert sorted((found.width, found.height)) == sorted((loaded.width, loaded.height))
        assert turned or (found.width, found.height) == (loaded.width, loaded.height)
    expect = entry["expect"]
    lies = abs((expect.get("declared_duration_s") or 0.0) - (expect.get("duration_s") or 0.0)) > 0.1
    if isinstance(loaded, Audio) and found.duration_s is not None and not lies:
        assert found.duration_s == pytest.approx(loaded.duration_s, abs=0.1, rel=0.02)
    if entry["file"] == "video/odd_161x121.webm":
        return  # its header has another rate than its frames
    if isinstance(loaded, Video) and found.frames is not None:
        assert found.frames == pytest.approx(loaded.total_frames, rel=0.02, abs=1)
