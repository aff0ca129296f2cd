"""Examples in a recipe, through the installed command, on the fake engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

HEAD = 'task = "annotate"\nengine = "fake"\nprompt = "What is it?"\n'
EXAMPLE = '[[examples]]\nimage = "shots/one.jpg"\nanswer = "A red square."\n'


@pytest.fixture
def job(tmp_path: Path, photos: Path, clip: Path) -> Path:
    (tmp_path / "shots").mkdir()
    (tmp_path / "shots" / "one.jpg").write_bytes((photos / "a.jpg").read_bytes())
    (tmp_path / "shots" / "two.png").write_bytes((photos / "b.png").read_bytes())
    (tmp_path / "shots" / "tone.wav").write_bytes(clip.read_bytes())
    (tmp_path / "mine.toml").write_text(HEAD + EXAMPLE)
    return tmp_path


def rows(done) -> list[dict]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_row_comes_after_the_examples(gemma4, job: Path, photos: Path) -> None:
    found = rows(gemma4("run", "mine.toml", photos, "-o", "-"))
    plain = rows(gemma4("annotate", photos, "--engine", "fake", "-p", "What is it?", "-o", "-"))
    for row, without in zip(found, plain, strict=True):
        assert row["text"] != without["text"]
        assert row["prompt_tokens"] > without["prompt_tokens"] + 200
        assert (row["width"], row["height"], row["bucket"]) == (without["width"], without["height"], without["bucket"])
    again = rows(gemma4("run", "mine.toml", photos, "-o", "-"))
    assert [row["text"] for row in again] == [row["text"] for row in found]


def test_examples_may_have_sound_several_media_or_none_and_answers_as_json(gemma4, job: Path, photos: Path) -> None:
    (job / "mine.toml").write_text(
        HEAD
        + 'schema = { type = "object", properties = { name = { type = "string" } } }\n'
        + '[[examples]]\nimage = ["shots/one.jpg", "shots/two.png"]\naudio = "shots/tone.wav"\n'
        + 'prompt = "And these?"\nanswer = { name = "both" }\n'
        + '[[examples]]\nprompt = "Only words?"\nanswer = "{}"\n'
    )
    (row, *_) = rows(gemma4("run", "mine.toml", photos, "-o", "-"))
    assert row["answer"]["name"]
    assert (row["image_tokens"], row["audio_tokens"]) == (266 * 2 + 266, 25)


def test_examples_are_part_of_what_made_the_rows(gemma4, job: Path, photos: Path) -> None:
    command = ("run", "mine.toml", photos, "-o", "out")
    assert gemma4(*command).returncode == 0
    assert "nothing is left" in gemma4(*command).stderr
    (job / "shots" / "one.jpg").write_bytes((photos / "b.png").read_bytes())
    done = gemma4(*command)
    assert (done.returncode, "examples[0] was" in done.stderr) == (2, True)
    (job / "mine.toml").write_text(HEAD)
    assert "examples[0] was" in gemma4(*command).stderr


def test_the_plan_counts_them(gemma4, job: Path, photos: Path) -> None:
    with_them = gemma4("run", "mine.toml", photos, "--dry-run").stdout
    (job / "mine.toml").write_text(HEAD)
    without = gemma4("run", "mine.toml", photos, "--dry-run").stdout
    tokens = [int(text.split("tokens in   about ")[1].split()[0].replace(",", "")) for text in (with_them, without)]
    assert tokens[0] > tokens[1] + 3 * 260


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[examples]]\nimage = "gone.jpg"\nanswer = "x"', "gone.jpg: "),
        ('[[examples]]\nimage = "mine.toml"\nanswer = "x"', "examples[0]: "),
        ('[[examples]]\nimage = "shots/one.jpg"', "examples[0] has no answer"),
        ('[[examples]]\nimagee = "x"\nanswer = "x"', "Did you mean image?"),
        ('[[examples]]\nimage = 3\nanswer = "x"', "image is no path"),
        ('[examples]\nimage = "x"', "examples is no list of tables"),
        (EXAMPLE + "[outputs.a]\nprompt = 'x'", "is about one answer, and outputs make several"),
        ("choices = ['a', 'b']\n" + EXAMPLE, "examples[0]: the answer is none of the choices: A red square."),
        ("regex = '[0-9]'\n" + EXAMPLE, "examples[0]: the answer does not match --regex"),
        (
            "schema.properties.n.type = 'integer'\n[[examples]]\nanswer = {n = 'x'}",
            "examples[0]: $.n: 'x' is not of type 'integer'",
        ),
        ("max_tokens = 8000\n" + EXAMPLE, "the examples take about"),
    ],
)
def test_what_cannot_be_is_refused_at_once(refused, job: Path, photos: Path, text: str, said: str) -> None:
    head = HEAD if "outputs" not in text else HEAD.replace('prompt = "What is it?"\n', "")
    (job / "mine.toml").write_text(head + text)
    assert said in refused("run", "mine.toml", photos)


def test_an_example_needs_a_prompt_where_the_job_has_none_for_it(gemma4, job: Path, photos: Path) -> None:
    (job / "mine.toml").write_text('task = "annotate"\nengine = "fake"\nprompt = "Is this {{ id }}?"\n' + EXAMPLE)
    assert "examples[0] needs a prompt of its own" in gemma4("run", "mine.toml", photos).stderr
    (job / "mine.toml").write_text('task = "caption"\nengine = "fake"\n' + EXAMPLE)
    assert gemma4("run", "mine.toml", photos).returncode == 0
