"""vLLM's engine input for Gemma 4, made from decoded media without the generic processors in between.

Those turn every picture into floats of 32 bits, call the tokenizer on a text made up for them, and search the prompt
for what they have put there. Here the token sequences, the names of the fields and how they batch are asked of vLLM's
own `Gemma4MultiModalProcessor`, and only the pixels take another way, to the same values.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from transformers import BatchFeature
from transformers.models.gemma4 import Gemma4AudioFeatureExtractor
from vllm.inputs import mm_input
from vllm.model_executor.models.gemma4_mm import Gemma4MultiModalProcessor
from vllm.multimodal.inputs import MultiModalKwargsItems, PlaceholderRange

from gemma4cli import gemma
from gemma4cli.engine import patches, towers
from gemma4cli.media.decoded import Audio, Image, Video

Item = tuple[Any, list[int], Any]
"""Of a medium: its fields for the model, its tokens, and which of them the encoder fills."""


class DirectInput:
    """Builds engine inputs for one model. `of` makes one where the model is of the kind that is known here."""

    def __init__(self, processor: Any, dtype: Any, packed: bool) -> None:
        self._processor = processor
        self._info = processor.info
        self._hf = processor.info.get_hf_processor()
        self._dtype = dtype
        self._pixels = torch.uint8 if packed else dtype
        self._packed = packed
        self._kinds = {
            self._hf.image_token_id: "image",
            self._hf.audio_token_id: "audio",
            self._hf.video_token_id: "video",
        }
        self._lasting: dict[str, Item] = {}
        self._picture_tokens = functools.lru_cache(maxsize=256)(self._tokens_of_picture)

    @classmethod
    def of(cls, renderer: Any, packed: bool) -> DirectInput | None:
        """None for a model whose processors are others, or set otherwise, than those that this stands in for.

        packed: in the form of `towers.packed`.
        """
        processor = renderer.mm_processor
        if type(processor) is not Gemma4MultiModalProcessor:
            return None
        hf = processor.info.get_hf_processor()
        hears = hf.feature_extractor is None or type(hf.feature_extractor) is Gemma4AudioFeatureExtractor
        known = hears and patches.knows(hf.image_processor)
        return cls(processor, renderer.model_config.dtype, packed) if known else None

    def items(
        self, media: Mapping[str, Sequence[Any]], budget: int, names: Mapping[str, Sequence[str]], lasting: Set[str]
    ) -> dict[str, list[Item]]:
        """What the model is given of media, by kind.

        names: of the media.  lasting: those of media that come with each row, and are made once.

        Raises ValueError where the model does not take so many.
        """
        for kind, data in media.items():
            self._info.validate_num_items(kind, len(data))
        return {
            kind: [
                self._lasting_item(name, datum, budget) if name in lasting else self._item(datum, budget)
                for datum, name in zip(data, names[kind], strict=True)
            ]
            for kind, data in media.items()
        }

    def _lasting_item(self, name: str, datum: Image | Audio | Video, budget: int) -> Item:
        if name not in self._lasting:
            self._lasting[name] = self._item(datum, budget)
        return self._lasting[name]

    def build(
        self, prompt: str, token_ids: Sequence[int], items: Mapping[str, Sequence[Item]], names: Mapping[str, list[str]]
    ) -> Any:
        """The engine input of a prompt with its media.

        token_ids: of the prompt, with one token for each medium.  items: of the media, in the order of the prompt.
        names: of the media. The encoder's outputs are kept under them: the same name is the same content.

        Raises ValueError where the prompt does not name as many media as there are.
        """
        places: dict[str, list[PlaceholderRange]] = {kind: [] for kind in items}
        expanded: list[int] = []
        for token in token_ids:
            kind = self._kinds.get(token, "")
            if kind not in places or len(places[kind]) == len(items[kind]):
                expanded.append(token)
                continue
            _, tokens, mask = items[kind][len(places[kind])]
            places[kind].append(PlaceholderRange(len(expanded), len(tokens), mask))
            expanded += tokens
        if any(len(places[kind]) != len(data) for kind, data in items.items()):
            raise ValueError("the chat template does not name every medium")
        payload = mm_input(
            expanded,
            MultiModalKwargsItems({kind: [fields for fields, _, _ in data] for kind, data in items.items()}),
            dict(names),
            places,
            prompt=prompt,
        )
        payload["arrival_time"] = time.time()
        return payload

    def _item(self, datum: Image | Audio | Video, budget: int) -> Item:
        match datum:
            case Image():
                whole = datum.width, datum.height
                values, positions = patches.patched([datum.pixels], whole, budget, self._pixels)
                return (
                    self._fields("image", pixel_values=values, pixel_position_ids=positions),
                    *self._picture_tokens(gemma.image_tokens(*whole, budget)),
                )
            case Video():
                return self._video(datum)
            case Audio():
                return self._audio(datum)

    def _video(self, video: Video) -> Item:
        whole = video.width, video.height
        values, positions = patches.patched(list(video.frames), whole, gemma.VIDEO_BUDGET, self._pixels)
        counts = [gemma.video_frame_tokens(*whole)] * len(video.frames)
        tokens = self._info.get_video_repl(
            timestamps=list(video.times_s), num_soft_tokens_per_frame=counts, processor=self._hf
        )
        fields = self._fields(
            "video",
            pixel_values_videos=values,
            pixel_position_ids_videos=positions,
            video_frame_counts=torch.tensor([len(counts)]),
            video_num_soft_tokens=[counts],
            video_timestamps=[list(video.times_s)],
        )
        return fields, tokens.full, tokens.is_embed(tokens.full)

    def _audio(self, audio: Audio) -> Item:
        heard = self._hf.feature_extractor([audio.samples], return_tensors="pt")
        mask = heard["input_features_mask"][0]
        fields = self._fields(
            "audio",
            input_features_padded=[heard["input_features"][0][mask].to(self._dtype)],
            input_features_mask=[mask[mask]],
        )
        tokens = self._info.get_audio_repl(audio_len=len(audio.samples), processor=self._hf)
        return fields, tokens.full, tokens.is_embed(tokens.full)

    def _fields(self, kind: str, **values: Any) -> Any:
        features = BatchFeature(values)
        fields = self._processor._get_mm_fields_config(features, {})
        (item,) = MultiModalKwargsItems.from_hf_inputs(features, fields)[kind]
        for name in towers.ON_CPU if self._packed else ():
            if name in item:
                item[name] = replace(item[name], field=replace(item[name].field, keep_on_cpu=True))
        return item

    def _tokens_of_picture(self, count: int) -> tuple[list[int], Any]:
        """vLLM's own way counts from the size, and one too few for some strips; the engine would die of it."""
        settings = self._info.get_hf_config()
        tokens = [settings.boi_token_id, *[self._hf.image_token_id] * count, settings.eoi_token_id]
        return tokens, torch.tensor(tokens) == self._hf.image_token_id
