"""The checkpoint's forward pass for training, without whatever depends on the contents of a batch.

The modules are those of transformers; only the glue between them is here. In transformers it looks into masks and
counts on the host, which keeps a graph of the device's work from being recorded, and one forward pass of so small a
model is nearly all launches. `tests/tiny` holds the two against each other.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torchvision.transforms.v2 import functional as vision
from transformers import AutoConfig, AutoFeatureExtractor, Gemma4ForConditionalGeneration
from transformers.models.gemma4 import modeling_gemma4

from gemma4cli.tiny.blueprint import PATCH, POOL

_WINDOW, _HOP, _FFT = 320, 160, 512


class FrontEnd:
    """The processors' arithmetic on the device: pixels to patches, samples to log-mel frames."""

    def __init__(self, checkpoint: Path, device: torch.device) -> None:
        extractor = AutoFeatureExtractor.from_pretrained(checkpoint)
        self._window = torch.from_numpy(extractor.window).to(device)
        self._filters = torch.from_numpy(extractor.mel_filters).float().to(device)
        self._floor = float(extractor.mel_floor)

    def patches(self, pixels: Tensor, grid: tuple[int, int]) -> Tensor:
        """uint8 (n, height, width, 3) to patches (n, rows * columns, 768) with values of 0 to 1."""
        rows, columns = grid
        size = [rows * PATCH, columns * PATCH]
        bicubic = vision.InterpolationMode.BICUBIC
        resized = vision.resize(pixels.permute(0, 3, 1, 2), size, bicubic, antialias=True)
        cut = (resized.float() / 255).reshape(len(pixels), 3, rows, PATCH, columns, PATCH)
        return cut.permute(0, 2, 4, 3, 5, 1).reshape(len(pixels), rows * columns, -1)

    def mel(self, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """int16 (n, samples) to features (n, frames, 128), and which frames lie wholly within the clip."""
        padded = F.pad(samples.float() / 32767, (_WINDOW // 2, 0))  # the first frame has its middle at 0 s
        frames = padded.unfold(-1, _WINDOW + 1, _HOP)[..., :_WINDOW] * self._window
        features = torch.log(torch.fft.rfft(frames, n=_FFT).abs() @ self._filters + self._floor)
        count = (lengths - _HOP - 1).div(_HOP, rounding_mode="floor") + 1
        mask = torch.arange(features.shape[1], device=samples.device)[None] < count[:, None]
        return features * mask[..., None], mask


def new_model(checkpoint: Path, seed: int, branch: float = 0.2, sharpness: float = 1.0) -> nn.Module:
    """The architecture of config.json with fresh weights, in float32.

    branch: what each block adds to the stream at first, against 1 by default, which would drown what came in.
    sharpness: deviation of attention's logits at first.
    """
    torch.manual_seed(seed)
    model: nn.Module = Gemma4ForConditionalGeneration(AutoConfig.from_pretrained(checkpoint)).float()
    for name, parameter in model.named_parameters():
        if name.endswith("position_embedding_table"):
            parameter.data.copy_(_places(*parameter.shape[1:]))
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            # Attention here has no 1 / sqrt(d) of its own; the weights of the norms carry it.
            nn.init.constant_(parameter, math.sqrt(sharpness) * parameter.numel() ** -0.25)
        elif re.search(r"post_(attention|feedforward|per_layer_input)_?\w*norm|norm_post_attn|post_layer_norm", name):
            nn.init.constant_(parameter, branch)
    return model


def _places(count: int, width: int) -> Tensor:
    """Two tables (2, count, width) of smooth waves in unlike mixtures, so that x and y can be told apart."""
    half = width // 2
    speeds = torch.exp(-math.log(1000.0) * torch.arange(half) / half)
    turns = torch.arange(count)[:, None] * speeds
    waves = torch.cat([turns.sin(), turns.cos()], -1) * 0.8
    mixtures = [torch.linalg.qr(torch.randn(width, width))[0] for _ in range(2)]
    return torch.stack([waves @ mixture for mixture in mixtures])


def hasten() -> None:
    """Replaces two of transformers' modules by shorter ones, for this whole process.

    Norms in one kernel instead of eight; linears without clipping, as long as their bounds are infinite.
    """

    def norm(self: Any, hidden_states: Tensor) -> Tensor:
        weight = self.weight if self.with_scale else None
        return F.rms_norm(hidden_states, hidden_states.shape[-1:], weight, self.eps)

    def linear(self: Any, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states, self.linear.weight)

    modeling_gemma4.Gemma4RMSNorm.forward = norm
    modeling_gemma4.Gemma4ClippableLinear.forward = linear


def answer_logits(
    model: nn.Module, kind: str, batch: dict[str, Any], front: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Logits (rows, answer, vocabulary) of the tokens that `batch["picks"]` are followed by, and media embeddings.

    front: patches of pictures or frames, or features of clips and their mask, in the model's dtype. A medium serves
    one row, or several in turn; a film's frames serve one.
    """
    soft = _hear(model, *front) if kind == "audio" else _see(model, front[0], batch["grid"])
    rows = len(batch["ids"])
    media = soft.flatten(0, 1).unflatten(0, (min(rows, len(soft)), -1))
    hidden = _read(model, batch["ids"], batch["source"], media.repeat_interleave(rows // len(media), 0))
    picked = hidden.gather(1, batch["picks"][..., None].expand(-1, -1, hidden.shape[-1]))
    cap = model.config.text_config.final_logit_softcapping
    logits: Tensor = model.lm_head(picked).float()
    return cap * torch.tanh(logits / cap), soft


def _see(model: nn.Module, patches: Tensor, grid: tuple[int, int]) -> Tensor:
    """Patches (n, rows * columns, 768) to embeddings (n, rows * columns / 9, hidden)."""
    tower = model.model.vision_tower
    rows, columns = grid
    ys, xs = torch.meshgrid(
        torch.arange(rows, device=patches.device), torch.arange(columns, device=patches.device), indexing="ij"
    )
    places = torch.stack([xs, ys], -1).reshape(1, -1, 2)
    padding = torch.zeros_like(places[..., 0], dtype=torch.bool)
    hidden = tower.patch_embedder(patches, places, padding)
    turns = tower.encoder.rotary_emb(hidden, places)
    for layer in tower.encoder.layers:
        hidden = layer(hidden, position_embeddings=turns, attention_mask=None, position_ids=places)
    squares = hidden.float().reshape(len(hidden), rows // POOL, POOL, columns // POOL, POOL, -1)
    pooled = squares.mean((2, 4)).flatten(1, 2) * math.sqrt(hidden.shape[-1])
    return model.model.embed_vision(inputs_embeds=pooled.to(hidden.dtype))


def _hear(model: nn.Module, features: Tensor, mask: Tensor) -> Tensor:
    """Features (n, frames, 128) to embeddings (n, frames / 4, hidden)."""
    tower = model.model.audio_tower
    hidden, kept = tower.subsample_conv_projection(features, mask)
    steps = torch.arange(hidden.shape[1], device=hidden.device)
    back = steps[:, None] - steps
    near = (back >= 0) & (back < tower.config.attention_context_left - 1)
    seen = tower._convert_4d_mask_to_blocked_5d(near & kept[:, None, None])
    distances = tower.rel_pos_enc(hidden)
    for layer in tower.layers:
        hidden = layer(hidden, attention_mask=seen, position_embeddings=distances)
    return model.model.embed_audio(inputs_embeds=tower.output_proj(hidden))


def _read(model: nn.Module, ids: Tensor, source: Tensor, soft: Tensor) -> Tensor:
    """Hidden states (rows, tokens, hidden). Padding is on the right, where causal attention never looks."""
    text = model.model.language_model
    media = source >= 0
    words = torch.where(media, text.padding_idx, ids)
    first = torch.arange(len(soft), device=ids.device)[:, None] * soft.shape[1]
    taken = soft.flatten(0, 1).index_select(0, (source.clamp(min=0) + first).flatten()).reshape(*ids.shape, -1)
    hidden = torch.where(media[..., None], taken, text.embed_tokens(words))
    extra = text.project_per_layer_inputs(hidden, text.get_per_layer_inputs(words, None))
    steps = torch.arange(ids.shape[1], device=ids.device)
    back = steps[:, None] - steps
    window = text.config.sliding_window
    masks = {"full_attention": None, "sliding_attention": None}
    if len(steps) > window:
        masks["sliding_attention"] = ((back >= 0) & (back < window))[None, None]
    turns = {kind: text.rotary_emb(hidden, steps[None], kind) for kind in masks}
    shared: dict[str, Any] = {}
    for i, layer in enumerate(text.layers):
        kind = text.config.layer_types[i]
        hidden = layer(
            hidden,
            extra[:, :, i],
            shared_kv_states=shared,
            position_embeddings=turns[kind],
            attention_mask=masks[kind],
            position_ids=steps[None],
        )
    result: Tensor = text.norm(hidden)
    return result
