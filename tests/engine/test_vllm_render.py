"""What vLLM's own renderer refuses, and in which order it takes what it does not; no engine is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gemma4cli import models
from gemma4cli.engine.base import Request
from gemma4cli.errors import RenderError
from gemma4cli.media.decoded import Audio, Image
from gemma4cli.overrides import Overrides, build

# The warnings of torch and transformers are not ours to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

Render = Callable[..., Any]


@pytest.fixture(scope="module")
def render() -> Render:
    from gemma4cli.engine.vllm import VllmEngine

    told = build(
        "annotate",
        Overrides(model="tiny", engine_args=('limit_mm_per_prompt={"image": 2, "audio": 1, "video": 1}',)),
    )
    renderer = VllmEngine.configured(told, models.find("tiny"), False).renderer

    def rendered(*parts: Any, system: str = "") -> Any:
        return renderer.render(Request(0, parts, system, 280, 16)).payload

    return rendered


@pytest.fixture
def picture() -> Image:
    return Image(np.full((96, 96, 3), 90, np.uint8), 96, 96)


def test_media_and_texts_stand_in_the_order_of_the_row(render: Render, picture: Image) -> None:
    sound = Audio(np.zeros(16_000, np.float32), 1.0)
    payload = render("One", picture, "two", sound, "three", picture, system="Be brief.")
    images = [place.offset for place in payload["mm_placeholders"]["image"]]
    (audio,) = [place.offset for place in payload["mm_placeholders"]["audio"]]
    assert images[0] < audio < images[1]
    text = payload["prompt"]
    order = ("system", "Be brief.", "One", "<|image|>", "two", "<|audio|>", "three")
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)


def test_more_media_than_the_engine_takes_are_told(render: Render, picture: Image) -> None:
    with pytest.raises(RenderError, match="At most 2 image") as caught:
        render(picture, picture, picture, "What?")
    assert caught.value.type == "too_many_media"
