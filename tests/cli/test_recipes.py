"""Recipes through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gemma4cli import recipe_files

FAKE = ("--engine", "fake")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text('task = "annotate"\nengine = "fake"\nprompt = "What is it?"\nmax_tokens = 100\n')
    return path


def made_with(folder: Path) -> dict:
    return json.loads((folder / ".gemma4cli" / "summary.json").read_text())["config"]


def test_flags_go_before_the_environment_before_the_recipe_before_the_defaults(
    gemma4, recipe: Path, photos: Path, tmp_path: Path
) -> None:
    recipe.write_text(recipe.read_text() + "[sampling]\ntemperature = 0.1\ntop_p = 0.2\ntop_k = 3\n")
    env = {"GEMMA4_TOP_P": "0.3", "GEMMA4_TOP_K": "4", "GEMMA4_SEED": "5", "GEMMA4_VAD": "0"}
    done = gemma4("run", recipe, photos, "--top-k", "6", "--set", "seed=7", env=env)
    assert done.returncode == 0, done.stderr
    sampling = made_with(tmp_path / "gemma4-mine")["sampling"]
    assert [sampling[name] for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")] == [100, 0.1, 0.3, 6, 7]
    assert made_with(tmp_path / "gemma4-mine")["media"]["max_soft_tokens"] == 280


def test_of_what_stands_for_another_the_higher_level_holds(gemma4, recipe: Path, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("From a file?\n")
    recipe.write_text('task = "annotate"\nengine = "fake"\nprompt_file = "prompt.txt"\nchoices = ["a", "b"]\n')
    assert gemma4("run", recipe, photos, "-o", "file").returncode == 0
    assert made_with(tmp_path / "file")["prompt"] == "From a file?"
    done = gemma4("run", recipe, photos, "-o", "flag", "--prompt", "From a flag?", "--regex", ".*")
    assert done.returncode == 0, done.stderr
    assert made_with(tmp_path / "flag")["prompt"] == "From a flag?"
    constraint = made_with(tmp_path / "flag")["sampling"]["constraint"]
    assert (constraint["choices"], constraint["regex"]) == (None, ".*")


def test_engine_arguments_of_all_levels_count(gemma4, recipe: Path, photos: Path, tmp_path: Path) -> None:
    recipe.write_text(recipe.read_text() + "[engine_args]\nlatency_ms = 1\ncapacity = 3\nrows_per_s = 100\n")
    flags = ("--engine-arg", "capacity=4", "--set", "engine_args.rows_per_s=99")
    assert gemma4("run", recipe, photos, *flags).returncode == 0
    assert made_with(tmp_path / "gemma4-mine")["engine_args"] == {"latency_ms": 1, "capacity": 4, "rows_per_s": 99}


def test_the_arguments_of_a_recipe_are_for_its_own_engine(gemma4, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "mine.toml").write_text('task = "caption"\nengine_args.max_model_len = 16384\n')
    assert gemma4("run", "mine.toml", photos, *FAKE, "-o", "-").returncode == 0


def test_kinds_leave_the_others_out(gemma4, media: Path) -> None:
    done = gemma4("annotate", media / "a.jpg", media / "a.wav", *FAKE, "-p", "What?", "--kinds", "audio", "-o", "-")
    assert done.returncode == 3
    assert [json.loads(line)["status"] for line in done.stdout.splitlines()] == ["failed", "ok"]
    done = gemma4("caption", media, *FAKE, "--kinds", "audio")
    assert (done.returncode, "caption takes image, video" in done.stderr) == (2, True)


def test_a_recipe_may_name_its_inputs_and_output_from_anywhere(gemma4, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "job" / "media").mkdir(parents=True)
    (tmp_path / "job" / "media" / "a.jpg").write_bytes((photos / "a.jpg").read_bytes())
    text = 'task = "caption"\nengine = "fake"\ninputs = ["media"]\noutput = "out.parquet"\n'
    (tmp_path / "job" / "nightly.toml").write_text(text)
    assert gemma4("run", "job/nightly.toml").returncode == 0
    assert pq.read_table(tmp_path / "job" / "out.parquet")["id"].to_pylist() == ["a.jpg"]
    assert gemma4("run", "job/nightly.toml", photos, "-o", "mine.parquet").returncode == 0
    assert len(pq.read_table(tmp_path / "mine.parquet")) == 3


def test_a_recipe_gives_the_rows_of_the_same_flags(gemma4, recipe: Path, photos: Path) -> None:
    command = ("annotate", photos, "-p", "What is it?", "--max-tokens", "100", *FAKE, "-o", "out")
    assert gemma4(*command).returncode == 0
    assert "nothing is left to do" in gemma4("run", recipe, photos, "-o", "out").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mine.toml",), "no input"),
        (("mien.toml", "x"), "there is no recipe mien.toml"),
        (("photo-metdata", "x"), "Did you mean photo-metadata?"),
        (("ocr.toml", "x"), "Did you mean ocr?"),
        (("mine.toml", "x", "--set", "temprature=0"), "Did you mean temperature?"),
        (("mine.toml", "x", "--vad"), "--vad says nothing to the task annotate"),
        (("mine.toml", "x", "--set", "vad=true"), "vad says nothing to the task annotate"),
        (("mine.toml", "x", "--seed", "1", "--set", "seed=2"), "--seed and --set seed contradict each other"),
        (("mine.toml", "x", "--prompt-file", "p", "--prompt", "p"), "--prompt and --prompt-file contradict"),
        (("mine.toml", "x", "--prompt-file", "gone.txt"), "--prompt-file gone.txt: No such file"),
    ],
)
def test_what_cannot_be_is_refused_at_once(refused, recipe: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused("run", *arguments)


def test_recipes_are_listed_shown_and_copied(gemma4, photos: Path, tmp_path: Path) -> None:
    listed = gemma4("recipes", "list").stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(recipe_files.shipped())
    assert max(map(len, listed.splitlines())) <= 80
    source = recipe_files.shipped()["photo-metadata"].read_text()
    assert gemma4("recipes", "show", "photo-metadata").stdout == source
    assert gemma4("recipes", "copy", "photo-metadata", "mine.toml").returncode == 0
    assert (tmp_path / "mine.toml").read_text() == source
    again = gemma4("recipes", "copy", "photo-metadata", "mine.toml")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert gemma4("recipes", "copy", "photo-metadata", "mine.toml", "--overwrite").returncode == 0
    assert "recipes show tags prints it" in gemma4("recipes", "copy", "tags", "-").stderr
    assert not (tmp_path / "-").exists()
    assert "Did you mean" in gemma4("recipes", "show", "photo-metdata").stderr
    assert gemma4("run", "mine.toml", photos, *FAKE).returncode == 0


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory, photos: Path, clip: Path) -> Path:
    """A folder with a picture, a film and a sound, and a manifest of the picture with a question."""
    import numpy as np

    from gemma4cli import demo

    folder = tmp_path_factory.mktemp("media")
    (folder / "a.jpg").write_bytes((photos / "a.jpg").read_bytes())
    (folder / "a.wav").write_bytes(clip.read_bytes())
    demo.encode(folder / "a.mp4", np.zeros((8, 64, 96, 3), np.uint8), 4, None)
    (folder / "rows.jsonl").write_text('{"image": "a.jpg", "question": "What is it?"}')
    return folder


@pytest.mark.parametrize("name", recipe_files.shipped())
def test_every_recipe_that_comes_along_runs(gemma4, media: Path, tmp_path: Path, name: str) -> None:
    text = recipe_files.shipped()[name].read_text(encoding="utf-8")
    command = next(line for line in text.split("\n\n")[0].splitlines() if f"gemma4 run {name} " in line)
    wanted = command.split()[4]  # the input that its head names
    inputs = (
        [media / "rows.jsonl"] if wanted.endswith(".jsonl") else [media / each for each in ("a.jpg", "a.mp4", "a.wav")]
    )
    done = gemma4("run", name, *inputs, *FAKE, "-o", "out.jsonl")
    assert done.returncode in (0, 3), done.stderr
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert "ok" in {row["status"] for row in rows}, done.stderr
