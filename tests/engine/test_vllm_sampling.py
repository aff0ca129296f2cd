"""Constraints on real vLLM: one engine, which is asked the same of the same scenes in several ways."""

from __future__ import annotations

import json
import math
import queue
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4cli import answers, models
from gemma4cli.engine.base import EngineInput, Request, Turns
from gemma4cli.engine.vllm import VllmEngine
from gemma4cli.engine.vllm_sampling import refuse_constraint
from gemma4cli.errors import EngineError, UsageError
from gemma4cli.media.decoded import Image
from gemma4cli.overrides import Overrides, build
from gemma4cli.records import Constraint, Generation, MediaFacts, Rendered, Sampling
from gemma4cli.tiny import CHECKPOINT, prompts, scenes

# The warnings of torch and transformers are not ours to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

SCENES = [scenes.random_scene(seed) for seed in range(600_000, 600_060)]
GREEDY = Sampling(64, 0.0, 1.0, 0, 0)
COLOURS = tuple(scenes.COLOURS)
LABELS = (*COLOURS, "red cross", "grey", "greenish grey", "blueberry", "b", "yellow-green", "blau", "grün")
SCENE = Constraint(
    schema=json.dumps(
        {
            "type": "object",
            "properties": {"shape": {"enum": list(scenes.SHAPES)}, "colour": {"enum": list(COLOURS)}, "relation": {}},
            "required": ["shape", "colour", "relation"],
            "additionalProperties": False,
        }
    )
)
TYPED = replace(GREEDY, constraint=SCENE)


@dataclass
class Asker:
    """A running engine, and its answers."""

    engine: VllmEngine
    events: queue.SimpleQueue[Generation | EngineError]

    def ask(self, asked: str, sampling: Sampling, shown: list[scenes.Scene] = SCENES) -> list[Generation]:
        thinks = sampling.thinking_budget is not None
        for i, scene in enumerate(shown):
            self.submit(
                i, self.engine.renderer.render(Request(i, (picture(scene), asked), "", 70, 64, thinks)), sampling
            )
        return self.answers(len(shown))

    def submit(self, row: int, ready: EngineInput, sampling: Sampling) -> None:
        rendered = Rendered(row, ready.payload, ready.nbytes, ready.tokens, MediaFacts(), "", 0.0, 0.0)
        self.engine.submit(rendered, sampling)

    def answers(self, count: int) -> list[Generation]:
        found: dict[int, Generation] = {}
        while len(found) < count:
            event = self.events.get(timeout=200)
            assert isinstance(event, Generation), event
            assert event.failure is None, event.failure
            found[event.row_index] = event
        return [found[i] for i in range(count)]


def picture(scene: scenes.Scene) -> Image:
    pixels = np.array(scenes.draw(scene))
    return Image(pixels, pixels.shape[1], pixels.shape[0])


def configured(folder: Path) -> VllmEngine:
    """tiny, which where it may think finds a thought begun: it has not learnt to begin one."""
    shutil.copytree(CHECKPOINT, folder)
    template = folder / "chat_template.jinja"
    begun = "{%- if add_generation_prompt and enable_thinking -%}{{- '<|channel>' -}}{%- endif -%}"
    template.write_text(template.read_text() + begun)
    told = build(
        "annotate",
        Overrides(
            model=str(folder), prompt="?", max_soft_tokens=70, thinking=True, logprobs=True, choices=",".join(LABELS)
        ),
    )
    return VllmEngine.configured(told, models.find(str(folder)), False)


@pytest.fixture(scope="module")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    engine, events = configured(tmp_path_factory.mktemp("model") / "tiny"), queue.SimpleQueue[Any]()
    engine.start(events.put)
    yield Asker(engine, events)
    engine.close()


def test_a_schema_keeps_answers_valid_and_as_right_as_free_ones(asker: Asker) -> None:
    free = asker.ask(prompts.JSON_ANSWER[0], GREEDY)
    typed = asker.ask(prompts.JSON_ANSWER[0], replace(GREEDY, constraint=SCENE))
    expected = [json.loads(scene.json_answer) for scene in SCENES]
    values = [answers.read(TYPED, each, MediaFacts()) for each in typed]
    right = sum(
        {**value, "relation": json.loads(value["relation"])} == truth
        for value, truth in zip(values, expected, strict=True)
    )
    assert right >= sum(each.text == scene.json_answer for each, scene in zip(free, SCENES, strict=True)) >= 50


def test_prompts_that_share_a_scene_get_their_own_answers(asker: Asker) -> None:
    told_apart = [scene for scene in SCENES if len({thing.shape for thing in scene.things}) == len(scene.things)]
    assert len(told_apart) >= 40
    expected: list[str] = []
    for i, scene in enumerate(told_apart):
        first, part = scene.things[0], picture(scene)
        asked = (prompts.DESCRIBE_IMAGE[0], prompts.COLOUR_OF[0].format(shape=first.shape))
        requests = [Request(i, (part, prompt), "", 70, 64) for prompt in asked]
        one, other = asker.engine.renderer.render_together(requests)
        assert one.payload["mm_hashes"] == other.payload["mm_hashes"]  # the engine then encodes it once
        for place, ready in enumerate((one, other)):
            asker.submit(2 * i + place, ready, GREEDY)
        expected += [scene.caption, first.colour]
    said = [each.text for each in asker.answers(len(expected))]
    right = [found == truth for found, truth in zip(said, expected, strict=True)]
    assert sum(right[::2]) >= 0.9 * len(told_apart)
    assert sum(right[1::2]) >= 0.9 * len(told_apart)


