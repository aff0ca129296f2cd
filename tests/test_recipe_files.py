from __future__ import annotations

import json
from pathlib import Path

import pytest

from gemma4cli import recipe_files
from gemma4cli.cli.run import keys
from gemma4cli.errors import UsageError

KEYS = keys()


def written(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def read(folder: Path, text: str) -> recipe_files.RecipeFile:
    return recipe_files.read(written(folder, text), KEYS)


def test_a_key_may_stand_at_the_top_or_in_its_section(tmp_path: Path) -> None:
    top = read(tmp_path, 'task = "annotate"\nmax_tokens = 3\nfps = 2\nmax_failures = "5%"')
    apart = read(tmp_path, 'task = "annotate"\nsampling.max_tokens = 3\nmedia.fps = 2\nlimits.max_failures = "5%"')
    assert top == apart
    assert top.settings.values == {"max_tokens": 3, "fps": 2, "max_failures": "5%"}


def test_values_become_what_a_flag_would_be_told(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        task = "annotate"
        inputs = "photos/"
        media_column = ["image", "audio"]
        choices = ["a, b", "c"]
        max_soft_tokens = 280
        start = 1.5
        pages = true
        [engine_args]
        max_num_seqs = 8
        """,
    ).settings
    assert found.values == {
        "inputs": [str(tmp_path / "photos")],
        "media_column": "image,audio",
        "choices": '["a, b", "c"]',
        "max_soft_tokens": "280",
        "start": "1.5",
        "pages": True,
    }
    assert found.engine_args == {"max_num_seqs": 8}


def test_paths_are_relative_to_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    text = """
    task = "annotate"
    inputs = ["*.jpg", "/abs/b.jpg", "s3://bucket/c", "-"]
    prompt_file = "prompts/p.txt"
    output = "out/"
    root = "."
    schema = "a.json"
    model = "./checkpoint"
    outputs.x = { prompt_file = "q.txt", choices = "@labels.txt", schema = "pkg.module:Model" }
    """
    found = read(tmp_path, text).settings
    assert found.values["inputs"] == [str(tmp_path / "*.jpg"), "/abs/b.jpg", "s3://bucket/c", "-"]
    assert found.values["prompt_file"] == str(tmp_path / "prompts/p.txt")
    assert found.values["output"] == str(tmp_path / "out")
    assert (found.values["root"], found.values["schema"]) == (str(tmp_path), str(tmp_path / "a.json"))
    assert found.values["model"] == str(tmp_path / "checkpoint")
    assert found.outputs["x"] == {
        "prompt_file": str(tmp_path / "q.txt"),
        "choices": f"@{tmp_path / 'labels.txt'}",
        "schema": "pkg.module:Model",
    }
    assert (
        read(tmp_path, 'task = "annotate"\nmodel = "google/gemma-4-E2B"').settings.values["model"].startswith("google")
    )


def test_known_outputs_lie_beside_the_recipe_one_or_several(tmp_path: Path) -> None:
    for text, names in (('"monday"', ["monday"]), ('["monday", "s3://b/tuesday"]', ["monday", "s3://b/tuesday"])):
        found = read(tmp_path, f'task = "caption"\nknown = {text}').settings.values["known"]
        assert found == [str(tmp_path / name) if "://" not in name else name for name in names]


def test_adapters_and_drafters_lie_beside_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('task = "annotate"\nlora = ["a=adapters/a", "b=/else/b"]\nspeculative = "./drafter"\n')
    values = recipe_files.read(path, keys()).settings.values
    assert values["lora"] == [f"a={tmp_path}/adapters/a", "b=/else/b"]
    assert values["speculative"] == str(tmp_path / "drafter")


def test_a_schema_may_be_written_out(tmp_path: Path) -> None:
    text = 'task = "annotate"\n[schema]\ntype = "object"\nproperties.name = { type = "string" }'
    schema = json.loads(read(tmp_path, text).settings.values["schema"])
    assert schema == {"type": "object", "properties": {"name": {"type": "string"}}}


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("", "has no task", "annotate"),
        ('task = "captoin"', "has a task that there is not", "caption"),
        ('task = "annotate"\ntemprature = 1', "unknown key: temprature", "Did you mean temperature?"),
        ('task = "annotate"\nmax-tokens = 1', "unknown key: max-tokens", "Did you mean max_tokens?"),
        ('task = "annotate"\n[sampling]\nfps = 1', "[sampling] of", "at the top or in [media]"),
        ('task = "annotate"\n[output]\nx = 1', "output is", ""),
        ('task = "annotate"\noutputs.a.fps = 1', "fps is not a matter of one output", ""),
        ('task = "annotate"\noutputs.a.promt = "x"', "outputs.a has an unknown key: promt", "Did you mean prompt?"),
        ('task = "annotate"\noutputs.a = "x"', 'outputs.a is "x", which is not a table', ""),
        ('task = "annotate"\nengine_args = 3', "engine_args is 3", ""),
        ('task = "annotate"\nmax_tokens = "many"', 'max_tokens is "many", which is not a whole number', ""),
        ('task = "annotate"\nmax_tokens = true', "max_tokens is true, which is not a whole number", ""),
        ('task = "annotate"\nmax_tokens = 2.5', "max_tokens is 2.5, which is not a whole number", ""),
        ('task = "annotate"\npages = 1', "pages is 1, which is not true or false", ""),
        ('task = "annotate"\nprompt = ["x"]', "which is not a text", ""),
        ('task = "annotate"\nlimit = 0', "limit is 0, which is too small", ""),
        ('task = "annotate"\nmax_tokens = 1\nsampling.max_tokens = 2', "has max_tokens twice", ""),
        ('task = "annotate"\nsampling = 3', "sampling is 3, which is not a table", "[sampling]"),
        ('task = "annotate"\nchoices = [1, 2]', "choices is [1, 2], which is not a list of texts", ""),
        ("task = annotate", "is no TOML", "gemma4 recipes show"),
    ],
)
def test_a_refusal_names_the_key_and_what_would_do(tmp_path: Path, text: str, said: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(tmp_path, text)
    assert said in str(refusal.value)
    assert hint in refusal.value.hint


@pytest.mark.parametrize("data", [b"\xff\xfe", b"#" * (2 << 20)])
def test_what_is_no_recipe_at_all_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "mine.toml").write_bytes(data)
    with pytest.raises(UsageError):
        recipe_files.read(tmp_path / "mine.toml", KEYS)
    with pytest.raises(UsageError):
        recipe_files.read(tmp_path / "gone.toml", KEYS)


def test_assignments_reach_sections_outputs_and_the_engine() -> None:
    pairs = [
        "temperature=0", "media.fps=2", "prompt=1e3 = 1000?", "outputs.tags.max-tokens=7", "outputs.tags.prompt='t'",
        'system="a\\nb"', "engine_args.max_num_seqs=8", "pages=true", "choices=a,b", "start=0:01:30",
    ]  # fmt: skip
    found = recipe_files.assigned(pairs, KEYS)
    assert found.values == {
        "temperature": 0, "fps": 2, "prompt": "1e3 = 1000?", "system": "a\nb", "pages": True, "choices": "a,b",
        "start": "0:01:30",
    }  # fmt: skip
    assert found.outputs == {"tags": {"max_tokens": 7, "prompt": "'t'"}}
    assert found.engine_args == {"max_num_seqs": 8}


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("temperature", "is not KEY=VALUE"),
        ("=3", "is not KEY=VALUE"),
        ("a..b=1", "is not KEY=VALUE"),
        ("task=caption", "task is not possible"),
        ("examples=3", "examples is not possible"),
        ("max_tokens=many", "not a whole number"),
        ("sampling.fps=1", "unknown key: fps"),
        ("outputs.a.prompt.b=3", 'prompt is {"b": 3}'),
        ("outputs=3 outputs.a.prompt=4", "outputs.a.prompt: outputs has a value already"),
        ("temperature=0 temperature.x=4", "temperature.x: temperature has a value already"),
    ],
)
def test_assignments_that_mean_nothing_are_refused(pairs: str, said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        recipe_files.assigned(pairs.split(), KEYS)
    assert said in str(refusal.value)


@pytest.mark.parametrize("text", ['{"type": "integer"}', '{type = "integer"}'])
def test_a_schema_can_be_assigned_as_json_and_as_toml(text: str) -> None:
    assert recipe_files.assigned([f"schema={text}"], KEYS).values == {"schema": '{"type": "integer"}'}


def test_every_flag_of_the_tasks_is_a_key() -> None:
    import typer.main

    from gemma4cli.cli import app

    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    # The recipe says the task itself, and the engine's arguments in a table.
    apart = {"task", "engine_arg", "help"}
    for task in ("caption", "transcribe", "annotate"):
        flags = {parameter.name for parameter in commands[task].params}
        assert flags - apart <= set(KEYS)
    assert set(KEYS) <= {parameter.name for parameter in commands["run"].params}


@pytest.mark.parametrize("name", recipe_files.shipped())
def test_every_recipe_that_comes_along_is_whole_and_says_how_to_run_it(name: str) -> None:
    path = recipe_files.shipped()[name]
    found = recipe_files.read(path, KEYS)
    assert found.description
    head = path.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    assert all(line.startswith("#") for line in head)
    assert any(f"gemma4 run {name} " in line for line in head)
    assert len(head[0]) <= 120
