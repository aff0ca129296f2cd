"""What a job will come to, from headers alone: its buckets, tokens, memory and time, and which rows will fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from gemma4cli import buckets, gemma, prompt_templates, rates
from gemma4cli.config import RunConfig
from gemma4cli.errors import ParseError
from gemma4cli.headers import Headers
from gemma4cli.models import Model
from gemma4cli.plan import Load, Planner
from gemma4cli.rates import Rate
from gemma4cli.records import Failure, Item, Kind, Media, Probe, Stage

UNKNOWN = "unknown"
_AT_ONCE = 1024
_TURNS = 10  # tokens of the chat template around what is said
_CHARACTERS = 4  # of a token of text, about


@dataclass(slots=True)
class Share:
    """The rows of one bucket. inputs: of the engine, more than rows where these go there in pieces."""

    rows: int = 0
    inputs: int = 0
    prompt_tokens: int = 0
    nbytes: int = 0
    seconds: float | None = None


@dataclass(slots=True)
class Expected:
    """Rows that will fail for one reason, with the first of them."""

    stage: str
    type: str
    rows: int
    id: str
    message: str


@dataclass(slots=True)
class Forecast:
    """What a job will come to.

    rows: to do.  skipped: of them, those that have a file already and are passed over.
    shares: by bucket; `unknown` holds rows whose media are on other hosts or say too little.
    tokens: soft tokens by kind of media, and `text` as far as it can be told without the tokenizer.
    longest: prompt tokens of the longest input of the engine.  largest: bytes of the largest rendered one.
    """

    rows: int = 0
    skipped: int = 0
    shares: dict[str, Share] = field(default_factory=dict)
    failures: dict[tuple[str, str], Expected] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*Kind, "text"), 0))
    longest: int = 0
    largest: int = 0

    @property
    def failing(self) -> int:
        return sum(group.rows for group in self.failures.values())

    @property
    def inputs(self) -> int:
        return sum(share.inputs for share in self.shares.values())

    @property
    def seconds(self) -> float | None:
        """As far as the rates are known; None where none is."""
        known = [share.seconds for share in self.shares.values() if share.seconds is not None]
        return sum(known) if known else None


def forecast(
    items: Iterable[Item], config: RunConfig, model: Model, context: int, passed: Callable[[Item], bool] | None = None
) -> Forecast:
    """Looks at every row, holding none of them.

    Args:
        context: tokens that a prompt and its answer may come to together.
        passed: whether a row will be skipped.
    """
    planner, found = Planner(config), Forecast()
    fixed = _text_tokens(config.prompts.system) + _TURNS + sum(example.tokens for example in config.examples)
    prompts = {kind: _text_tokens(config.prompts.by_kind.get(kind, "")) for kind in Kind}
    templates = any(map(prompt_templates.is_template, config.wordings))
    asks = [recipe.prompts.text for recipe in config.asks(None)]
    asked = [None if text is None else _text_tokens(text) for text in asks]
    with Headers(config.kinds, config.media.options()) as headers:
        for item, probes in _probed(items, planner, headers):
            found.rows += 1
            if passed is not None and item.failure is None and passed(item):
                found.skipped += 1
                continue
            item, asked = _worded(item, config, asked) if templates else (item, asked)
            loads = planner.loads(item, probes) if item.failure is None else ()
            usual = max((prompts[p.kind] for p in probes if p.kind), default=0)
            texts = [fixed + (usual if text is None else text) for text in asked]
            if item.prompt is not None or item.system is not None or len(item.content) != len(loads):
                texts = [_text_of(item, text, fixed) for text in texts]
            inputs, around = _inputs(loads), sum(load.tokens + load.around for load in loads)
            prompt = around * len(texts) + sum(texts) * inputs
            longest = around // inputs + max(texts)
            failure = item.failure or _failure(probes, loads, model, config, longest, context)
            if failure is not None:
                _add_failure(found, failure, item)
                continue
            names = [load.bucket for load in loads]
            name = UNKNOWN if not all(names) else buckets.joined(names) or "text"
            share = found.shares.get(name)
            if share is None:
                share = found.shares[name] = Share()
            nbytes = sum(load.nbytes for load in loads)
            share.rows += 1
            share.inputs += inputs
            share.prompt_tokens += prompt
            share.nbytes += nbytes
            for load in loads:
                if load.kind is not None:
                    found.tokens[load.kind] += load.tokens * len(texts)
            found.tokens["text"] += prompt - sum(load.tokens for load in loads) * len(texts)
            found.longest = max(found.longest, longest)
            found.largest = max(found.largest, nbytes // inputs)
    return found


def timed(found: Forecast, known: Mapping[str, Rate]) -> None:
    """Gives each bucket the seconds that it will take by the rates of earlier runs, where there are such."""
    by_kind: dict[str, Rate] = {}
    for name, rate in known.items():
        by_kind.setdefault(buckets.kind_of(name), Rate()).add(rate)
    for name, share in found.shares.items():
        same, alike = known.get(rates.name_of(name)), by_kind.get(buckets.kind_of(name))
        if same is not None and same.rows >= rates.LEAST_ROWS and "-" in rates.name_of(name):
            share.seconds = share.inputs * same.seconds / same.rows
        elif alike is not None and alike.rows >= rates.LEAST_ROWS and alike.prompt_tokens:
            share.seconds = share.prompt_tokens * alike.seconds / alike.prompt_tokens


def output_tokens(found: Forecast, known: Mapping[str, Rate]) -> float | None:
    """Mean tokens of an answer in earlier runs; None where there were none."""
    every = Rate()
    for rate in known.values():
        every.add(rate)
    return every.output_tokens / every.rows if every.rows >= rates.LEAST_ROWS else None


def kv_bytes(config: Mapping[str, Any], tokens: int) -> int | None:
    """Bytes of keys and values of so many tokens in bfloat16, by a model's configuration; None if it does not say."""
    text = config.get("text_config") or {}
    try:
        shared = text.get("num_kv_shared_layers") or 0
        total = 0
        for kind in text["layer_types"][: len(text["layer_types"]) - shared]:
            whole = kind == "full_attention"
            heads = (text.get("num_global_key_value_heads") if whole else None) or text["num_key_value_heads"]
            width = (text.get("global_head_dim") if whole else None) or text["head_dim"]
            total += 2 * 2 * heads * width * (tokens if whole else min(tokens, text["sliding_window"]))
    except (KeyError, TypeError):
        return None
    return total


