"""The checkpoint's files fit together, load everywhere, and are small."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gemma4cli.gemma import BUDGETS
from gemma4cli.tiny import CHECKPOINT, CLIPS, blueprint

CONFIG = json.loads((CHECKPOINT / "config.json").read_text())
TOKENIZER = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)


def test_the_blueprint_makes_the_very_files(tmp_path: Path) -> None:
    blueprint.write(tmp_path)
    for file in tmp_path.iterdir():
        assert (CHECKPOINT / file.name).read_text() == file.read_text(), file.name


def test_it_is_small_enough_to_ship() -> None:
    assert size(CHECKPOINT) <= 6_000_000
    assert size(CLIPS) <= 600_000
    assert size(CHECKPOINT.parent) <= 6_500_000


def test_weights_are_bfloat16_and_of_the_shapes_that_the_configuration_names() -> None:
    with (CHECKPOINT / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert {entry["dtype"] for entry in tensors.values()} == {"BF16"}
    text = CONFIG["text_config"]
    embeddings = tensors["model.language_model.embed_tokens.weight"]
    assert embeddings["shape"] == [text["vocab_size"], text["hidden_size"]]
    layers = {name.split(".")[3] for name in tensors if name.startswith("model.language_model.layers.")}
    assert len(layers) == text["num_hidden_layers"]


def test_it_has_what_the_e_models_have() -> None:
    text = CONFIG["text_config"]
    assert CONFIG["architectures"] == ["Gemma4ForConditionalGeneration"]
    assert CONFIG["vision_config"]
    assert CONFIG["audio_config"]
    own = text["layer_types"][: text["num_hidden_layers"] - text["num_kv_shared_layers"]]
    shared = text["layer_types"][len(own) :]
    assert set(own) == set(shared) == {"sliding_attention", "full_attention"}
    assert text["hidden_size_per_layer_input"]
    assert text["final_logit_softcapping"]
    assert text["head_dim"] != text["global_head_dim"]


def test_special_tokens_have_their_published_names_and_the_configured_ids() -> None:
    for name in ("boi", "eoi", "image", "video", "boa", "eoa", "audio"):
        text = blueprint.TOKENS[f"{name}_token"]
        assert TOKENIZER.token_to_id(text) == CONFIG[f"{name}_token_id"], text
    assert [TOKENIZER.token_to_id(text) for text in ("<pad>", "<eos>", "<bos>", "<unk>")] == [0, 1, 2, 3]
    assert CONFIG["eos_token_id"] == [TOKENIZER.token_to_id("<eos>"), TOKENIZER.token_to_id("<turn|>")]
    assert TOKENIZER.get_vocab_size() == CONFIG["text_config"]["vocab_size"]


@given(st.text())
@settings(deadline=None)
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    if any(special in text for special in blueprint.TOKENS.values()) or "▁" in text:
        return
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("stamp", ["00:00", "00:07", "12:59"])
def test_a_timestamp_is_one_token_a_character(stamp: str) -> None:
    assert len(TOKENIZER.encode(f" {stamp} ").ids) == 7
    alone = TOKENIZER.encode(f"{stamp} ").ids
    assert TOKENIZER.encode(f"user\n{stamp} ").ids[-len(alone) :] == alone


def test_no_picture_of_any_budget_runs_off_the_table_of_positions() -> None:
    vision = CONFIG["vision_config"]
    assert vision["position_embedding_size"] >= max(BUDGETS) * vision["pooling_kernel_size"]


def test_clips_are_listed_with_what_they_say() -> None:
    lines = [json.loads(line) for line in (CLIPS / "clips.jsonl").read_text().splitlines()]
    assert {line["file"] for line in lines} == {file.name for file in CLIPS.glob("*.flac")}
    assert len(lines) >= 24
    assert [line for line in lines if not line["transcript"]]
    assert all(word in "0123456789" for line in lines for word in line["transcript"].split())
