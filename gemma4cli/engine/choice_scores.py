"""How likely each of several choices is, from how likely the tokens are that can begin them.

An answer is drawn token by token, each from among those that can still become a choice. What tells two choices apart
is mostly the first token, which one look shows all at once. Where a token begins several choices, what follows it is
looked at as well, the likeliest first, until what is still open cannot matter.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

OPEN = 1e-4  # of the probability may stay unassigned to one choice; it is shared among those that it may belong to
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LEAST = 5e-324  # the least number above 0

Look = Callable[[tuple[int, ...], list[str], int], Awaitable[Mapping[int, float]]]
"""What may follow tokens -> log-probabilities of the next token, among those that begin one of the texts.

It is given the tokens so far, the texts, and how many tokens begin one of them, those that end an answer included.
"""


def spellings(vocabulary: Mapping[str, int], special: Collection[int], choices: Sequence[str]) -> dict[int, bytes]:
    """The tokens that occur in the choices, with their bytes.

    vocabulary: pieces in the form of Gemma's tokenizer, `▁` for a space and `<0x0A>` for a byte, and their ids.
    """
    text = b"\0".join(choice.encode() for choice in choices)
    found = {}
    for piece, token in vocabulary.items():
        if token in special:
            continue
        match = _BYTE.fullmatch(piece)
        data = bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()
        if data and data in text:
            found[token] = data
    return found


def beginners(tokens: Mapping[int, bytes], rests: Sequence[bytes], ends: Collection[int]) -> int:
    """How many tokens can come next, where one of `rests` is to follow or, if one is empty, the end."""
    return sum(any(rest.startswith(data) for rest in rests) for data in tokens.values()) + len(ends) * (b"" in rests)


async def choice_logprobs(
    choices: Sequence[str],
    tokens: Mapping[int, bytes],
    ends: Collection[int],
    look: Look,
    first: Mapping[int, float] | None = None,
) -> dict[str, float]:
    """Natural logarithm of each choice's probability; the probabilities come to 1.

    Args:
        tokens: as `spellings` gives them.
        ends: tokens that end an answer.
        first: what `look` would say of the beginning, where that is known.
    """
    known = {choice: choice.encode() for choice in choices}
    shares = dict.fromkeys(choices, 0.0)
    # Tokens that begin several choices: how likely they are (negative, for the heap's order), and their bytes.
    waiting: list[tuple[float, tuple[int, ...], bytes]] = [(-1.0, (), b"")]
    undecided: list[tuple[float, bytes]] = []  # that end within a character, after which no text can be asked for
    while waiting and -sum(share for share, *_ in waiting) > OPEN:
        share, so_far, said = heapq.heappop(waiting)
        rests = [data[len(said) :] for data in known.values() if data.startswith(said)]
        try:
            texts = [rest.decode() for rest in rests]
        except UnicodeDecodeError:
            undecided.append((-share, said))
            continue
        if first is None or so_far:
            found = await look(so_far, texts, beginners(tokens, rests, ends))
        else:
            found = first
        for token, logprob in found.items():
            part = -share * math.exp(logprob)
            if token in ends:
                fitting = [choice for choice, data in known.items() if data == said]
            elif token in tokens:
                now = said + tokens[token]
                fitting = [choice for choice, data in known.items() if data.startswith(now)]
            else:
                continue
            if len(fitting) == 1:
                shares[fitting[0]] += part
            elif fitting and part > 0:
                heapq.heappush(waiting, (-part, (*so_far, token), said + tokens[token]))
    undecided += [(-share, said) for share, _, said in waiting]
    for share, said in undecided:
        fitting = [choice for choice, data in known.items() if data.startswith(said)]
        for choice in fitting:
            shares[choice] += share / len(fitting)
    whole = sum(shares.values()) or 1.0
    return {choice: math.log(max(share / whole, _LEAST)) for choice, share in shares.items()}
