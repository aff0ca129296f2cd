"""The order of rows, and what they are estimated to take, against what rendering them comes to."""

from __future__ import annotations

import queue
from collections import Counter
from dataclasses import replace
from itertools import chain, combinations, groupby, pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gemma4cli import plan
from gemma4cli.ahead import Ahead
from gemma4cli.config import RunConfig
from gemma4cli.engine.fake import Behaviour, FakeRenderer
from gemma4cli.models import Model
from gemma4cli.overrides import Overrides, build
from gemma4cli.plan import RUN, Planner, Rank, arranged
from gemma4cli.records import Failure, Item, Kind, Media, Rendered, Stage
from gemma4cli.render import RenderJob

MODEL = Model("tiny", "tiny", None, hears=True, sees=True, context=8192)
ANNOTATE = build("annotate", Overrides(prompt="What is it?", engine="fake"))


def row(index: int, kind: Kind | None, width: int, seconds: float, frames: int, data: bytes = b"") -> Item:
    """A row whose columns say all there is to know, so that no file is opened."""
    columns = {
        Kind.IMAGE: {"width": width, "height": 480},
        Kind.AUDIO: {"duration": seconds},
        Kind.VIDEO: {"width": width, "height": 480, "duration": seconds, "num_frames": frames},
        None: {},
    }[kind]
    if kind is None:
        return Item(index, str(index), "", failure=Failure(Stage.PARSE, "not_json", "not JSON"))
    return Item(index, str(index), "", (Media(f"/nowhere/{index}", data or None, kind),), extra=columns)


items = st.lists(
    st.tuples(st.sampled_from([*Kind, None]), st.integers(16, 4000), st.floats(0.1, 30.0), st.integers(1, 60)),
    max_size=120,
).map(lambda rows: [row(i, *each) for i, each in enumerate(rows)])


@given(items, st.sampled_from(["bucket", "input"]), st.integers(1, 40), st.integers(1, 60_000), st.booleans())
@settings(deadline=None)
def test_every_row_comes_once_and_none_far_from_its_place(
    rows: list[Item], order: str, window_rows: int, window_bytes: int, told: bool
) -> None:
    windows = list(
        arranged(
            rows,
            Planner(ANNOTATE),
            order,
            len(rows) if told else None,
            window_rows=window_rows,
            window_bytes=window_bytes,
        )
    )
    out = list(chain.from_iterable(windows))
    assert sorted(item.row_index for item in out) == list(range(len(rows)))
    start = 0
    for window in windows:  # a window is a stretch of the input
        assert {item.row_index for item in window} == set(range(start, start + len(window)))
        assert len(window) <= window_rows
        start += len(window)
    if order == "input":
        assert out == rows


def by_kind(window: list[Item]) -> dict[int, list[Rank]]:
    """The ranks of a window's rows in their order, of each kind apart."""
    planner, kinds = Planner(ANNOTATE), dict[int, list[Rank]]()
    for item in window:
        rank = planner.rank(item, None)
        kinds.setdefault(rank[0], []).append(rank)
    return kinds


def ways(window: list[Item]) -> set[bool]:
    """Whether sizes fall, by the kinds that have several."""
    return {ranks == sorted(ranks, reverse=True) for ranks in by_kind(window).values() if len(set(ranks)) > 1}


@given(items, st.integers(1, 80))
@settings(deadline=None)
def test_a_bucket_comes_once_in_a_window_and_sizes_go_one_way(rows: list[Item], window_rows: int) -> None:
    for window in arranged(rows, Planner(ANNOTATE), "bucket", len(rows), window_rows=window_rows):
        for ranks in by_kind(window).values():
            buckets = [name for name, _ in groupby(rank[2] for rank in ranks)]
            assert len(buckets) == len(set(buckets))
            assert ranks == sorted(ranks) or ranks == sorted(ranks, reverse=True)


@given(items, st.integers(1, 120))
@settings(deadline=None)
def test_kinds_take_turns_and_end_together(rows: list[Item], window_rows: int) -> None:
    planner = Planner(ANNOTATE)
    for window in arranged(rows, planner, "bucket", len(rows), window_rows=window_rows):
        kinds = [planner.rank(item, None)[0] for item in window]
        total = Counter(kinds)
        done: Counter[int] = Counter()
        for kind in kinds:
            done[kind] += 1
            for one, other in combinations(total, 2):
                apart = abs(done[one] / total[one] - done[other] / total[other])
                assert apart <= RUN / total[one] + RUN / total[other]


