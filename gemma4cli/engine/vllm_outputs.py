"""From what vLLM generated to what the line takes: thoughts apart from answers, and samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4cli.records import Generation, Sample, Sampling

BEGIN, END = "<|channel>", "<channel|>"  # of what is not the answer: thoughts, after a line with their name
_LABEL = "thought\n"
_TAIL = 16  # tokens at the end of a prompt, more than a mark and a label are


class OutputReader:
    """Reads outputs with a model's tokenizer. Thoughts never reach the text, whether they were asked for or not."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._begin, self._end = (tokenizer.convert_tokens_to_ids(mark) for mark in (BEGIN, END))

    def generation(self, row_index: int, prompt: Sequence[int], output: Any, sampling: Sampling) -> Generation:
        """All that came of a row with the prompt's tokens: its own answer is the first."""
        begun = self._begun(prompt)
        samples = tuple(self._sample(completion, begun, sampling) for completion in output.outputs)
        first, metrics = samples[0], output.metrics
        return Generation(
            row_index,
            text=first.text,
            finish_reason=first.finish_reason,
            output_tokens=sum(sample.output_tokens for sample in samples),
            queue_ms=(metrics.scheduled_ts - metrics.queued_ts) * 1000,
            generate_ms=(metrics.last_token_ts - metrics.scheduled_ts) * 1000,
            logprob=first.logprob,
            thinking=first.thinking,
            thinking_tokens=first.thinking_tokens,
            samples=samples if sampling.n is not None else (),
        )

    def thoughts(self, prompt: Sequence[int], token_ids: Sequence[int]) -> tuple[int, ...] | None:
        """The tokens before the answer, the mark that ends them included; None where they do not end."""
        ids = tuple(token_ids)
        if self._end in ids:
            return ids[: len(ids) - ids[::-1].index(self._end)]
        return None if self._begin in ids or self._begun(prompt) else ()

    def _begun(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the beginning of a thought, as some templates have it."""
        marks = [token for token in prompt[-_TAIL:] if token in (self._begin, self._end)]
        return bool(marks) and marks[-1] == self._begin

    def _sample(self, completion: Any, begun: bool, sampling: Sampling) -> Sample:
        ids, logprob = completion.token_ids, completion.cumulative_logprob
        thought = None if sampling.thinking_budget is None else 0
        if not (begun or self._begin in ids or self._end in ids):
            return Sample(completion.text, completion.finish_reason, len(ids), logprob, None, thought)
        thoughts, answer = self._parted(ids, begun)
        if completion.logprobs is not None:
            logprob = sum(completion.logprobs[i][ids[i]].logprob for i in answer)
        return Sample(
            text=self._text([ids[i] for i in answer]),
            finish_reason=completion.finish_reason,
            output_tokens=len(ids),
            logprob=logprob,
            thinking=self._text([ids[i] for i in thoughts]).removeprefix(_LABEL).strip(),
            thinking_tokens=len(ids) - len(answer),
        )

    def _parted(self, ids: Sequence[int], begun: bool) -> tuple[list[int], list[int]]:
        """The places of thoughts and of the answer. Without a mark that begins them, thoughts are what ends in one."""
        thoughts: list[int] = []
        answer: list[int] = []
        into = thoughts if begun else answer
        for i, token in enumerate(ids):
            if token == self._begin:
                into = thoughts
            elif token == self._end:
                if into is answer:
                    thoughts, answer = [*thoughts, *answer], []
                into = answer
            else:
                into.append(i)
        return thoughts, answer

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
