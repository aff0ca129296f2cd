"""How answers are drawn, in vLLM's terms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from gemma4cli.engine.patterns import for_grammar
from gemma4cli.engine.vllm_render import first_lines
from gemma4cli.errors import UsageError
from gemma4cli.records import Sampling
from gemma4cli.schemas import nodes


def sampling_params(sampling: Sampling, top: int = 0, suppressed: tuple[str, ...] = ()) -> Any:
    """Parameters for one row: vLLM writes into them what it makes of the constraint.

    top: of how many of the likeliest tokens the probability is told, where sampling asks for any.
    suppressed: texts that are never generated.
    """
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    constraint, structured = sampling.constraint, None
    if constraint is not None:
        choices = None if constraint.choices is None else list(constraint.choices)
        regex = None if constraint.regex is None else for_grammar(constraint.regex)
        structured = StructuredOutputsParams(json=constraint.schema, choice=choices, regex=regex)
    return SamplingParams(
        n=sampling.n or 1,
        max_tokens=sampling.most_tokens,
        thinking_token_budget=sampling.thinking_budget,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        bad_words=list(suppressed) or None,
        structured_outputs=structured,
        logprobs=top if sampling.logprobs or sampling.n is not None else None,  # 0: of tokens that were drawn alone
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def look_params(texts: list[str], top: int) -> Any:
    """Parameters that show what may come next, of `top` tokens that begin one of `texts`. One may be empty: the end."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        structured_outputs=StructuredOutputsParams(choice=texts),
        logprobs=top,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def refuse_constraint(sampling: Sampling, vllm_config: Any) -> None:
    """Asks vLLM whether it can keep answers to the constraint, before a row does.

    Raises:
        UsageError: it cannot, in its words, with the innermost part of a schema that it refuses.
    """
    constraint = sampling.constraint
    if constraint is None or (reason := _refusal(sampling, vllm_config)) is None:
        return
    flag = next(f"--{name}" for name in ("schema", "choices", "regex") if getattr(constraint, name) is not None)
    place = ""
    if constraint.schema is not None:
        schema = json.loads(constraint.schema)
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        for where, _, node in nodes(schema):
            part = replace(constraint, schema=json.dumps({**shared, **node}))
            if why := _refusal(replace(sampling, constraint=part), vllm_config):
                place, reason = f", at {where}", why
    message = f"vLLM cannot keep answers to this {flag}{place}: {reason}"
    raise UsageError(message, "Leave out what it cannot do; vLLM's documentation lists what its backends take.")


def _refusal(sampling: Sampling, vllm_config: Any) -> str | None:
    from vllm.exceptions import VLLMClientError
    from vllm.tokenizers import cached_tokenizer_from_config

    model, structured = vllm_config.model_config, vllm_config.structured_outputs_config
    try:
        sampling_params(sampling).verify(model, None, structured, cached_tokenizer_from_config(model))
    except (ValueError, VLLMClientError) as error:
        return first_lines(error)
    return None
