"""Configuration, tokenizer and processor files of the tiny checkpoint: all of it but the weights.

Key names and special tokens are those of the published Gemma 4 E checkpoints; sizes are our own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from gemma4cli.tiny import prompts, scenes

TOKENS: dict[str, str] = {
    "pad_token": "<pad>",
    "eos_token": "<eos>",
    "bos_token": "<bos>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
    "sot_token": "<|turn>",
    "eot_token": "<turn|>",
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
    "video_token": "<|video|>",
    "think_token": "<|think|>",
    "soc_token": "<|channel>",
    "eoc_token": "<channel|>",
    "std_token": "<|tool>",
    "etd_token": "<tool|>",
    "stc_token": "<|tool_call>",
    "etc_token": "<tool_call|>",
    "str_token": "<|tool_response>",
    "etr_token": "<tool_response|>",
    "escape_token": '<|"|>',
}
IDS: dict[str, int] = {name: index for index, name in enumerate(TOKENS)}

VOCABULARY = 704
SOFT_TOKENS = (70, 140, 280, 560, 1120)
DEFAULT_SOFT_TOKENS = 280
POOL = 3
PATCH = 16

_SLIDING, _FULL = "sliding_attention", "full_attention"

# One turn of the conversation after another; media stand where the message has them.
CHAT_TEMPLATE = """\
{{- bos_token -}}
{%- set turns = messages -%}
{%- set opening = '<|think|>' if enable_thinking is defined and enable_thinking else '' -%}
{%- if messages and messages[0]['role'] in ('system', 'developer') -%}
    {%- set turns = messages[1:] -%}
    {%- if messages[0]['content'] is string -%}
        {%- set opening = opening + messages[0]['content'] | trim -%}
    {%- else -%}
        {%- for part in messages[0]['content'] if part['type'] == 'text' -%}
            {%- set opening = opening + part['text'] | trim -%}
        {%- endfor -%}
    {%- endif -%}
{%- endif -%}
{%- if opening -%}
    {{- '<|turn>system\\n' + opening + '<turn|>\\n' -}}
{%- endif -%}
{%- for message in turns -%}
    {{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' -}}
    {%- if message['content'] is string -%}
        {{- message['content'] | trim -}}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'text' -%}
                {{- part['text'] | trim -}}
            {%- elif part['type'] in ('image', 'audio', 'video') -%}
                {{- '<|' + part['type'] + '|>' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{- '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|turn>model\\n' -}}
{%- endif -%}
"""


def config() -> dict[str, Any]:
    """Contents of config.json."""
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "dtype": "bfloat16",
        "bos_token_id": IDS["bos_token"],
        "eos_token_id": [IDS["eos_token"], IDS["eot_token"]],
        "pad_token_id": IDS["pad_token"],
        "boi_token_id": IDS["boi_token"],
        "eoi_token_id": IDS["eoi_token"],
        "image_token_id": IDS["image_token"],
        "video_token_id": IDS["video_token"],
        "boa_token_id": IDS["boa_token"],
        "eoa_token_id": IDS["eoa_token"],
        "eoa_token_index": IDS["eoa_token"],
        "audio_token_id": IDS["audio_token"],
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "vision_soft_tokens_per_image": DEFAULT_SOFT_TOKENS,
        "text_config": _text_config(),
        "vision_config": _vision_config(),
        "audio_config": _audio_config(),
    }


def _text_config() -> dict[str, Any]:
    # The last two layers share keys and values with the last of their kind among the first three.
    layers = [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL]
    return {
        "model_type": "gemma4_text",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size": 128,
        "hidden_size_per_layer_input": 16,
        "intermediate_size": 256,
        "num_hidden_layers": len(layers),
        "num_kv_shared_layers": 2,
        "layer_types": layers,
        "sliding_window": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": None,
        "head_dim": 32,
        "global_head_dim": 64,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attention_k_eq_v": False,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": False,
        "enable_moe_block": False,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "initializer_range": 0.02,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            _SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "bos_token_id": IDS["bos_token"],
        "eos_token_id": IDS["eos_token"],
        "pad_token_id": IDS["pad_token"],
    }


def _vision_config() -> dict[str, Any]:
    return {
        "model_type": "gemma4_vision",
        "dtype": "bfloat16",
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "patch_size": PATCH,
        "pooling_kernel_size": POOL,
        "default_output_length": DEFAULT_SOFT_TOKENS,
        # The longest side that any budget allows, a strip one soft token wide: no picture runs off the table.
        "position_embedding_size": max(SOFT_TOKENS) * POOL,
        "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
        "standardize": False,
        "use_clipped_linears": True,
    }


def _audio_config() -> dict[str, Any]:
    return {
        "model_type": "gemma4_audio",
        "dtype": "bfloat16",
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "hidden_act": "silu",
        # The next layer takes a quarter of the first number for the length of the pooled mel axis (128 / 4).
        "subsampling_conv_channels": [128, 32],
        "conv_kernel_size": 5,
        "residual_weight": 0.5,
        "attention_chunk_size": 12,
        "attention_context_left": 13,
        "attention_context_right": 0,
        "attention_logit_cap": 50.0,
        "attention_invalid_logits_value": -1e9,
        "gradient_clipping": 1e10,
        "initializer_range": 0.02,
        "output_proj_dims": 128,
        "rms_norm_eps": 1e-6,
        "use_clipped_linears": True,
    }


def generation_config() -> dict[str, Any]:
    """Contents of generation_config.json: the published sampling defaults."""
    return {
        "bos_token_id": IDS["bos_token"],
        "eos_token_id": [IDS["eos_token"], IDS["eot_token"]],
        "pad_token_id": IDS["pad_token"],
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 64,
        "top_p": 0.95,
    }


def processor_config() -> dict[str, Any]:
    """Contents of processor_config.json: image, video and audio front ends and their token counts."""
    vision = {
        "do_convert_rgb": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.0, 0.0, 0.0],
        "image_std": [1.0, 1.0, 1.0],
        "patch_size": PATCH,
        "pooling_kernel_size": POOL,
        "resample": 3,
        "rescale_factor": 1 / 255,
    }
    image = {
        "image_processor_type": "Gemma4ImageProcessor",
        "do_normalize": False,
        "max_soft_tokens": DEFAULT_SOFT_TOKENS,
        "image_seq_length": DEFAULT_SOFT_TOKENS,
    }
    video = {
        "video_processor_type": "Gemma4VideoProcessor",
        "do_normalize": True,
        "do_sample_frames": True,
        "max_soft_tokens": min(SOFT_TOKENS),
        "num_frames": 32,
        "return_metadata": False,
    }
    audio = {
        "feature_extractor_type": "Gemma4AudioFeatureExtractor",
        "feature_size": 128,
        "sampling_rate": 16000,
        "frame_length_ms": 20.0,
        "hop_length_ms": 10.0,
        "min_frequency": 0.0,
        "max_frequency": 8000.0,
        "mel_floor": 0.001,
        "dither": 0.0,
        "preemphasis": 0.0,
        "preemphasis_htk_flavor": True,
        "fft_overdrive": False,
        "input_scale_factor": 1.0,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
    }
    return {
        "processor_class": "Gemma4Processor",
        "image_seq_length": DEFAULT_SOFT_TOKENS,
        "audio_seq_length": 750,
        "audio_ms_per_token": 40,
        "image_processor": vision | image,
        "video_processor": vision | video,
        "feature_extractor": audio,
    }


def tokenizer_config() -> dict[str, Any]:
    """Contents of tokenizer_config.json."""
    basic = ("pad_token", "eos_token", "bos_token", "unk_token", "mask_token")
    named = {name: text for name, text in TOKENS.items() if name not in basic}
    return {
        "tokenizer_class": "GemmaTokenizer",
        "processor_class": "Gemma4Processor",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "padding_side": "left",
        "model_specific_special_tokens": named,
        **{name: TOKENS[name] for name in basic},
    }


def corpus() -> Iterable[str]:
    """Texts whose words the vocabulary should know, commonest last so that they weigh most."""
    for wordings in prompts.ALL:
        for text in wordings:
            yield re.sub(r"\{\w+\}", "", text)
    for text in scenes.sample_answers():
        yield from [text] * 4


def tokenizer() -> Tokenizer:
    """A byte-fallback BPE tokenizer after Gemma's pattern, with our own small vocabulary.

    Merges stay inside one word and the space before it; digits, colons and line breaks are never merged. So
    " 00:01 " is seven tokens as it is for the published models, and text that stands next to a placeholder has the
    same tokens whether it is encoded alone or within the whole prompt.
    """
    specials = list(TOKENS.values())
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    printable = [chr(code) for code in range(0x21, 0x7F)]
    learner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Split(Regex("▁?[A-Za-z]+|."), behavior="isolated")
    learner.train_from_iterator(
        corpus(),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - len(specials) - len(bytes_) - 1,
            initial_alphabet=[*printable, "▁"],
            limit_alphabet=len(printable) + 1,
            show_progress=False,
        ),
    )
    learnt = json.loads(learner.to_str())["model"]
    pieces = sorted(learnt["vocab"], key=learnt["vocab"].__getitem__)
    order = [*specials, *bytes_, "\n", *(piece for piece in pieces if piece not in specials)]
    vocabulary = {piece: index for index, piece in enumerate(order)}
    merges = [(left, right) for left, right in learnt["merges"]]
    result = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    result.normalizer = normalizers.Replace(" ", "▁")
    result.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    result.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    result.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return result


def write(folder: Path) -> None:
    """Writes every file of the checkpoint but the weights into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(),
        "generation_config.json": generation_config(),
        "processor_config.json": processor_config(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer().save(str(folder / "tokenizer.json"))
