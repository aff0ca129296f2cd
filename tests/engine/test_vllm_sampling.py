"""Constraints on real vLLM: one engine, which is asked the same of the same scenes in several ways."""

from __future__ import annotations

import json
import math
import queue
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from gemma4cli import answers, config, models
from gemma4cli.engine.base import Request
from gemma4cli.engine.vllm import VllmEngine
from gemma4cli.engine.vllm_sampling import refuse_constraint
from gemma4cli.errors import EngineError, UsageError
from gemma4cli.media.decoded import Image
from gemma4cli.records import Constraint, Generation, MediaFacts, Rendered, Sampling
from gemma4cli.tiny import prompts, scenes

# The warnings of torch and transformers are not ours to mend.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

SCENES = [scenes.random_scene(seed) for seed in range(600_000, 600_060)]
GREEDY = Sampling(64, 0.0, 1.0, 0, 0)
COLOURS = tuple(scenes.COLOURS)
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


@dataclass
class Asker:
    """A running engine, and its answers."""

    engine: VllmEngine
    events: queue.SimpleQueue[Generation | EngineError]

    def ask(self, asked: str, sampling: Sampling, shown: list[scenes.Scene] = SCENES) -> list[Generation]:
        for i, scene in enumerate(shown):
            pixels = np.array(scenes.draw(scene))
            part = Image(pixels, pixels.shape[1], pixels.shape[0])
            ready = self.engine.renderer.render(Request(i, (part, asked), "", 70, 64))
            self.engine.submit(
                Rendered(i, ready.payload, ready.nbytes, ready.tokens, MediaFacts(), "", 0.0, 0.0), sampling
            )
        found: dict[int, Generation] = {}
        while len(found) < len(shown):
            event = self.events.get(timeout=200)
            assert isinstance(event, Generation), event
            assert event.failure is None, event.failure
            found[event.row_index] = event
        return [found[i] for i in range(len(shown))]


def configured() -> VllmEngine:
    told = config.build("annotate", config.Overrides(model="tiny", prompt="?", max_soft_tokens=70))
    return VllmEngine.configured(told, models.find("tiny"), False)


@pytest.fixture(scope="module")
def asker() -> Iterator[Asker]:
    engine, events = configured(), queue.SimpleQueue[Any]()
    engine.start(events.put)
    yield Asker(engine, events)
    engine.close()


def test_a_schema_keeps_answers_valid_and_as_right_as_free_ones(asker: Asker) -> None:
    free = asker.ask(prompts.JSON_ANSWER[0], GREEDY)
    typed = asker.ask(prompts.JSON_ANSWER[0], replace(GREEDY, constraint=SCENE))
    expected = [json.loads(scene.json_answer) for scene in SCENES]
    values = [answers.read(SCENE, each, MediaFacts(), 64) for each in typed]
    right = sum(
        {**value, "relation": json.loads(value["relation"])} == truth
        for value, truth in zip(values, expected, strict=True)
    )
    assert right >= sum(each.text == scene.json_answer for each, scene in zip(free, SCENES, strict=True)) >= 50


def test_a_schema_holds_where_the_model_would_say_something_else(asker: Asker) -> None:
    hot = replace(GREEDY, constraint=SCENE, temperature=2.0)
    for each in asker.ask(prompts.DESCRIBE_IMAGE[0], hot, SCENES[:20]):
        if each.finish_reason == "stop":
            assert set(answers.read(SCENE, each, MediaFacts(), 64)) == {"shape", "colour", "relation"}


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


def test_a_pattern_is_kept_to(asker: Asker) -> None:
    sampling = replace(GREEDY, constraint=Constraint(regex="[A-Z]{2}-[0-9]{3}"))
    for each in asker.ask("What is this?", sampling, SCENES[:8]):
        assert answers.read(sampling.constraint or SCENE, each, MediaFacts(), 64) is None


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