def test_examples_come_before_each_row(asker: Asker) -> None:
    """`tiny` has not learnt to go by examples. What it is given is what the chat template makes of earlier turns."""
    shown, asked = SCENES[:8], prompts.DESCRIBE_IMAGE[0]
    turns = tuple(Turns((picture(scene), asked), scene.caption, f"example-{i}") for i, scene in enumerate(SCENES[8:10]))
    requests = [Request(i, (picture(scene), asked), "", 70, 64, turns=turns) for i, scene in enumerate(shown)]
    made = [asker.engine.renderer.render(request) for request in requests]
    text = made[0].payload["prompt"]
    order = ("<|image|>", asked, SCENES[8].caption, "<|image|>", asked, SCENES[9].caption, "<|image|>", asked)
    at = 0
    for word in order:
        at = text.index(word, at) + len(word)
    assert text.count("<|turn>model") == 3
    assert len({each.payload["mm_hashes"]["image"][0] for each in made}) == 1  # examples are one and the same
    assert len({each.payload["mm_hashes"]["image"][2] for each in made}) == len(shown)
    assert made[0].tokens.image > 2 * 60
    for i, ready in enumerate(made):
        asker.submit(i, ready, GREEDY)
    assert all(each.output_tokens for each in asker.answers(len(shown)))


def test_a_schema_holds_where_the_model_would_say_something_else(asker: Asker) -> None:
    hot = replace(GREEDY, constraint=SCENE, temperature=2.0)
    for each in asker.ask(prompts.DESCRIBE_IMAGE[0], hot, SCENES[:20]):
        if each.finish_reason == "stop":
            assert set(answers.read(TYPED, each, MediaFacts())) == {"shape", "colour", "relation"}


def test_choices_are_kept_to_with_probabilities_among_them(asker: Asker) -> None:
    alone = [scene for scene in SCENES if len(scene.things) == 1]
    (asked,) = {"What colour is the {shape}?"} & set(prompts.COLOUR_OF)
    limited = replace(GREEDY, constraint=Constraint(choices=COLOURS), logprobs=True)
    right, sure = 0, []
    for scene in alone:
        (each,) = asker.ask(asked.format(shape=scene.things[0].shape), limited, [scene])
        assert each.text in COLOURS
        assert each.logprob is not None
        assert each.logprob <= 1e-3
        right += each.text == scene.things[0].colour
        sure.append(math.exp(each.logprob))
    assert right >= 0.9 * len(alone)
    assert np.mean(sure) > 0.8
    (forced,) = asker.ask("What colour?", replace(limited, constraint=Constraint(choices=("plaid",))), alone[:1])
    assert forced.text == "plaid"
    two = replace(limited, constraint=Constraint(choices=("yes", "no")))
    (drawn,) = asker.ask("What colour?", two, alone[:1])
    assert drawn.text in ("yes", "no")
    assert math.exp(drawn.logprob or 0.0) > 0.25  # the likelier of two ways to say two words


def expected_logprobs(scene: scenes.Scene, asked: str, choices: tuple[str, ...]) -> dict[str, float]:
    """The same by transformers, with every way to spell every choice followed while it matters."""
    import torch

    from gemma4cli.engine.choice_scores import spellings
    from gemma4cli.records import Kind
    from gemma4cli.tiny.reference import Reference

    reference = Reference()
    inputs = reference.inputs(Kind.IMAGE, [np.array(scenes.draw(scene))], [asked], 70)
    tokenizer = reference.processor.tokenizer
    spelled = spellings(tokenizer.get_vocab(), set(tokenizer.all_special_ids), choices)
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<turn|>")]
    found = dict.fromkeys(choices, 0.0)

    def follow(so_far: list[int], said: bytes, share: float) -> None:
        if share < 1e-4:
            return
        more = torch.tensor([so_far], dtype=torch.long)
        given = {**inputs, "input_ids": torch.cat([inputs["input_ids"], more], 1)}
        given["attention_mask"] = torch.ones_like(given["input_ids"])
        kinds = inputs["mm_token_type_ids"]
        given["mm_token_type_ids"] = torch.cat([kinds, torch.zeros((1, len(so_far)), dtype=kinds.dtype)], 1)
        with torch.inference_mode():
            logits = reference.model(**given).logits[0, -1].float()
        nexts = [t for t, data in spelled.items() if any(c.encode().startswith(said + data) for c in choices)]
        allowed = [*nexts, *(ends if said.decode(errors="replace") in choices else [])]
        for token, part in zip(allowed, torch.softmax(logits[allowed], 0).tolist(), strict=True):
            if token in ends:
                found[said.decode()] += share * part
            else:
                follow([*so_far, token], said + spelled[token], share * part)

    follow([], b"", 1.0)
    return found


