"""What makes rows, and runs, the same or others."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gemma4cli import identity, models
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Failure, Item, Kind, Media, Stage


def of(*content: Media | str, prompt: str | None = None) -> int:
    return identity.content_key(Item(0, "a", "a", content, prompt))


def digest(*content: Media | str, prompt: str | None = None) -> tuple[int, int]:
    return identity.content_digest(Item(0, "a", "a", content, prompt))


def made_by(model: models.Model, **settings: Any) -> dict[str, Any]:
    return identity.fingerprint(build("caption", Overrides(**settings)), model)


TEXTS = st.text(st.characters(), max_size=4)


@given(st.lists(TEXTS, max_size=3), st.lists(TEXTS, max_size=3), st.none() | TEXTS, st.none() | TEXTS)
def test_texts_and_prompts_are_told_apart(
    one: list[str], other: list[str], prompt: str | None, question: str | None
) -> None:
    assert (of(*one, prompt=prompt) == of(*other, prompt=question)) == ((one, prompt) == (other, question))


def test_every_medium_has_a_key_that_is_known() -> None:
    media = [
        Media("/no/such/file"),
        Media("/no/such\0file"),
        Media("https://x/a.jpg"),
        Media("https://x/b.jpg"),
        Media("data:,a"),
        Media("", b"a"),
        Media("", b"b"),
        Media("", b"b", Kind.IMAGE),
        Media("", b"b", Kind.IMAGE, start_s=1.0),
    ]
    found = {of(medium) for medium in media}
    assert len(found) == len(media)
    assert identity.UNKNOWN not in found


def test_a_moved_folder_has_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"x")
    before = of(Media(f"{tmp_path}/a/x.jpg"))
    shutil.move(tmp_path / "a", tmp_path / "b c")
    assert of(Media(f"{tmp_path}/b c/x.jpg")) == before
    assert of(Media(f"file://{tmp_path}/b%20c/x.jpg")) == before
    os.utime(tmp_path / "b c/x.jpg", ns=(1, 1))
    assert of(Media(f"{tmp_path}/b c/x.jpg")) != before


def test_digests_are_of_the_bytes_wherever_they_lie(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x" * 3_000_000)
    wanted = digest(Media("", b"x" * 3_000_000))
    assert digest(Media(f"{tmp_path}/a.jpg")) == wanted
    assert digest(Media(f"{tmp_path}/a.jpg"), prompt="why?") != wanted
    os.mkfifo(tmp_path / "pipe")
    for location in ("pipe", "gone", "."):
        assert digest(Media(f"{tmp_path}/{location}")) == (0, 0)
    assert identity.content_digest(Item(0, "a", "a", failure=Failure(Stage.PARSE, "x", "y"))) == (0, 0)


def test_a_checkpoint_is_known_by_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    document = {"architectures": ["Gemma4ForConditionalGeneration"], "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "model.safetensors").write_bytes(b"weights")
    before = made_by(models.find(str(folder)))
    (tmp_path / "elsewhere").mkdir()
    shutil.move(folder, tmp_path / "elsewhere" / "mine")
    moved = models.find(str(tmp_path / "elsewhere" / "mine"))
    assert made_by(moved) == before
    (tmp_path / "elsewhere" / "mine" / "model.safetensors").write_bytes(b"others!!")
    (difference,) = identity.differences(before, made_by(moved))
    assert re.fullmatch(
        r"model file model.safetensors has changed: it was 7 bytes, last written 20\d\d-[-0-9:. ]+ UTC, "
        r"is 8 bytes, last written 20\d\d-[-0-9:. ]+ UTC",
        difference,
    )
    (tmp_path / "elsewhere" / "mine" / "generation_config.json").write_text("{}")
    added = identity.differences(before, made_by(moved))
    assert "model file generation_config.json is new" in added


def test_only_what_decides_answers_is_in_the_fingerprint() -> None:
    model = models.find("tiny")
    plain = made_by(model)
    assert made_by(model, max_pixels=5, allow_private_hosts=True, engine_args=("max_num_seqs=3",)) == plain
    for name, value in {"max_tokens": 3, "seed": 9, "top_k": 1, "max_frames": 2, "background": "red"}.items():
        (difference,) = identity.differences(plain, made_by(model, **{name: value}))
        assert difference.startswith(f"--{name.replace('_', '-')} was ")
    assert identity.differences(plain, made_by(model, system="Be brief."))
    assert identity.differences(plain, made_by(model, engine="fake")) == ['engine was "vllm", is "fake"']
    renamed = replace(model, name="E4B", revision="abc", location="google/gemma-4-E4B-it")
    full = replace(renamed, name="google/gemma-4-E4B-it")
    assert made_by(renamed) == made_by(full)
    assert identity.differences(made_by(renamed), made_by(replace(full, revision="abd"))) == [
        'revision was "abc", is "abd"'
    ]


def test_file_uris_are_taken_at_their_word(tmp_path: Path) -> None:
    """A file's name may hold what means something else in other URIs."""
    names = ["a", "a#1", "a#2", "a?1", "a\n1"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    locations = [f"file://{tmp_path}/{name}" for name in names]
    assert [identity.local_path(location) for location in locations] == [f"{tmp_path}/{name}" for name in names]
    assert len({digest(Media(location)) for location in locations} - {(0, 0)}) == len(names)
    assert identity.local_path("file://elsewhere/a") is None


def test_digests_are_taken_of_allowed_files_of_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.jpg").write_bytes(b"x")
    (tmp_path / "in" / "link.jpg").symlink_to(tmp_path / "out.jpg")
    item = Item(0, "a", "a", (Media(f"{tmp_path}/in/link.jpg"),))
    assert identity.content_digest(item, str(tmp_path)) != (0, 0)
    assert identity.content_digest(item, str(tmp_path / "in")) == (0, 0)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert digest(Media(f"{tmp_path}/sparse")) == (0, 0)


def test_auto_budgets_are_a_setting_of_their_own(tmp_path: Path) -> None:
    model = models.find("tiny")
    fixed, auto = made_by(model, max_soft_tokens=280), made_by(model, max_soft_tokens="auto")
    assert identity.differences(fixed, auto) == ['--max-soft-tokens was 280, is "auto:280"']
    assert made_by(model) == fixed
