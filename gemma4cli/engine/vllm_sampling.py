"""How answers are drawn, in vLLM's terms."""

from __future__ import annotations

from typing import Any

from gemma4cli.engine.vllm_render import first_lines
from gemma4cli.errors import UsageError
from gemma4cli.records import Sampling


def sampling_params(sampling: Sampling) -> Any:
    """Parameters for one row: vLLM writes into them what it makes of the constraint."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    constraint, structured = sampling.constraint, None
    if constraint is not None:
        choices = None if constraint.choices is None else list(constraint.choices)
        structured = StructuredOutputsParams(json=constraint.schema, choice=choices, regex=constraint.regex)
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        structured_outputs=structured,
        logprobs=0 if sampling.logprobs else None,  # of the tokens that were drawn alone
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def refuse_constraint(sampling: Sampling, vllm_config: Any) -> None:
    """Asks vLLM whether it can keep answers to the constraint, before a row does.

    Raises:
        UsageError: it cannot, in its words.
    """
    if sampling.constraint is None:
        return
    from vllm.tokenizers import cached_tokenizer_from_config

    flag = next(
        f"--{name}" for name in ("schema", "choices", "regex") if getattr(sampling.constraint, name) is not None
    )
    model, structured = vllm_config.model_config, vllm_config.structured_outputs_config
    try:
        sampling_params(sampling).verify(model, None, structured, cached_tokenizer_from_config(model))
    except ValueError as error:
        message = f"vLLM cannot keep answers to this {flag}: {first_lines(error)}"
        raise UsageError(message, "Leave out what it cannot do; see vLLM on structured outputs.") from None