def test_the_probability_of_every_choice_is_known(asker: Asker) -> None:
    alone = [scene for scene in SCENES if len(scene.things) == 1][:2]
    limited = replace(GREEDY, constraint=Constraint(choices=LABELS), logprobs=True)
    for asked in ("What colour is it?", "Which fruit?"):
        found = asker.ask(asked, limited, alone)
        for each, scene in zip(found, alone, strict=True):
            assert each.choice_logprobs is not None
            shares = {choice: math.exp(logprob) for choice, logprob in each.choice_logprobs.items()}
            assert sum(shares.values()) == pytest.approx(1)
            assert shares == pytest.approx(expected_logprobs(scene, asked, LABELS), abs=0.03)
            assert math.exp(each.logprob or 0.0) <= shares[each.text or ""] + 1e-3


def test_samples_differ_by_their_seeds_and_come_again(asker: Asker) -> None:
    drawn = replace(GREEDY, temperature=2.0, n=4)
    asked = "Which fruit is it?"
    first, again = (asker.ask(asked, drawn, SCENES[:8]) for _ in range(2))
    assert [each.samples for each in first] == [each.samples for each in again]
    assert len({sample.text for each in first for sample in each.samples}) > 12
    (alone,) = asker.ask(asked, replace(drawn, n=None, seed=1), SCENES[:1])
    assert first[0].samples[1].text == alone.text
    for each in first:
        assert (each.text, each.logprob) == (each.samples[0].text, each.samples[0].logprob)
        assert each.output_tokens == sum(sample.output_tokens for sample in each.samples)
        assert all(sample.logprob is not None and sample.logprob < 0 for sample in each.samples)


def test_thoughts_end_at_their_budget_and_stay_out_of_the_answer(asker: Asker) -> None:
    """tiny thinks what it would have said, and is made to answer after two tokens of it."""
    thinking = replace(TYPED, thinking_budget=2)
    (plain,) = asker.ask(prompts.DESCRIBE_IMAGE[0], GREEDY, SCENES[:1])
    for each in asker.ask(prompts.DESCRIBE_IMAGE[0], thinking, SCENES[:8]):
        assert each.thinking is not None
        assert (each.text or "").startswith("{")
        assert each.thinking_tokens is not None
        assert each.thinking_tokens == 3  # with the mark that ends them
        assert each.output_tokens > each.thinking_tokens
        if each.finish_reason == "stop":
            assert set(answers.read(thinking, each, MediaFacts())) == {"shape", "colour", "relation"}
    assert plain.thinking is None
    limited = replace(GREEDY, thinking_budget=2, constraint=Constraint(choices=COLOURS), logprobs=True, n=1)
    for each in asker.ask(prompts.DESCRIBE_IMAGE[0], limited, SCENES[:4]):
        assert each.text in COLOURS
        assert each.choice_logprobs is not None
        assert sum(map(math.exp, each.choice_logprobs.values())) == pytest.approx(1)
        assert each.logprob is not None
        assert each.logprob <= each.choice_logprobs[each.text] + 1e-2
        assert each.samples[0].thinking == each.thinking


def test_a_pattern_is_kept_to(asker: Asker) -> None:
    sampling = replace(GREEDY, constraint=Constraint(regex="[A-Z]{2}-[0-9]{3}"))
    for each in asker.ask("What is this?", sampling, SCENES[:8]):
        assert answers.read(sampling, each, MediaFacts()) is None


@pytest.mark.parametrize(
    ("constraint", "said"),
    [
        (Constraint(regex="(?=a)b"), "--regex: "),
        (
            Constraint(schema=json.dumps({"properties": {"a": {"type": "array", "uniqueItems": True}}})),
            r"--schema, at \$\.properties\.a: .*uniqueItems",
        ),
    ],
)
def test_what_vllm_cannot_keep_to_is_refused_with_its_place(asker: Asker, constraint: Constraint, said: str) -> None:
    with pytest.raises(UsageError, match=f"vLLM cannot keep answers to this {said}"):
        refuse_constraint(replace(GREEDY, constraint=constraint), asker.engine._config)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"type": {"type": "string"}, "items": {"type": "integer"}}},
        {"properties": {"box_2d": {"type": "array", "items": {"type": "integer"}, "x-gemma4": "box"}}},
        {"$defs": {"T": {"properties": {"t": {"$ref": "#/$defs/T"}}, "type": "object"}}, "$ref": "#/$defs/T"},
        {"anyOf": [{"type": "number", "multipleOf": 0.5}, {"type": "null"}]},
    ],
)
def test_what_vllm_can_keep_to_is_not_refused(asker: Asker, schema: dict[str, Any]) -> None:
    refuse_constraint(replace(GREEDY, constraint=Constraint(schema=json.dumps(schema))), asker.engine._config)
