"""What a job will come to, against what it came to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cli.forecast import Forecast, Share, forecast, kv_bytes, timed
from gemma4cli.models import Model
from gemma4cli.overrides import Overrides, build
from gemma4cli.rates import Rate
from gemma4cli.records import Failure, Item, Kind, Media, Stage
from gemma4cli.tiny import CHECKPOINT

MODEL = Model("E4B", "E4B", None, hears=True, sees=True, context=131_072)


def item(index: int, kind: Kind | None, **columns: object) -> Item:
    return Item(index, f"row {index}", "", (Media("/nowhere", kind=kind),), extra=columns)


def looked_at(*items: Item, model: Model = MODEL, task: str = "annotate", **flags: object) -> Forecast:
    prompt = None if task == "transcribe" else "What is it?"
    return forecast(items, build(task, Overrides(engine="fake", prompt=prompt, **flags)), model, 8192)


def test_rows_are_counted_by_bucket_with_their_tokens() -> None:
    found = looked_at(
        item(0, Kind.IMAGE, width=640, height=480),
        item(1, Kind.IMAGE, width=640, height=480),
        item(2, Kind.AUDIO, duration=12.0),
        item(3, Kind.VIDEO, width=640, height=480, num_frames=100, duration=4.0),
    )
    assert {name: share.rows for name, share in found.shares.items()} == {
        "image-280": 2,
        "audio-15s": 1,
        "video-32f": 1,
    }
    assert (found.tokens[Kind.IMAGE], found.tokens[Kind.AUDIO], found.tokens[Kind.VIDEO]) == (532, 300, 32 * 63)
    assert sum(share.prompt_tokens for share in found.shares.values()) == sum(found.tokens.values())


def test_what_would_fail_is_told_by_reason_with_an_example() -> None:
    found = looked_at(
        Item(0, "bad", "", failure=Failure(Stage.PARSE, "not_json", "line 1: not JSON")),
        Item(1, "gone", "", (Media("/no/such/file"),)),
        Item(2, "gone too", "", (Media("/no/such/other"),)),
        item(3, Kind.AUDIO, duration=45.0),
        Item(4, "wordy", "", (Media("/x", kind=Kind.IMAGE),), prompt="word " * 8000, extra={"width": 9, "height": 9}),
    )
    assert {key: (group.rows, group.id) for key, group in found.failures.items()} == {
        ("parse", "not_json"): (1, "bad"),
        ("fetch", "not_found"): (2, "gone"),
        ("render", "audio_too_long"): (1, "row 3"),
        ("render", "prompt_too_long"): (1, "wordy"),
    }
    assert (found.rows, found.failing) == (5, 5)


def test_a_model_without_a_tower_fails_its_rows() -> None:
    deaf = Model("31B", "31B", None, hears=False, sees=True, context=8192)
    found = looked_at(item(0, Kind.AUDIO, duration=5.0), model=deaf)
    assert list(found.failures) == [("render", "no_audio_tower")]


def test_a_long_recording_is_no_failure_where_it_is_cut() -> None:
    found = looked_at(item(0, Kind.AUDIO, duration=3600.0), task="transcribe")
    assert not found.failures
    assert (found.rows, found.inputs) == (1, 120)


def test_videos_that_are_heard_have_inputs_for_their_sound() -> None:
    video = item(0, Kind.VIDEO, width=640, height=480, num_frames=2400, duration=100.0)
    found = looked_at(video, task="caption", with_audio=True, window=50.0)
    assert {name: (share.rows, share.inputs) for name, share in found.shares.items()} == {"video-32f+audio-30s": (1, 6)}
    assert found.tokens[Kind.AUDIO] == 2500


def test_rows_on_other_hosts_are_unknown() -> None:
    found = looked_at(Item(0, "a", "", (Media("https://example.org/a"),)))
    assert list(found.shares) == ["unknown"]


def test_time_is_that_of_the_bucket_else_of_its_kind_else_not_known() -> None:
    found = Forecast(shares={
        "image-280": Share(100, 100, 30_000), "image-70": Share(100, 100, 10_000), "video-32f": Share(5, 5, 10_000),
    })  # fmt: skip
    timed(found, {"image-280": Rate(50, 5.0, 15_000), "video-32f": Rate(2, 9.0, 4000)})
    assert found.shares["image-280"].seconds == pytest.approx(10.0)
    assert found.shares["image-70"].seconds == pytest.approx(10_000 * 5 / 15_000)
    assert found.shares["video-32f"].seconds is None
    assert found.seconds == pytest.approx(10 + 10 / 3)


def test_keys_and_values_of_the_bundled_model() -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text())
    layers = config["text_config"]["layer_types"][:-2]
    assert layers.count("full_attention") == 1
    # One head each; 32 wide over a window of 512, and 64 wide over everything; keys and values of two bytes.
    assert kv_bytes(config, 1000) == 4 * (2 * 32 * 512 + 64 * 1000)
    assert kv_bytes({}, 1000) is None


def test_the_plan_of_the_corpus_names_only_failures_that_the_run_has(tmp_path: Path) -> None:
    from gemma4cli.engine.fake import Behaviour, FakeRenderer
    from gemma4cli.records import Unrendered
    from gemma4cli.render import RenderJob

    paths = {"empty.jpg": b"", "text.png": b"hello", "cut.jpg": b"\xff\xd8\xff\xe0"}
    for name, data in paths.items():
        (tmp_path / name).write_bytes(data)
    config = build("caption", Overrides(engine="fake"))
    rows = [Item(i, name, "", (Media(str(tmp_path / name)),)) for i, name in enumerate(paths)]
    found = forecast(rows, config, MODEL, 8192)
    job = RenderJob(config, MODEL, FakeRenderer(Behaviour()))
    done = [job.render(row) for row in rows]
    assert all(isinstance(each, Unrendered) for each in done)
    assert set(found.failures) == {(each.failure.stage, each.failure.type) for each in done}
