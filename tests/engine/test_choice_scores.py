"""Probabilities of choices, against every way to spell them followed to its end."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemma4cli.engine.choice_scores import OPEN, beginners, choice_logprobs, spellings

END = 0
PIECES = ["<end>", "a", "b", "▁", "ab", "ba", "aab", "a▁b", "é", "<0xC3>", "<0xA9>", "<0x61>"]
VOCABULARY = {piece: i for i, piece in enumerate(PIECES)}


def model(seed: int, so_far: tuple[int, ...], allowed: list[int]) -> dict[int, float]:
    """Log-probabilities that depend on all that was said, some of them tiny."""
    draw = random.Random(f"{seed}{so_far}")
    weights = {token: draw.random() ** draw.choice((1, 4, 30)) for token in range(len(PIECES))}
    whole = sum(weights[token] for token in allowed)
    return {token: math.log(weights[token] / whole) if weights[token] else -math.inf for token in allowed}


def allowed(tokens: Mapping[int, bytes], rests: list[bytes]) -> list[int]:
    begin = [token for token, data in tokens.items() if any(rest.startswith(data) for rest in rests)]
    return [*begin, *([END] if b"" in rests else [])]


def brute(seed: int, choices: list[str], tokens: Mapping[int, bytes]) -> dict[str, float]:
    found = dict.fromkeys(choices, 0.0)

    def follow(so_far: tuple[int, ...], said: bytes, share: float) -> None:
        rests = [c.encode()[len(said) :] for c in choices if c.encode().startswith(said)]
        for token, logprob in model(seed, so_far, allowed(tokens, rests)).items():
            if token == END:
                found[said.decode()] += share * math.exp(logprob)
            else:
                follow((*so_far, token), said + tokens[token], share * math.exp(logprob))

    follow((), b"", 1.0)
    return found


@given(st.lists(st.text("ab é", min_size=1, max_size=5), min_size=1, max_size=6, unique=True), st.integers(0, 999))
def test_they_are_those_of_all_spellings_together(choices: list[str], seed: int) -> None:
    tokens, looks = spellings(VOCABULARY, {END}, choices), []

    async def look(so_far: tuple[int, ...], texts: list[str], count: int) -> Mapping[int, float]:
        rests = [text.encode() for text in texts]
        looks.append(so_far)
        assert count == beginners(tokens, rests, {END}) == len(allowed(tokens, rests))
        return model(seed, so_far, allowed(tokens, rests))

    found = asyncio.run(choice_logprobs(choices, tokens, {END}, look))
    shares = {choice: math.exp(logprob) for choice, logprob in found.items()}
    assert sum(shares.values()) == pytest.approx(1)
    expected = brute(seed, choices, tokens)
    if not any("é" in choice for choice in choices):  # half a character is a text that cannot be asked about
        assert shares == pytest.approx(expected, abs=OPEN)
    assert len(set(looks)) == len(looks)


def test_one_look_is_enough_where_the_first_token_tells() -> None:
    choices = ["a", "b", "é"]
    tokens = spellings(VOCABULARY, {END}, choices)

    async def never(so_far: tuple[int, ...], texts: list[str], count: int) -> Mapping[int, float]:
        raise AssertionError("asked again")

    first = {1: math.log(0.5), 11: math.log(0.125), 2: math.log(0.25), 8: math.log(0.125), 5: -math.inf}
    found = asyncio.run(choice_logprobs(choices, tokens, {END}, never, first))
    assert {choice: math.exp(logprob) for choice, logprob in found.items()} == pytest.approx(
        {"a": 0.625, "b": 0.25, "é": 0.125}
    )


def test_a_choice_that_never_comes_has_a_finite_logprob() -> None:
    async def look(so_far: tuple[int, ...], texts: list[str], count: int) -> Mapping[int, float]:
        return {1: 0.0, 2: -math.inf}

    found = asyncio.run(choice_logprobs(["a", "b"], spellings(VOCABULARY, {END}, ["a", "b"]), {END}, look))
    assert found["a"] == 0.0
    assert -1000 < found["b"] < -700
