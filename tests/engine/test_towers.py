"""Pictures encoded end to end, without padding, come out as transformers' own tower makes them."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gemma4cli.engine import audio_tower, towers, vision_tower
from gemma4cli.tiny import CHECKPOINT

SIZES = [(48, 48), (480, 96), (144, 240), (480, 480), (96, 768)]  # pixels; whole soft tokens


@pytest.fixture(scope="module")
def theirs() -> Any:
    from transformers import Gemma4ForConditionalGeneration

    return Gemma4ForConditionalGeneration.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture
def ours(theirs: Any) -> Any:
    """What vLLM's model is to the functions under test."""
    return SimpleNamespace(
        vision_tower=theirs.model.vision_tower,
        audio_tower=theirs.model.audio_tower,
        embed_vision=theirs.model.embed_vision,
        embed_audio=theirs.model.embed_audio,
        model_dtype=torch.float32,
    )


def picture(width: int, height: int, seed: int, padded: int) -> tuple[Tensor, Tensor]:
    """Patches in rows, as the processor cuts them, and their places; -1 where there is none."""
    columns, rows = width // 16, height // 16
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.zeros(padded, 768)
    pixels[: columns * rows] = torch.rand(columns * rows, 768, generator=generator)
    places = torch.full((padded, 2), -1)
    ys, xs = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places[: columns * rows] = torch.stack([xs, ys], -1).reshape(-1, 2)
    return pixels, places


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("at_a_time", [1, 1200, 10**6])
def test_embeddings_are_those_of_transformers(
    theirs: Any, ours: Any, stacked: bool, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = [picture(width, height, i, 2520) for i, (width, height) in enumerate(SIZES)]
    pixels, places = torch.stack([p for p, _ in pictures]), torch.stack([p for _, p in pictures])
    with torch.inference_mode():
        expected = torch.cat(tuple(theirs.model.get_image_features(pixels, places).pooler_output))
        monkeypatch.setattr(vision_tower, "PATCHES", at_a_time)
        if not stacked:  # as vLLM hands over pictures of different budgets
            used = [int((place[:, 0] >= 0).sum()) for place in places]
            pixels = [p[: count + 9 * i] for i, (p, count) in enumerate(zip(pixels, used, strict=True))]
            places = [p[: count + 9 * i] for i, (p, count) in enumerate(zip(places, used, strict=True))]
        made = vision_tower.encoded(ours, pixels, places)
    assert [len(embedding) for embedding in made] == [width * height // 48**2 for width, height in SIZES]
    torch.testing.assert_close(torch.cat(made), expected, atol=2e-5, rtol=1e-4)


def test_bytes_are_the_same_picture(ours: Any) -> None:
    pixels, places = picture(480, 96, 0, 630)
    whole = (pixels * 255).round().to(torch.uint8)
    with torch.inference_mode():
        (floats,) = vision_tower.encoded(ours, (whole.float() * vision_tower.SCALE)[None], places[None])
        (made,) = vision_tower.encoded(ours, whole[None], places[None])
    assert torch.equal(made, floats)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("frames", [[30], [48], [49], [192, 20], [400, 399, 41, 7]])
def test_sounds_are_heard_as_by_transformers(theirs: Any, ours: Any, frames: list[int], stacked: bool) -> None:
    generator = torch.Generator().manual_seed(len(frames))
    features = torch.randn(len(frames), max(frames), 128, generator=generator)
    masks = torch.arange(max(frames))[None] < torch.tensor(frames)[:, None]
    with torch.inference_mode():
        output = theirs.model.get_audio_features(features, masks)
        expected = [e[kept] for e, kept in zip(output.pooler_output, output.attention_mask, strict=True)]
        if stacked:
            made = audio_tower.heard(ours, features, masks)
        else:  # as vLLM hands over sounds of different lengths
            parts = [mask[: count + 3 * (i % 2)] for i, (mask, count) in enumerate(zip(masks, frames, strict=True))]
            sounds = [sound[: len(part)] for sound, part in zip(features, parts, strict=True)]
            made = audio_tower.heard(ours, sounds, parts)
    assert [len(embedding) for embedding in made] == [-(-count // 4) for count in frames]
    torch.testing.assert_close(torch.cat(made), torch.cat(expected), atol=2e-5, rtol=1e-4)


def test_a_tower_that_comes_out_wrong_or_breaks_is_left_to_vllm(ours: Any) -> None:
    right = [torch.ones(3, 4), torch.ones(2, 4)]

    def breaks() -> list[Tensor]:
        raise RuntimeError("no kernel image is available")

    assert towers._agree(ours, "image", 2, lambda: [x * 1.01 for x in right], lambda: right)
    assert towers._agree(ours, "image", 2, breaks, breaks)  # looked at once
    assert not towers._agree(ours, "video", 2, lambda: [x + 1 for x in right], lambda: right)
    assert not towers._agree(ours, "audio", 2, breaks, lambda: right)
    ours.encodes_packed = {}
    assert not towers._agree(ours, "image", 2, lambda: [x * torch.nan for x in right], lambda: right)


def test_one_medium_alone_does_not_settle_it_at_once(ours: Any) -> None:
    right = [torch.ones(3, 4)]
    assert towers._agree(ours, "image", 1, lambda: right, lambda: right)
    assert not towers._agree(ours, "image", 2, lambda: [x + 1 for x in right], lambda: right)
    for _ in range(towers.LOOKS):
        assert towers._agree(ours, "video", 1, lambda: right, lambda: right)
    assert towers._agree(ours, "video", 1, lambda: [x + 1 for x in right], lambda: right)


def test_pictures_in_bytes_and_in_floats_beside_each_other(ours: Any) -> None:
    pixels, places = picture(480, 96, 0, 630)
    whole = (pixels * 255).round().to(torch.uint8)
    with torch.inference_mode():
        made = vision_tower.encoded(ours, [whole, whole.float() * vision_tower.SCALE], [places, places])
    assert torch.equal(made[0], made[1])


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_passes_hold_every_picture_once_and_no_more_than_they_may(counts: list[int], most: int) -> None:
    ranges = list(vision_tower.passes(counts, most))
    assert [i for first, last in ranges for i in range(first, last)] == list(range(len(counts)))
    for first, last in ranges:
        assert last > first
        assert last - first == 1 or sum(counts[first:last]) <= most
    for (first, last), (_, after) in pairwise(ranges):
        assert sum(counts[first : last + 1]) > most, f"room was left before {after}"
