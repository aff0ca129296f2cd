"""Sounds through Gemma 4's audio tower: padded so that one compiled graph serves all, and nothing waits for the GPU.

The layers are those of transformers with vLLM's weights.
"""

from __future__ import annotations

from typing import Any

from gemma4cli.engine.end_to_end import compiled_layers, laid_out, sent, used_of


def heard(model: Any, features: Any, masks: Any) -> list[Any]:
    """The embeddings of sounds: of each, `(its soft tokens, width of the language model)`.

    features: log-mel `(n, frames, 128)`, or one tensor a sound where lengths differ.
    masks: which frames are sound, `(n, frames)` or a list as well; they come before those that are not.
    """
    import torch

    tower = model.audio_tower
    chunk, device = tower.config.attention_chunk_size, tower.output_proj.weight.device
    frames = used_of(masks)
    # One sound, one block, or nothing but full blocks: a compiler would make a special case of each, in mid-job.
    length = max(4 * chunk + 4, max(frames))  # two convolutions make one token of four frames
    length += 4 * (-(-length // 4) % chunk == 0)
    n = max(2, len(frames))
    sounds = sent(torch.cat([sound[:count] for sound, count in zip(features, frames, strict=True)]), device)
    batch = sounds.new_zeros((n * length, sounds.shape[-1])).index_copy_(0, laid_out(frames, length, device)[1], sounds)
    lengths = torch.tensor([*frames, *[0] * (n - len(frames))], device="cpu").to(device, non_blocking=True)
    there = torch.arange(length, device=device) < lengths[:, None]
    states, _ = tower.subsample_conv_projection(batch.unflatten(0, (n, length)), there)
    positions = tower.rel_pos_enc(states)
    mask = _near(tower.config, -(-lengths // 4), states.shape[1])
    for layer in compiled_layers(tower, tower.layers):
        states = layer(states, attention_mask=mask, position_embeddings=positions)
    counts = [-(-count // 4) for count in frames]
    kept = states.flatten(0, 1)[laid_out(counts, states.shape[1], device)[1]]
    return list(model.embed_audio(inputs_embeds=tower.output_proj(kept).unsqueeze(0)).squeeze(0).split(counts))


def _near(config: Any, lengths: Any, most: int) -> Any:
    """Which tokens each token of a sound hears, by block, as the layers take it: `(n, 1, blocks, chunk, context)`.

    lengths: in tokens, `(n,)`.  most: the longest, padded.
    """
    import torch

    chunk, past, future = config.attention_chunk_size, config.attention_context_left - 1, config.attention_context_right
    starts = torch.arange(-(-most // chunk), device=lengths.device)[:, None] * chunk
    hearing = starts + torch.arange(chunk, device=lengths.device)
    spoken = starts + torch.arange(-past, chunk + future, device=lengths.device)
    apart = hearing[:, :, None] - spoken[:, None, :]
    near = (apart < past) & (-apart < max(future, 1))
    there = (spoken >= 0) & (spoken < lengths[:, None, None])
    return (near & there[:, :, None, :])[:, None]
