"""Examples in a prompt: what somebody might have asked about other media, and what the model is to have answered.

They stand before each row's own turn, as earlier turns of the conversation. Their media are read once by the command,
to refuse at once what cannot be, and once by each process that makes engine inputs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4cli import media, prompt_templates
from gemma4cli.errors import RowError, UsageError
from gemma4cli.escaping import printable
from gemma4cli.records import Example, Kind, Media

if TYPE_CHECKING:
    from gemma4cli.engine.base import Turns
    from gemma4cli.media import Audio, Image, MediaOptions, Video
    from gemma4cli.recipes import Prompts

KEYS = (*(kind.value for kind in Kind), "prompt", "answer")
MOST = 64
_CHARACTERS = 4  # of a token of text, about
_TURN_TOKENS = 10  # of the chat template around a question and its answer


def of(
    entries: Sequence[Mapping[str, Any]], prompts: Prompts, kinds: frozenset[Kind], options: MediaOptions, budget: int
) -> tuple[Example, ...]:
    """The examples of a recipe, their media looked at.

    Args:
        entries: `image`, `audio`, `video` (a path, or several), `prompt`, which else is the job's, and `answer`.
        budget: soft tokens that a picture may take.

    Raises:
        UsageError: one cannot be read, is no example, or has media that the task does not take.
    """
    if len(entries) > MOST:
        raise UsageError(f"{len(entries)} examples are too many", f"A recipe can have {MOST}.")
    return tuple(_example(entry, f"examples[{i}]", prompts, kinds, options, budget) for i, entry in enumerate(entries))


def _example(
    entry: Mapping[str, Any], shown: str, prompts: Prompts, kinds: frozenset[Kind], options: MediaOptions, budget: int
) -> Example:
    content = tuple(
        Media(str(Path(path).absolute()), kind=kind) for kind in Kind for path in _texts(entry, kind.value, shown)
    )
    prompt = entry.get("prompt") or _usual(prompts, content)
    if prompt is None or prompt_templates.is_template(prompt):
        raise UsageError(
            f"{shown} needs a prompt of its own", "Write prompt = ...: that of the job is filled in by row, or missing."
        )
    answer = entry.get("answer")
    answer = json.dumps(answer, ensure_ascii=False) if isinstance(answer, dict | list) else answer
    if not isinstance(answer, str) or not answer.strip() or not isinstance(prompt, str):
        raise UsageError(f"{shown} has no answer", 'Write answer = "...", as the model is to answer.')
    tokens = _TURN_TOKENS + (len(prompt) + len(answer)) // _CHARACTERS
    digest = blake2b(digest_size=8)
    for medium in content:
        named = f"{shown}: {printable(medium.location)}"
        try:
            (found,) = parts((medium,), kinds, replace(options, exact_frames=False))
            digest.update(Path(medium.location).read_bytes())
        except (RowError, OSError) as error:
            raise UsageError(f"{named}: {error}", "Name a file that can be read, or leave the example out.") from None
        tokens += _tokens(found, budget, named)
    return Example(content, prompt, answer, digest.hexdigest() if content else "", tokens)


@functools.lru_cache(maxsize=256)
def parts(
    content: tuple[Media, ...], kinds: frozenset[Kind], options: MediaOptions
) -> tuple[Image | Audio | Video, ...]:
    """The media of an example, decoded, the same objects every time. Raises FetchError and DecodeError."""
    # They are the job's own files: --root and --start are about rows.
    whole = replace(options, root=None, start_s=None, end_s=None, part_only=False, keep=False)
    return tuple(media.load(medium, kinds, whole) for medium in content)


def turns(examples: Iterable[Example], kinds: frozenset[Kind], options: MediaOptions) -> tuple[Turns, ...]:
    """Examples as an engine takes them."""
    from gemma4cli.engine.base import Turns

    return tuple(
        Turns((*parts(each.content, kinds, options), each.prompt), each.answer, f"example-{each.digest}")
        for each in examples
    )


def _usual(prompts: Prompts, content: Sequence[Media]) -> str | None:
    if prompts.text is not None:
        return prompts.text
    return next((prompts.by_kind[kind] for kind in Kind if kind in prompts.by_kind and _has(content, kind)), None)


def _has(content: Sequence[Media], kind: Kind) -> bool:
    return any(medium.kind is kind for medium in content)


def _texts(entry: Mapping[str, Any], name: str, shown: str) -> list[str]:
    found = entry.get(name, [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise UsageError(f"{shown}: {name} is no path", f'Write {name} = "file", or a list of them.')
    return found


def _tokens(found: Image | Audio | Video, budget: int, shown: str) -> int:
    from gemma4cli import gemma
    from gemma4cli.media import Audio, Image

    match found:
        case Image():
            return gemma.image_tokens(found.width, found.height, budget) + 2
        case Audio():
            if found.duration_s > gemma.MAX_AUDIO_SECONDS:
                raise UsageError(f"{shown} is longer than {gemma.MAX_AUDIO_SECONDS} s", "Cut it, or leave it out.")
            return gemma.audio_tokens(len(found.samples)) + 2
    frames = len(found.frames)
    return frames * (gemma.video_frame_tokens(found.width, found.height) + gemma.FRAME_MARKS)