@given(items.filter(bool), st.integers(1, 60))
@settings(deadline=None)
def test_windows_join_in_like_buckets_and_the_largest_row_does_not_come_last(rows: list[Item], size: int) -> None:
    found = [ways(window) for window in arranged(rows, Planner(ANNOTATE), "bucket", len(rows), window_rows=size)]
    assert all(len(each) < 2 for each in found)
    assert found[-1] in ({True}, set())
    for i, (one, other) in enumerate(pairwise(found)):
        assert not one or not other or one != other, i


def test_rows_of_one_bucket_keep_the_order_of_the_input() -> None:
    rows = [row(i, Kind.IMAGE, 64 + i, 0, 0) for i in range(50)]
    assert list(chain.from_iterable(arranged(rows, Planner(ANNOTATE), total=50))) == rows


def test_windows_grow_so_that_the_first_rows_come_soon() -> None:
    rows = [row(i, Kind.IMAGE, 64, 0, 0) for i in range(3000)]
    assert [len(window) for window in arranged(rows, Planner(ANNOTATE), window_rows=1000)] == [
        256,
        512,
        1000,
        1000,
        232,
    ]


def test_rows_with_bytes_in_them_make_smaller_windows() -> None:
    rows = [row(i, Kind.IMAGE, 64, 0, 0, data=bytes(10_000)) for i in range(10)]
    windows = list(arranged(rows, Planner(ANNOTATE), "bucket", window_bytes=30_000))
    assert max(map(len, windows)) == 3


def test_no_more_of_the_input_is_read_than_a_window_and_one_row() -> None:
    taken = []

    def source():
        for i in range(1000):
            taken.append(i)
            yield row(i, Kind.IMAGE, 64, 0, 0)

    windows = arranged(source(), Planner(ANNOTATE), "bucket", 1000, window_rows=100)
    next(windows)
    assert len(taken) == 101


class TestAhead:
    def drained(self, ahead: Ahead, woken: queue.SimpleQueue) -> list[Item]:
        found = []
        while not ahead.ended:
            item = ahead.take()
            if item is not None:
                found.append(item)
            elif not ahead.ended:
                woken.get(timeout=10)
        return found

    def test_rows_come_once_and_in_order(self) -> None:
        rows = [row(i, Kind.IMAGE, 64, 0, 0) for i in range(10)]
        woken: queue.SimpleQueue = queue.SimpleQueue()
        ahead = Ahead(iter([rows[:3], [], rows[3:9], rows[9:]]), lambda: woken.put(1))
        assert self.drained(ahead, woken) == rows
        ahead.close()

    def test_the_source_that_fails_does_so_after_its_rows(self) -> None:
        rows = [row(0, Kind.IMAGE, 64, 0, 0)]

        def source():
            yield rows
            raise ValueError("gone")

        woken: queue.SimpleQueue = queue.SimpleQueue()
        ahead = Ahead(source(), lambda: woken.put(1))
        while (item := ahead.take()) is None:
            woken.get(timeout=10)
        assert item is rows[0]
        with pytest.raises(ValueError, match="gone"):
            self.drained(ahead, woken)
        assert ahead.ended
        ahead.close()

    def test_taking_never_waits_for_the_source(self) -> None:
        more: queue.SimpleQueue = queue.SimpleQueue()

        def source():
            more.get()
            yield [row(0, Kind.IMAGE, 64, 0, 0)]

        woken: queue.SimpleQueue = queue.SimpleQueue()
        ahead = Ahead(source(), lambda: woken.put(1))
        assert ahead.take() is None
        assert not ahead.ended
        more.put(1)
        woken.get(timeout=10)
        assert ahead.take() is not None
        ahead.close()

    def test_it_can_be_closed_before_its_rows_are_taken(self) -> None:
        ahead = Ahead(([row(i, Kind.IMAGE, 64, 0, 0)] for i in range(1000)), lambda: None)
        ahead.close()
        assert ahead.ended
        assert ahead.take() is None


def rendered(config: RunConfig, item: Item) -> Rendered:
    outcome = RenderJob(config, MODEL, FakeRenderer(Behaviour())).render(item)
    assert isinstance(outcome, Rendered), outcome
    return outcome


def assert_as_rendered(config: RunConfig, item: Item) -> None:
    """The plan's bucket and soft tokens are those that rendering the row comes to."""
    planner, done = Planner(config), rendered(config, item)
    loads = planner.loads(item, planner.probes(item))
    by_kind = dict.fromkeys(Kind, 0)
    for load in loads:
        assert load.kind is not None
        by_kind[load.kind] += load.tokens
    assert "+".join(load.bucket for load in loads) == done.bucket
    assert by_kind == {Kind.IMAGE: done.tokens.image, Kind.AUDIO: done.tokens.audio, Kind.VIDEO: done.tokens.video}


