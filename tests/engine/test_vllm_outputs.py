"""Thoughts apart from answers, by their marks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gemma4cli.engine.vllm_outputs import BEGIN, END, OutputReader
from gemma4cli.records import Sampling

WORDS = [BEGIN, END, "<turn|>", "thought\n", "so ", "it ", "is ", "red"]
PLAIN = Sampling(16, 1.0, 1.0, 0, 0)
THINKING = Sampling(16, 1.0, 1.0, 0, 0, thinking_budget=8)


class Words:
    """A tokenizer whose tokens are words."""

    def convert_tokens_to_ids(self, word: str) -> int:
        return WORDS.index(word)

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return "".join(WORDS[i] for i in ids if not (skip_special_tokens and i < 3))


def read(ids: list[int], sampling: Sampling, prompt: tuple[int, ...] = (7, 6)) -> Any:
    logprobs = [{token: SimpleNamespace(logprob=-float(token))} for token in ids]
    completion = SimpleNamespace(
        token_ids=ids,
        text=Words().decode(ids, True),
        finish_reason="stop",
        cumulative_logprob=-float(sum(ids)),
        logprobs=logprobs,
    )
    metrics = SimpleNamespace(scheduled_ts=1.0, queued_ts=0.5, last_token_ts=2.0)
    return OutputReader(Words()).generation(0, prompt, SimpleNamespace(outputs=[completion], metrics=metrics), sampling)


@pytest.mark.parametrize(
    ("ids", "thinking", "tokens", "text", "logprob"),
    [
        ([7, 2], None, 0, "red", -9.0),
        ([0, 3, 4, 5, 1, 7, 2], "so it", 5, "red", -9.0),
        ([4, 5, 1, 7, 2], "so it", 3, "red", -9.0),  # the prompt began the thought
        ([0, 3, 1, 7, 2], "", 3, "red", -9.0),
        ([0, 4, 1, 7, 0, 5, 1, 7, 2], "so it", 6, "redred", -16.0),
        ([0, 3, 4, 5, 6], "so it is", 5, "", 0.0),  # cut off
    ],
)
def test_thoughts_stay_out_of_the_text(
    ids: list[int], thinking: str | None, tokens: int, text: str, logprob: float
) -> None:
    found = read(ids, THINKING)
    assert (found.thinking, found.thinking_tokens, found.text, found.logprob) == (thinking, tokens, text, logprob)
    assert found.output_tokens == len(ids)
    assert read(ids, PLAIN).text == text


def test_a_thought_that_the_prompt_began_ends_only_with_its_mark() -> None:
    begun = (7, 0, 3)
    assert (read([4, 5, 2], THINKING, begun).thinking, read([4, 5, 2], THINKING, begun).text) == ("so it", "")
    assert read([4, 1, 7, 2], THINKING, begun).text == "red"
    assert read([7, 2], THINKING, (0, 3, 1)).text == "red"  # a thought that the prompt ended as well
    reader = OutputReader(Words())
    assert reader.thoughts(begun, [4, 5, 2]) is None
    assert reader.thoughts(begun, [4, 1, 7, 2]) == (4, 1)
    assert reader.thoughts((7,), [7, 2]) == ()
