"""The probability of each choice, asked of vLLM: for most rows what was generated says it already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

from gemma4cli.engine.choice_scores import beginners, choice_logprobs, spellings
from gemma4cli.engine.vllm_sampling import look_params
from gemma4cli.records import Sampling

Ask = Callable[[tuple[int, ...], Any], Awaitable[Any]]
"""Tokens to put after a row's prompt and parameters -> vLLM's output."""


class ChoiceScorer:
    """Scores choices with a model's tokens."""

    def __init__(self, tokenizer: Any, model_config: Any) -> None:
        self._tokenizer = tokenizer
        ends = model_config.try_get_generation_config().get("eos_token_id") or []
        self._ends = frozenset({tokenizer.eos_token_id, *([ends] if isinstance(ends, int) else ends)})
        self._spelled = lru_cache(maxsize=16)(self._spell)

    def top(self, sampling: Sampling) -> int:
        """How many of the likeliest tokens are to be told of while an answer is generated."""
        choices = _scored(sampling)
        if choices is None or sampling.thinking_budget is not None:  # for thoughts it would be a waste
            return 0
        return beginners(self._spelled(choices), [choice.encode() for choice in choices], self._ends)

    async def scores(
        self, sampling: Sampling, completion: Any, thoughts: tuple[int, ...] | None, ask: Ask
    ) -> dict[str, float] | None:
        """The column `choice_logprobs`; None where it is not asked for, and where the model did not end thinking.

        completion: the row's own answer, in vLLM's terms.  thoughts: the tokens that come before it.
        """
        choices = _scored(sampling)
        if choices is None or thoughts is None:
            return None

        async def look(so_far: tuple[int, ...], texts: list[str], count: int) -> Mapping[int, float]:
            output = await ask((*thoughts, *so_far), look_params(texts, count))
            return _first(output.outputs[0])

        known = not thoughts and sampling.thinking_budget is None
        first = _first(completion) if known and completion.logprobs else None
        return await choice_logprobs(choices, self._spelled(choices), self._ends, look, first)

    def _spell(self, choices: tuple[str, ...]) -> dict[int, bytes]:
        return spellings(self._tokenizer.get_vocab(), frozenset(self._tokenizer.all_special_ids) | self._ends, choices)


def _scored(sampling: Sampling) -> tuple[str, ...] | None:
    return sampling.constraint.choices if sampling.scored and sampling.constraint is not None else None


def _first(completion: Any) -> dict[int, float]:
    """Log-probabilities of the first token that was generated."""
    return {token: entry.logprob for token, entry in completion.logprobs[0].items()}