@given(st.integers(1, 900), st.integers(1, 900), st.sampled_from([70, 280, 1120]))
@settings(deadline=None, max_examples=40)
def test_an_image_takes_what_was_planned(width: int, height: int, budget: int) -> None:
    from io import BytesIO

    file = BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    config = build("annotate", Overrides(prompt="x", engine="fake", max_soft_tokens=budget))
    assert_as_rendered(config, Item(0, "a", "", (Media("", file.getvalue()),)))


@given(
    st.lists(st.tuples(st.integers(1, 2500), st.integers(1, 2500)), min_size=1, max_size=3),
    st.sampled_from(["auto", "auto:280", "auto:70"]),
)
@settings(deadline=None, max_examples=30)
def test_the_reader_picks_the_budget_that_was_planned(sizes: list[tuple[int, int]], wanted: str) -> None:
    from io import BytesIO

    media = []
    for size in sizes:
        file = BytesIO()
        Image.new("L", size).save(file, "PNG", compress_level=1)
        media.append(Media("", file.getvalue()))
    config = build("annotate", Overrides(prompt="x", engine="fake", max_soft_tokens=wanted))
    assert_as_rendered(config, Item(0, "a", "", tuple(media)))


def test_a_row_that_the_engine_dies_on_gets_less_than_auto_gave_it(photos: Path) -> None:
    config = build("annotate", Overrides(prompt="x", engine="fake", max_soft_tokens="auto"))
    file = photos / "large.png"
    Image.new("L", (1024, 768)).save(file)
    item = Item(0, "a", "", (Media(str(file)),))
    assert [rendered(config, each).bucket for each in (item, replace(item, smaller=True))] == ["image-280", "image-140"]
    file.unlink()


@given(st.integers(200, 480_000))
@settings(deadline=None, max_examples=25)
def test_a_sound_takes_what_was_planned(samples: int) -> None:
    from io import BytesIO

    file = BytesIO()
    soundfile.write(file, np.zeros(samples, np.int16), 16_000, format="WAV")
    assert_as_rendered(ANNOTATE, Item(0, "a", "", (Media("", file.getvalue()),)))


@pytest.mark.parametrize(("frames", "rate", "fps"), [(5, 10, None), (90, 30, None), (33, 30, None), (90, 30, 2.0)])
@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_a_video_takes_what_was_planned(
    tmp_path: Path, frames: int, rate: int, fps: float | None, container: str
) -> None:
    path = tmp_path / f"a.{container}"
    with av.open(path, "w") as output:
        stream = output.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        for _ in range(frames):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((96, 160, 3), np.uint8), format="rgb24")))
        output.mux(stream.encode())
    config = replace(ANNOTATE, media=replace(ANNOTATE.media, fps=fps))
    assert_as_rendered(config, Item(0, "a", "", (Media(str(path)),)))


def test_a_row_of_several_media_has_the_bucket_of_its_rendering(photos: Path, clip: Path) -> None:
    parts = (Media(str(photos / "a.jpg")), "and", Media(str(clip)), Media(str(photos / "b.png")))
    assert_as_rendered(ANNOTATE, Item(0, "a", "", parts))


def test_a_long_recording_is_planned_in_pieces() -> None:
    config = build("transcribe", Overrides(engine="fake"))
    item = row(0, Kind.AUDIO, 0, 3600.0, 0)
    (load,) = Planner(config).loads(item, Planner(config).probes(item))
    assert (load.pieces, load.bucket, load.tokens) == (120, "audio-30s", 120 * 750)


def test_a_part_of_a_sound_counts_as_that_part() -> None:
    config = build("annotate", Overrides(prompt="x", engine="fake", start="5", end="12"))
    item = row(0, Kind.AUDIO, 0, 60.0, 0)
    (load,) = Planner(config).loads(item, Planner(config).probes(item))
    assert load.bucket == "audio-10s"


def test_pictures_of_one_budget_are_sorted_without_opening_them() -> None:
    item = Item(0, "a", "", (Media("/nowhere/a.jpg", kind=Kind.IMAGE),))
    assert Planner(ANNOTATE).known(item) is not None
    assert next(arranged([item], Planner(ANNOTATE))) == [item]
    assert plan.buckets.image(280) == Planner(ANNOTATE).rank(item, Planner(ANNOTATE).known(item))[2]