def _worded(item: Item, config: RunConfig, usual: list[int | None]) -> tuple[Item, list[int | None]]:
    """Tokens of each prompt to a row where prompts are filled in, or the row with the reason why they cannot be."""
    if item.failure is not None:
        return item, usual
    texts = [recipe.prompts.text for recipe in config.asks(None)]
    try:
        filled = [None if text is None else prompt_templates.filled(text, item) for text in texts]
        for text in config.wordings:
            prompt_templates.filled(text or "", item)
    except ParseError as error:
        return replace(item, failure=error.failure()), usual
    return item, [None if text is None else _text_tokens(text) for text in filled]


def _inputs(loads: Iterable[Load]) -> int:
    """How many inputs of the engine a row makes."""
    together, apart = 1, 0
    for load in loads:
        if load.apart:
            apart += load.pieces
        else:
            together = max(together, load.pieces)
    return together + apart


def _probed(items: Iterable[Item], planner: Planner, headers: Headers) -> Iterator[tuple[Item, tuple[Probe, ...]]]:
    """Each row with what its columns or headers say."""
    source = iter(items)
    while window := list(islice(source, _AT_ONCE)):
        known = [() if item.failure is not None else planner.stated(item) for item in window]
        read = iter(headers.read(item for item, found in zip(window, known, strict=True) if found is None))
        for item, found in zip(window, known, strict=True):
            yield item, next(read) if found is None else found


def _failure(
    probes: Iterable[Probe], loads: Iterable[Load], model: Model, config: RunConfig, prompt: int, context: int
) -> Failure | None:
    """Why the row will fail, as far as that shows; in the words of the run."""
    for known in probes:
        if known.failure is not None:
            return known.failure
    for load in loads:
        if load.kind is Kind.AUDIO and not model.hears:
            return Failure(Stage.RENDER, "no_audio_tower", f"{model.name} takes no audio; E2B, E4B and 12B do")
        if load.kind in (Kind.IMAGE, Kind.VIDEO) and not model.sees:
            return Failure(Stage.RENDER, "no_vision_tower", f"{model.name} takes no images or video")
        if load.kind is Kind.AUDIO and load.pieces == 1 and load.fine > gemma.MAX_AUDIO_SECONDS:
            message = (
                f"{load.fine:.0f} s of sound, by its header; the model hears {gemma.MAX_AUDIO_SECONDS} s at a time"
            )
            return Failure(Stage.RENDER, "audio_too_long", message)
    if prompt + config.longest_answer > context:
        message = (
            f"the prompt takes about {prompt:,} tokens, which leaves no room for {config.longest_answer} of "
            f"output in a context of {context:,}"
        )
        return Failure(Stage.RENDER, "prompt_too_long", message)
    return None


def _add_failure(found: Forecast, failure: Failure, item: Item) -> None:
    key = failure.stage.value, failure.type
    group = found.failures.get(key)
    if group is None:
        found.failures[key] = Expected(*key, 1, item.id, failure.message)
    else:
        group.rows += 1


def _text_tokens(text: str) -> int:
    return -(-len(text) // _CHARACTERS)


def _text_of(item: Item, usual: int, fixed: int) -> int:
    said = sum(_text_tokens(part) for part in item.content if not isinstance(part, Media))
    own = usual if item.prompt is None else fixed + _text_tokens(item.prompt)
    return said + own + (_text_tokens(item.system) if item.system is not None else 0)
