"""What answers are taken for."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemma4cli import tasks
from gemma4cli.errors import ParseError, UsageError
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Kind

lines = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda text: not text.strip("*_").lower().startswith("german")
)


@given(lines, lines)
@example("*", "x")
def test_a_translation_is_taken_apart_where_its_language_is_named(said: str, translated: str) -> None:
    translated = translated.lstrip("*_ ") or "x"
    assert tasks.translation(f"{said}\nGerman: {translated}", "German") == (said, translated)


@pytest.mark.parametrize(
    "text",
    ["Hello.\n\nGerman:\nHallo.", "Hello.\n**German:** Hallo.", "Hello.\ngerman : Hallo.", "Hello.\nGerman:Hallo."],
)
def test_a_little_disorder_is_forgiven(text: str) -> None:
    assert tasks.translation(text, "German") == ("Hello.", "Hallo.")


@pytest.mark.parametrize("text", ["", "Hello.", "He said German: fine.", "Hello.\nFrench: Salut."])
def test_no_translation(text: str) -> None:
    with pytest.raises(ParseError, match="begins with German:") as caught:
        tasks.translation(text, "German")
    assert caught.value.type == "no_translation"


def test_the_prompt_of_a_translation_names_both_languages() -> None:
    prompt = build("transcribe", Overrides(language="French", translate_to="German")).prompts.by_kind[Kind.AUDIO]
    assert "in French, then translate it into German." in prompt
    assert "'German: '" in prompt
    prompt = build("transcribe", Overrides(translate_to="German")).prompts.by_kind[Kind.AUDIO]
    assert prompt.count("its original language") == 2
    assert build("transcribe", Overrides(translate_to="German")).sampling.max_tokens == 896
    assert build("transcribe", Overrides(translate_to="German", max_tokens=7)).sampling.max_tokens == 7
    for wrong in (Overrides(translate_to=" "), Overrides(translate_to="German", prompt="Sing.")):
        with pytest.raises(UsageError):
            build("transcribe", wrong)
