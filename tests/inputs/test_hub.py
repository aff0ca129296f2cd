"""Data sets of the `datasets` library: saved to disk, by name, and folders as the hub has them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image

from gemma4cli.errors import UsageError
from gemma4cli.inputs import InputOptions, open_inputs
from gemma4cli.inputs.hub import PREFIX
from gemma4cli.records import Item, Kind


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    datasets.disable_progress_bars()


def options(*kinds: Kind, **more: Any) -> InputOptions:
    return InputOptions(kinds=frozenset(kinds or {Kind.IMAGE}), **more)


def png(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (8, 8), level).save(buffer, "PNG")
    return buffer.getvalue()


def made(rows: int = 3, first: int = 0) -> datasets.Dataset:
    data = {"image": [{"bytes": png(i), "path": f"{i}.png"} for i in range(first, first + rows)],
            "label": [i % 2 for i in range(first, first + rows)]}  # fmt: skip
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["even", "odd"]))
    return datasets.Dataset.from_dict(data, features=features)


def check(items: list[Item], first: int = 0, rows: int = 3) -> None:
    assert [item.media[0].data for item in items] == [png(i) for i in range(first, first + rows)]
    assert [item.media[0].kind for item in items] == [Kind.IMAGE] * rows
    assert [item.extra["label"] for item in items] == [i % 2 for i in range(first, first + rows)]


def test_what_was_saved_is_read_undecoded(tmp_path: Path) -> None:
    made().save_to_disk(str(tmp_path / "saved"))
    inputs = open_inputs([str(tmp_path / "saved")], options())
    check(list(inputs))
    assert inputs.total == 3
    described = json.loads(inputs.columns.metadata[b"huggingface"])["info"]["features"]
    assert described["label"]["names"] == ["even", "odd"], "classes keep their names"
    assert [item.extra for item in open_inputs([str(tmp_path / "saved")], options(where="label == 1"))] == [
        {"label": 1}
    ]


def test_a_split_of_what_was_saved(tmp_path: Path) -> None:
    splits = datasets.DatasetDict(train=made(), test=made(2, first=7))
    splits.save_to_disk(str(tmp_path / "saved"))
    check(list(open_inputs([str(tmp_path / "saved")], options(split="test"))), 7, 2)
    for split in (None, "validation"):
        with pytest.raises(UsageError) as caught:
            open_inputs([str(tmp_path / "saved")], options(split=split))
        assert "train, test" in caught.value.hint
    with pytest.raises(UsageError, match="--streaming is about data sets on the hub"):
        open_inputs([str(tmp_path / "saved")], options(split="test", streaming=True))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_data_set_by_name(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "set").mkdir()
    made().to_parquet(str(tmp_path / "set" / "train-00000.parquet"))
    made(2, first=7).to_parquet(str(tmp_path / "set" / "test-00000.parquet"))
    name = f"{PREFIX}{tmp_path / 'set'}"
    inputs = open_inputs([name], options(split="test", streaming=streaming))
    check(list(inputs), 7, 2)
    assert inputs.total == (None if streaming else 2)
    check(list(open_inputs([name], options(split="train[1:]"))), 1, 2)
    check(list(open_inputs([name], options(split="train", streaming=streaming, limit=1))), 0, 1)
    with pytest.raises(UsageError) as caught:
        open_inputs([name], options())
    assert "train, test" in caught.value.hint
    with pytest.raises(UsageError, match="cannot load the data set"):
        open_inputs([name], options(split="nope"))


def test_a_data_set_that_is_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot load the data set"):
        open_inputs([f"{PREFIX}{tmp_path}/nowhere"], options(split="train"))


def test_sound_stays_as_it_is_stored(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros(1600), 16_000, format="WAV")
    table = pa.table({"audio": [{"bytes": buffer.getvalue(), "path": "a.wav"}], "text": ["silence"]})
    data = datasets.Dataset(table, info=datasets.DatasetInfo(
        features=datasets.Features(audio=datasets.Audio(), text=datasets.Value("string"))))  # fmt: skip
    data.save_to_disk(str(tmp_path / "saved"))
    (item,) = open_inputs([str(tmp_path / "saved")], options(Kind.AUDIO, Kind.VIDEO))
    assert item.media[0].data == buffer.getvalue()
    assert (item.media[0].kind, item.extra) == (Kind.AUDIO, {"text": "silence"})


def test_splits_of_a_folder_are_those_of_its_readme_or_of_its_names(tmp_path: Path) -> None:
    for name, level in (("data/train-0.parquet", 0), ("data/test-0.parquet", 1), ("data/retrain.parquet", 2)):
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(pa.table({"image": [f"{level}.jpg"]}), tmp_path / name)

    def found(split: str | None) -> list[str]:
        return [item.media[0].location[-5:] for item in open_inputs([str(tmp_path)], options(split=split))]

    assert found(None) == ["2.jpg", "1.jpg", "0.jpg"]
    assert found("train") == ["0.jpg"]
    with pytest.raises(UsageError, match="has no split validation"):
        found("validation")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: validation\n    path: data/*train*\n---\n\n"
    )
    assert found("validation") == ["2.jpg", "0.jpg"]


def test_a_list_of_media_makes_rows_with_columns(tmp_path: Path) -> None:
    for split, number in (("train", 1), ("test", 2)):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.jpg").write_bytes(png(number))
        (tmp_path / split / "metadata.jsonl").write_text(json.dumps({"file_name": "a.jpg", "n": number}) + "\n")
    inputs = open_inputs([str(tmp_path)], options())
    items = list(inputs)
    assert inputs.notes == ()
    assert [(item.id, item.extra) for item in items] == [("test/a.jpg", {"n": 2}), ("train/a.jpg", {"n": 1})]
    assert items[1].media[0].location == str(tmp_path / "train" / "a.jpg")
    assert [item.id for item in open_inputs([str(tmp_path)], options(split="train"))] == ["train/a.jpg"]
    (tmp_path / "train" / "unnamed.jpg").write_bytes(png(3))
    (note,) = open_inputs([str(tmp_path)], options()).notes
    assert "lists 2 of the 3 files" in note
    (tmp_path / "train" / "unnamed.jpg").unlink()
    (tmp_path / "test" / "metadata.jsonl").unlink()
    (tmp_path / "train" / "metadata.jsonl").write_text('{"about": "no names"}\n')
    assert [item.id for item in open_inputs([str(tmp_path)], options())] == ["test/a.jpg", "train/a.jpg"]


def test_videos_and_lists_of_images_stay_as_they_are_stored(tmp_path: Path) -> None:
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    film, pages = (
        {"bytes": b"film", "path": "a.mp4"},
        [{"bytes": png(1), "path": None}, {"bytes": png(2), "path": None}],
    )
    table = pa.table({"video": pa.array([film], struct), "images": pa.array([pages], pa.list_(struct))})
    features = datasets.Features(video=datasets.Video(), images=datasets.List(datasets.Image()))
    datasets.Dataset(table, info=datasets.DatasetInfo(features=features)).save_to_disk(str(tmp_path / "saved"))
    (item,) = open_inputs([str(tmp_path / "saved")], options(Kind.IMAGE, Kind.VIDEO))
    found = [(medium.kind, medium.data) for medium in item.media]
    assert found == [(Kind.VIDEO, b"film"), (Kind.IMAGE, png(1)), (Kind.IMAGE, png(2))]


def test_what_was_saved_badly_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"image": ["a.jpg"]})
    rows.select([]).save_to_disk(str(tmp_path / "none"))
    rows.save_to_disk(str(tmp_path / "cut"))
    (tmp_path / "cut" / "state.json").write_text("{")
    for name, said in (("none", "holds no rows"), ("cut", "cannot load the data set")):
        with pytest.raises(UsageError, match=said) as refusal:
            open_inputs([str(tmp_path / name)], InputOptions(kinds=frozenset({Kind.IMAGE})))
        assert "saved in whole" in refusal.value.hint
