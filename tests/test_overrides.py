from __future__ import annotations

import pytest

from gemma4cli.config import TASKS
from gemma4cli.errors import UsageError
from gemma4cli.overrides import Overrides, build, defaults, parse_engine_args
from gemma4cli.records import Kind


@pytest.mark.parametrize("task", TASKS)
def test_the_defaults_of_every_task_are_valid(task: str) -> None:
    config = build(task, Overrides())
    assert config.task == task == defaults(task)["task"]
    assert config.model == "E4B"


def test_what_the_user_set_wins_and_what_was_not_set_overrides_nothing() -> None:
    config = build("caption", Overrides(temperature=0.0, seed=0, prompt="Tags?"))
    assert config.sampling.temperature == 0.0
    assert config.sampling.top_p == defaults("caption")["sampling"]["top_p"]
    assert config.prompts.text == "Tags?"


def test_a_language_gives_the_prompt_that_names_it() -> None:
    assert "in its original language" in build("transcribe", Overrides()).prompts.by_kind[Kind.AUDIO]
    prompt = build("transcribe", Overrides(language="Swahili")).prompts.by_kind[Kind.AUDIO]
    assert "in Swahili into Swahili text" in prompt


def test_the_fake_engine_needs_no_model_of_the_hub() -> None:
    assert build("caption", Overrides(engine="fake")).model == "tiny"
    assert build("caption", Overrides(engine="fake", model="31B")).model == "31B"


@pytest.mark.parametrize(
    ("wrong", "flag"),
    [
        (Overrides(max_soft_tokens=300), "--max-soft-tokens 300"),
        (Overrides(max_tokens=0), "--max-tokens 0"),
        (Overrides(temperature=-0.1), "--temperature -0.1"),
        (Overrides(temperature=float("nan")), "--temperature nan"),
        (Overrides(top_p=0.0), "--top-p 0"),
        (Overrides(top_k=-1), "--top-k -1"),
        (Overrides(top_k=2**31), "--top-k 2147483648"),
        (Overrides(seed=-1), "--seed -1"),
        (Overrides(seed=2**63), "--seed 9223372036854775808"),
        (Overrides(max_frames=33), "--max-frames 33"),
        (Overrides(background="blurple"), "--background 'blurple'"),
        (Overrides(max_pixels=0), "--max-pixels 0"),
        (Overrides(engine="sglang"), "--engine sglang"),
        (Overrides(prompt="  "), "--prompt"),
        (Overrides(language=" "), "--language"),
        (Overrides(engine_args=("max_num_seqs",)), "--engine-arg 'max_num_seqs'"),
    ],
)
def test_a_refusal_names_the_flag_and_says_what_would_do(wrong: Overrides, flag: str) -> None:
    with pytest.raises(UsageError) as refusal:
        build("transcribe", wrong)
    assert str(refusal.value).startswith(flag)
    assert refusal.value.hint


def test_engine_arguments_are_read_as_json_where_they_are() -> None:
    parsed = parse_engine_args(("max-num-seqs=8", "enforce_eager=True", 'kernel_config={"a": 1}', "dtype=half", "x="))
    assert parsed == {
        "max_num_seqs": 8,
        "enforce_eager": True,
        "kernel_config": {"a": 1},
        "dtype": "half",
        "x": "",
    }
