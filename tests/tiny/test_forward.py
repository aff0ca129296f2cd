"""The forward pass for training gives what transformers' own gives, for what the processor itself makes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoImageProcessor

from gemma4cli.tiny import CHECKPOINT, batches, speech
from gemma4cli.tiny.forward import FrontEnd, answer_logits, new_model

FRONT = FrontEnd(CHECKPOINT, torch.device("cpu"))


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> batches.Steps:
    """Batches over made-up sound: one string and one way of speaking."""
    path: Path = tmp_path_factory.mktemp("pool") / "sound"
    pieces = [speech.noise(np.random.default_rng(i), 4_000) * 0.1 for i in range(11)]
    path.write_bytes((np.concatenate(pieces) * 32767).astype(np.int16).tobytes())
    pool = batches.Pool(str(path), np.arange(1, 12) * 4_000, ["3 5 0"])
    return batches.Steps(pool, 100, share=0.04, asked=2)


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return new_model(CHECKPOINT, seed=3).eval()


@pytest.mark.parametrize("kind", ["image", "audio", "video"])
def test_the_logits_are_those_of_transformers(steps: batches.Steps, model: torch.nn.Module, kind: str) -> None:
    batch = steps.batch(kind, 0)  # the first steps are of the smallest shapes
    inputs = {"input_ids": batch["ids"], "attention_mask": torch.ones_like(batch["ids"])}
    front: tuple[torch.Tensor, ...]
    if kind == "audio":
        front = FRONT.mel(batch["samples"], batch["lengths"])
        inputs |= {"input_features": front[0], "input_features_mask": front[1]}
    else:
        front = (FRONT.patches(batch["pixels"], batch["grid"]),)
        asked = len(batch["ids"]) // len(front[0]) or 1
        rows, columns = batch["grid"]
        ys, xs = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack([xs, ys], -1).reshape(1, -1, 2)
        patches = front[0].repeat_interleave(asked, 0)
        inputs |= {"pixel_values": patches, "image_position_ids": places.expand(len(patches), -1, -1)}
    with torch.inference_mode():
        theirs = model(**inputs).logits
        ours, _ = answer_logits(model, kind, batch, front)
    picked = theirs.gather(1, batch["picks"][..., None].expand(-1, -1, theirs.shape[-1]))
    torch.testing.assert_close(ours, picked, atol=1e-4, rtol=1e-4)


def test_patches_are_those_of_the_processor(steps: batches.Steps) -> None:
    batch = steps.batch("image", 0)
    processor = AutoImageProcessor.from_pretrained(CHECKPOINT)
    theirs = processor(images=list(batch["pixels"].permute(0, 3, 1, 2)), max_soft_tokens=70, return_tensors="pt")
    ours = FRONT.patches(batch["pixels"], batch["grid"])
    torch.testing.assert_close(ours, theirs["pixel_values"][:, : ours.shape[1]], atol=1e-5, rtol=0)


def test_spectrograms_are_those_of_the_processor(steps: batches.Steps) -> None:
    batch = steps.batch("audio", 0)
    extractor = AutoFeatureExtractor.from_pretrained(CHECKPOINT)
    features, mask = FRONT.mel(batch["samples"], batch["lengths"])
    for i, length in enumerate(batch["lengths"].tolist()):
        theirs = extractor([batch["samples"][i, :length].numpy() / np.float32(32767)], return_tensors="pt")
        whole = theirs["input_features"][0][theirs["input_features_mask"][0]]
        torch.testing.assert_close(features[i][mask[i]], whole, atol=3e-3, rtol=0)
