"""Engine inputs that are built here are those that vLLM's own renderer makes of the same media. Without an engine."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gemma4cli import gemma, models
from gemma4cli.engine import towers
from gemma4cli.engine.base import Request, Turns
from gemma4cli.engine.vllm_render import VllmRenderer
from gemma4cli.errors import RenderError
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.overrides import Overrides, build

# The warnings of torch and transformers are not ours to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

SIZES = [
    (1920, 1080), (1080, 1920), (640, 480), (224, 224), (48, 48), (1056, 576), (161, 121), (999, 1001),
    (1, 1), (2, 3), (3, 7), (3, 900), (900, 3), (1, 50), (50, 1), (4000, 33), (33, 4000), (97, 4801),
]  # fmt: skip
STRIPS = [(17, 1190), (1190, 17), (1, 70), (70, 1), (2, 280), (1120, 1)]  # vLLM counts some of them one short


@dataclass(frozen=True)
class Renderers:
    ours: VllmRenderer
    theirs: VllmRenderer

    def pair(self, *parts: Any, budget: int = 280, system: str = "") -> tuple[Any, Any]:
        request = Request(7, parts, system, budget, 16)
        return self.ours.render(request), self.theirs.render(request)


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def renderers(request: pytest.FixtureRequest) -> Renderers:
    from gemma4cli.engine.vllm import VllmEngine

    told = build(
        "annotate",
        Overrides(
            model="tiny",
            engine_args=(
                f"dtype={request.param}",
                'limit_mm_per_prompt={"image": 3, "audio": 2, "video": 2}',
            ),
        ),
    )
    engine = VllmEngine.configured(told, models.find("tiny"), False)
    ours = engine.renderer
    assert isinstance(ours, VllmRenderer)
    assert ours._direct is not None
    return Renderers(ours, VllmRenderer(engine._config, direct=False))


def picture(width: int, height: int, seed: int = 0) -> Image:
    return Image(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8), width, height)


def video(width: int, height: int, times: tuple[float, ...]) -> Video:
    frames = np.random.default_rng(1).integers(0, 256, (len(times), height, width, 3), np.uint8)
    return Video(frames, times, tuple(range(len(times))), times[-1] + 1, width, height, 1.0, len(times))


def sound(samples: int, seed: int = 2) -> Audio:
    noise = np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32)
    return Audio(noise, samples / 16_000)


def data(payload: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {kind: [item.get_data() for item in items] for kind, items in payload["mm_kwargs"].items()}


def assert_same(ours: Any, theirs: Any) -> None:
    """Tokens, places, fields, how they batch, and all values."""
    import torch

    assert (ours.tokens, ours.nbytes) == (theirs.tokens, theirs.nbytes)
    a, b = ours.payload, theirs.payload
    assert a["type"] == b["type"]
    assert a["prompt"] == b["prompt"]
    assert list(a["prompt_token_ids"]) == list(b["prompt_token_ids"])
    if a["type"] == "token":
        return
    assert {kind: len(names) for kind, names in a["mm_hashes"].items()} == {
        kind: len(names) for kind, names in b["mm_hashes"].items()
    }
    for kind, places in b["mm_placeholders"].items():
        for one, other in zip(a["mm_placeholders"][kind], places, strict=True):
            assert (one.offset, one.length) == (other.offset, other.length)
            assert torch.equal(one.is_embed, other.is_embed)
    mine, other_data = data(a), data(b)
    assert mine.keys() == other_data.keys()
    for kind, items in other_data.items():
        for i, (one, other) in enumerate(zip(mine[kind], items, strict=True)):
            assert one.keys() == other.keys()
            for name in other:
                x, y = one[name], other[name]
                if not isinstance(y, torch.Tensor):
                    assert x == y, name
                    continue
                assert (x.dtype, x.shape) == (y.dtype, y.shape), name
                assert torch.equal(x, y), name
                fields = a["mm_kwargs"][kind][i][name].field, b["mm_kwargs"][kind][i][name].field
                assert type(fields[0]) is type(fields[1])
                assert fields[0].keep_on_cpu == fields[1].keep_on_cpu


@pytest.mark.parametrize("budget", gemma.BUDGETS)
def test_pictures_of_all_sizes_become_the_same_bits(renderers: Renderers, budget: int) -> None:
    for width, height in SIZES:
        if gemma.engine_agrees(width, height, budget):
            assert_same(*renderers.pair(picture(width, height), "What?", budget=budget))


@pytest.mark.parametrize("budget", gemma.BUDGETS)
def test_strips_that_vllm_counts_wrongly_are_as_transformers_has_them(renderers: Renderers, budget: int) -> None:
    import torch
    from PIL import Image as Pillow

    hf = renderers.ours._renderer.mm_processor.info.get_hf_processor()
    for width, height in STRIPS:
        strip = picture(width, height)
        expected = hf.image_processor([Pillow.fromarray(strip.pixels)], max_soft_tokens=budget, return_tensors="pt")
        ready = renderers.ours.render(Request(0, (strip, "What?"), "", budget, 16))
        (item,) = data(ready.payload)["image"]
        assert ready.tokens.image == expected["num_soft_tokens_per_image"][0]
        assert ready.payload["prompt_token_ids"].count(hf.image_token_id) == ready.tokens.image
        assert torch.equal(item["pixel_values"], expected["pixel_values"][0].to(item["pixel_values"].dtype))
        assert torch.equal(item["pixel_position_ids"], expected["image_position_ids"][0])


def test_sounds_become_the_same_features(renderers: Renderers) -> None:
    for samples in (161, 162, 640, 1_600, 15_999, 16_000, 160_007, 479_999, 480_000):
        assert_same(*renderers.pair(sound(samples), "What?"))


def test_videos_become_the_same_frames_and_times(renderers: Renderers) -> None:
    for width, height, times in [
        (320, 240, (0.0, 0.5, 59.9, 60.0, 3599.0)),
        (240, 320, (0.0,)),
        (528, 288, tuple(i * 0.37 for i in range(32))),
        (3, 64, (0.0, 6001.5)),
    ]:
        assert_same(*renderers.pair(video(width, height, times), "What?"))


def test_mixed_rows_and_texts_are_the_same(renderers: Renderers) -> None:
    clip = video(64, 48, (0.0, 1.0))
    assert_same(*renderers.pair("Only text."))
    assert_same(*renderers.pair("One", picture(64, 48), sound(16_000), "two", picture(48, 64, 1), system="Be brief."))
    assert_same(*renderers.pair(picture(9, 9), clip, "then", picture(64, 64), clip, picture(30, 60, 3), "?"))
    assert_same(*renderers.pair(sound(8_000), sound(20_000, 5), clip, "?", budget=70))


def test_examples_before_a_row_are_the_same(renderers: Renderers) -> None:
    turns = (
        Turns((picture(64, 48), sound(16_000), "What?"), "A picture.", "example-a"),
        Turns(("And?",), "Nothing.", "example-"),
    )
    request = Request(7, (picture(48, 64, 1), "Then?"), "Be brief.", 70, 16, turns=turns)
    for _ in range(2):  # what is kept of examples is not changed by rows
        assert_same(renderers.ours.render(request), renderers.theirs.render(request))


def test_rows_of_one_renderer_do_not_share_anything(renderers: Renderers) -> None:
    """What is kept from row to row, prompts and positions, is not changed by the rows."""
    first = renderers.ours.render(Request(1, (picture(64, 48), "What?"), "", 70, 16))
    second = renderers.ours.render(Request(2, (picture(48, 64), "What?"), "", 280, 16))
    again = renderers.ours.render(Request(1, (picture(64, 48), "What?"), "", 70, 16))
    assert_same(first, again)
    # The engine takes media of one name for the same media, and a row may come again with less of it.
    names = {ready.payload["mm_hashes"]["image"][0] for ready in (first, second, again)}
    assert len(names) == 3


def test_too_many_media_are_told_alike(renderers: Renderers) -> None:
    many = [picture(9, 9)] * 4
    for renderer in (renderers.ours, renderers.theirs):
        with pytest.raises(RenderError, match="At most 3 image") as caught:
            renderer.render(Request(0, (*many, "What?"), "", 70, 16))
        assert caught.value.type == "too_many_media"


def test_a_prompt_that_is_too_long_is_told_alike(renderers: Renderers) -> None:
    for renderer in (renderers.ours, renderers.theirs):
        with pytest.raises(RenderError) as caught:
            renderer.render(Request(0, (picture(9, 9), "word " * 20_000), "", 70, 16))
        assert caught.value.type == "prompt_too_long"


def test_media_have_one_form_wherever_they_are_rendered(renderers: Renderers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that renders for another's engine may have no GPU, and would choose another form for itself."""
    parts = (picture(100, 80), video(64, 64, (0.0, 1.0)), sound(16_000), "What is it?")
    for here, elsewhere in (("packed", "vllm"), ("vllm", "packed")):
        monkeypatch.setenv(towers.SWITCH, here)
        made = pickle.dumps(VllmRenderer(renderers.ours._config))
        monkeypatch.setenv(towers.SWITCH, elsewhere)
        payload = pickle.loads(made).render(Request(7, parts, "", 280, 16)).payload
        fields = {name: each for items in payload["mm_kwargs"].values() for name, each in items[0].items()}
        assert (str(fields["pixel_values"].data.dtype) == "torch.uint8") == (here == "packed")
        assert all(fields[name].field.keep_on_cpu == (here == "packed") for name in towers.ON_CPU)
