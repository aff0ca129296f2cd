"""What vLLM gets through our line against what transformers makes of the same media: prompts, first tokens, texts.

Both run the bundled checkpoint on the CPU in the same precision, so a difference is one in what the model was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gemma4cli import demo, media, models
from gemma4cli.engine.base import Request
from gemma4cli.media.decoded import Audio, Image, Video
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Kind
from gemma4cli.tiny import CHECKPOINT, CLIPS, films, prompts, scenes

# The warnings of torch and transformers are not ours to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]
SAMPLES = 50
ANSWER = 24
OPTIONS = media.MediaOptions(max_frames=8)


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    first: int
    logprob: float
    text: str


def pictures() -> Iterator[tuple[Image, str]]:
    for seed in range(1000, 1000 + SAMPLES):
        pixels = np.asarray(scenes.draw(scenes.random_scene(seed)))
        yield Image(pixels, pixels.shape[1], pixels.shape[0]), prompts.DESCRIBE_IMAGE[0]


def recordings() -> Iterator[tuple[Audio, str]]:
    from gemma4cli.records import Media

    clips = demo.clips()
    for i in range(SAMPLES):
        path = str(CLIPS / clips[i % len(clips)]["file"])
        sound = media.load(Media(path), frozenset({Kind.AUDIO}), OPTIONS)
        assert isinstance(sound, Audio)
        # Each time from a little later on, so that every one is another length.
        start = 160 * (i // len(clips)) + 7 * i
        yield Audio(sound.samples[start:], sound.duration_s), prompts.TRANSCRIBE[0]


def videos() -> Iterator[tuple[Video, str]]:
    for seed in range(2000, 2000 + SAMPLES):
        film = films.random_film(seed)
        times = [film.duration_s * i / 8 for i in range(8)]
        frames = film.frames_at(times)
        yield (
            Video(frames, tuple(times), tuple(range(8)), film.duration_s, film.width, film.height, 1.0, 8),
            prompts.DESCRIBE_VIDEO[0],
        )


KINDS = {"image": pictures, "audio": recordings, "video": videos}


async def ask(engine: Any, request: Request) -> Answer:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    payload = engine.renderer.render(request).payload
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, logprobs=1, output_kind=RequestOutputKind.FINAL_ONLY)
    (output,) = [output async for output in engine._llm.generate(payload, params, str(request.row_index))]
    completion = output.outputs[0]
    first = completion.token_ids[0]
    return Answer(payload["prompt_token_ids"], first, completion.logprobs[0][first].logprob, completion.text)


def ours(dtype: str, kinds: tuple[str, ...]) -> dict[str, list[Answer]]:
    from gemma4cli.engine import open_engine

    settings = build("annotate", Overrides(model="tiny", prompt="?", engine_args=(f"dtype={dtype}", "max_num_seqs=4")))
    engine = open_engine(settings, models.find("tiny"))
    engine.start(lambda event: None)
    try:
        answers: dict[str, list[Answer]] = {}
        row = 0
        for kind in kinds:
            answers[kind] = []
            for part, prompt in KINDS[kind]():
                request = Request(row, (part, prompt), "", 280, ANSWER)
                future = asyncio.run_coroutine_threadsafe(ask(engine, request), engine._loop)
                answers[kind].append(future.result(timeout=120))
                row += 1
        return answers
    finally:
        engine.close()


def transformers_model(dtype: str) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype=getattr(torch, dtype))
    return AutoProcessor.from_pretrained(CHECKPOINT), model.eval()


def theirs(processor: Any, model: Any, kind: str, part: Any, prompt: str) -> Answer:
    import torch
    from PIL import Image as PILImage

    content = [{"type": kind}, {"type": "text", "text": prompt}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    match part:
        case Image():
            given = {"images": [PILImage.fromarray(part.pixels)]}
        case Audio():
            given = {"audio": [part.samples]}
        case Video():
            metadata = {"fps": 1.0, "frames_indices": list(part.times_s), "total_num_frames": len(part.times_s)}
            given = {"videos": [part.frames], "video_metadata": [metadata], "do_sample_frames": False}
    inputs = processor(text=text, return_tensors="pt", add_special_tokens=False, **given).to(model.dtype)
    with torch.no_grad():
        made = model.generate(
            **inputs, max_new_tokens=ANSWER, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
    ids = inputs["input_ids"][0].tolist()
    new = made.sequences[0][len(ids) :]
    logprob = torch.log_softmax(made.logits[0][0].float(), -1)[new[0]].item()
    return Answer(ids, int(new[0]), logprob, processor.decode(new, skip_special_tokens=True))


@pytest.mark.parametrize(
    ("dtype", "kinds", "tolerance"),
    [
        ("float32", ("image", "video"), 0.001),
        # vLLM 0.32 keeps a part of the audio tower in bfloat16, whatever it is told.
        ("bfloat16", ("audio",), 0.05),
    ],
)
def test_vllm_is_given_what_transformers_would_give(dtype: str, kinds: tuple[str, ...], tolerance: float) -> None:
    answers = ours(dtype, kinds)
    processor, model = transformers_model(dtype)
    for kind in kinds:
        expected = [theirs(processor, model, kind, part, prompt) for part, prompt in KINDS[kind]()]
        pairs = list(zip(answers[kind], expected, strict=True))
        assert all(a.ids == b.ids for a, b in pairs), kind
        assert max(abs(a.logprob - b.logprob) for a, b in pairs if a.first == b.first) < tolerance, kind
        assert sum(a.text.strip() == b.text.strip() for a, b in pairs) >= 0.98 * SAMPLES, kind
