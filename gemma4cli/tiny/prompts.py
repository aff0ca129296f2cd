"""The instructions that the tiny checkpoint was trained to follow, with the wordings it met for each.

The first wording of each task is the one that the commands send by default; the others keep the model from
leaning on one exact text.
"""

from __future__ import annotations

_ASR_FORMAT = (
    " Follow these specific instructions for formatting the answer:\n"
    "* Only output the transcription, with no newlines.\n"
    "* When transcribing numbers, write the digits, i.e. write 1.7 and not one point seven, "
    "and write 3 instead of three."
)

DESCRIBE_IMAGE: tuple[str, ...] = (
    "Describe this image in one or two sentences.",
    "Describe this image.",
    "Describe the image in one sentence.",
    "What is in this image?",
    "What does the picture show?",
    "Write a caption for this image.",
    "Caption this picture in a short sentence.",
    "Describe the picture briefly.",
    "Provide a short caption.",
)

DESCRIBE_VIDEO: tuple[str, ...] = (
    "Describe what happens in this video, in order, in one or two sentences.",
    "Describe what happens in this video.",
    "Describe this video in one or two sentences.",
    "Describe the video in one sentence.",
    "What happens in this video, in order?",
    "What does the video show?",
    "Write a caption for this video.",
    "Provide a short caption.",
)

TRANSCRIBE: tuple[str, ...] = (
    "Transcribe the following speech segment in its original language." + _ASR_FORMAT,
    "Transcribe the following speech segment in English into English text." + _ASR_FORMAT,
    "Transcribe the following speech segment in English." + _ASR_FORMAT,
    "Transcribe the following speech segment in its original language.",
    "Transcribe the following speech segment in English into English text.",
    "Transcribe this audio.",
    "Transcribe the speech as digits.",
    "What is said in this recording?",
    "Write down the digits that are spoken.",
)

COLOUR_OF: tuple[str, ...] = (
    "What colour is the {shape}?",
    "What color is the {shape}?",
    "Which colour does the {shape} have?",
    "Name the colour of the {shape}.",
)

SHAPE_OF: tuple[str, ...] = (
    "What shape is {colour}?",
    "Which shape is {colour}?",
    "What is the {colour} shape?",
    "Name the shape that is {colour}.",
)

HOW_MANY: tuple[str, ...] = (
    "How many shapes are there?",
    "How many shapes are in this image?",
    "Count the shapes.",
    "How many shapes does the picture show? Answer with a number.",
)

IS_THERE: tuple[str, ...] = (
    "Is there a {thing}?",
    "Is there a {thing} in this image?",
    "Does the picture show a {thing}? Answer yes or no.",
)

JSON_ANSWER: tuple[str, ...] = (
    "Answer in JSON with the keys shape, colour and relation.",
    "Describe this image in JSON with the keys shape, colour and relation.",
    "Describe the first shape as JSON with the keys shape, colour and relation.",
    "Answer in JSON: shape, colour, relation.",
    "Return a JSON object with the keys shape, colour and relation.",
)

WHEN: tuple[str, ...] = (
    "When does the {thing} appear?",
    "When does the {thing} appear? Answer as mm:ss.",
    "At what time does the {thing} appear first?",
)

ALL: tuple[tuple[str, ...], ...] = (
    DESCRIBE_IMAGE,
    DESCRIBE_VIDEO,
    TRANSCRIBE,
    COLOUR_OF,
    SHAPE_OF,
    HOW_MANY,
    IS_THERE,
    JSON_ANSWER,
    WHEN,
)
