"""What a row is, and what made it: keys of rows by which a later run knows them again, and the settings of a run.

A row is known by its id and by its content: for a file its name, size and time of change, which cost no reading;
for embedded bytes and data: URIs their hash; for addresses their text; and the row's own prompt and texts, and the
columns that the job's prompts are filled in with.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gemma4cli import features, storage
from gemma4cli.errors import FetchError
from gemma4cli.escaping import printable
from gemma4cli.media import fetch
from gemma4cli.records import Constraint, Item, Kind, Media, Sampling

if TYPE_CHECKING:
    from gemma4cli.config import RunConfig
    from gemma4cli.models import Model

UNKNOWN = 0  # in the place of a content's key: not known, equal to any
_CHUNK = 1 << 20
_LARGEST = 1 << 30  # bytes of a file that are hashed to find its equals: a second or two, in which nothing else happens
# Limits decide whether a row has an answer, never which: raising one does not make the answers others.
_LIMITS = ("max_pixels", "max_duration", "allow_", "root", "timeout", "max_bytes")
_MODEL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja")
_MODEL_FILE = "model file "  # starts the fields of a fingerprint that are about files
_WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")


class Key(NamedTuple):
    """Hashes of a row's id and of its content; `digest` is that of the very bytes, as two halves, 0 if not taken."""

    id: int
    content: int
    digest: tuple[int, int] = (0, 0)


def id_key(id: str) -> int:
    """64 bits of an id. That two ids share them does no harm unless their contents do so as well."""
    return int.from_bytes(blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def content_key(item: Item) -> int:
    """64 bits of what a row is made of; never UNKNOWN. Costs one `stat` for each file."""
    if item.failure is not None:
        text = f"{item.failure.stage}\0{item.failure.type}"
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") or 1
    parts = [b"\0" if item.prompt is None else b"p" + _text(item.prompt)]
    parts += [] if item.system is None else [b"s" + _text(item.system)]
    parts += [] if item.adapter is None else [b"a" + _text(item.adapter)]
    parts += [b"t" + _text(part) if isinstance(part, str) else _stamp(part) for part in item.content]
    parts += [b"c" + _text(f"{name}={value!r}") for name, value in item.told.items()]
    return int.from_bytes(blake2b(b"".join(parts), digest_size=8).digest(), "little") or 1


def content_digest(item: Item, root: str | None = None) -> tuple[int, int]:
    """128 bits of the bytes that a row is made of, read whole, and of its prompt; (0, 0) if they cannot be had.

    They cannot where a file lies outside `root`, is no regular file, or is larger than 1 GiB.
    """
    hash = blake2b(digest_size=16)
    hash.update(b"\0" if item.prompt is None else b"p" + _text(item.prompt))
    hash.update(b"" if item.system is None else b"s" + _text(item.system))
    for name, value in item.told.items():
        hash.update(b"c" + _text(f"{name}={value!r}"))
    hash.update(b"" if item.adapter is None else b"a" + _text(item.adapter))
    try:
        for part in item.content:
            if isinstance(part, str):
                hash.update(b"t" + _text(part))
                continue
            hash.update(_what(part))
            path = None if part.data is not None else local_path(part.location)
            inner = blake2b(part.data or b"", digest_size=16) if path is None else _file_hash(path, root, part.span)
            if part.data is None and path is None:
                inner.update(b"u" + _text(part.location) + _version(part))
            hash.update(inner.digest())
    except (OSError, ValueError, FetchError):
        return (0, 0)
    if item.failure is not None or not item.content:
        return (0, 0)
    value = hash.digest()
    return int.from_bytes(value[:8], "little") or 1, int.from_bytes(value[8:], "little")


def local_path(location: str) -> str | None:
    """The path that a location means; None for URIs of other kinds than file:, and for those that mean no path."""
    if location.startswith("/"):
        return location
    head = location[:8].lower()
    if head.startswith("file:"):
        try:
            return fetch.path_of(location)
        except FetchError:
            return None
    return None if head.startswith(("data:", "http:", "https:")) or storage.is_remote(location) else location


def fingerprint(config: RunConfig, model: Model) -> dict[str, Any]:
    """What decides the answers of a run, as flat fields with values for people: model, prompts, sampling, media.

    A checkpoint in a local folder is known by its files' names, sizes and times, not by the path alone.
    """
    from gemma4cli.models import ALIASES
    from gemma4cli.overrides import kinds_of

    folder = Path(model.location)
    local = model.revision is None and folder.is_dir()
    found: dict[str, Any] = {
        "task": config.task,
        "engine": config.engine,
        "model": folder.name if local else ALIASES.get(model.name, model.name),
    }
    if local:
        found |= {f"{_MODEL_FILE}{name}": stamp for name, stamp in _files_of(folder).items()}
    else:
        found["revision"] = model.revision
    if config.kinds != kinds_of(config.task):
        found["--kinds"] = ",".join(sorted(config.kinds))
    found["--system"] = config.prompts.system
    if config.prompts.text is not None:
        found["--prompt"] = config.prompts.text
    else:
        found |= {f"prompt for {kind.value}": text for kind, text in config.prompts.by_kind.items()}
    found["--condition-on-previous-text"] = config.prompts.previous
    for flag, recipe in (("--with-audio", config.sound), ("--summarise", config.summary)):
        if recipe is not None:
            found |= {f"{flag}: prompt": recipe.prompts.text or recipe.prompts.by_kind[Kind.AUDIO]}
            found |= {
                f"{flag}: {field.name}": getattr(recipe.sampling, field.name) for field in fields(recipe.sampling)
            }
    for section in (config.sampling, config.media):
        for field in fields(section):
            if field.name != "constraint" and not field.name.startswith(_LIMITS):
                value = getattr(section, field.name)
                flag = f"--{field.name.replace('_', '-')}"
                found[flag] = value if isinstance(value, (int, float, str)) or value is None else str(value)
    found |= features.fingerprint(config.features)
    found |= _constraint(config.sampling, "--")
    for i, each in enumerate(config.examples):
        found[f"examples[{i}]"] = f"{each.digest} {each.prompt} -> {each.answer}"
    for name, recipe in config.outputs.items():
        prompts = recipe.prompts
        found[f"outputs.{name}.prompt"] = prompts.text or json.dumps(prompts.by_kind, ensure_ascii=False)
        found |= {f"outputs.{name}.{setting}": value for setting, value in asdict(recipe.sampling).items()}
        found |= _constraint(recipe.sampling, f"outputs.{name}.")
        del found[f"outputs.{name}.constraint"]
    if found.pop("--auto-soft-tokens"):
        found["--max-soft-tokens"] = f"auto:{config.media.max_soft_tokens}"
    # What is not set is left out, so that a setting that a later version adds makes no difference until it is used.
    return {name: value for name, value in found.items() if value is not None and value is not False}


def _constraint(sampling: Sampling, before: str) -> dict[str, Any]:
    """What an answer may be, by names with `before` before them."""
    constraint = sampling.constraint or Constraint()
    choices = None if constraint.choices is None else json.dumps(constraint.choices, ensure_ascii=False)
    return {
        f"{before}schema": constraint.schema,
        f"{before}schema (its model)": constraint.model,
        f"{before}choices": choices,
        f"{before}regex": constraint.regex,
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each field that differs, in words: from what to what."""
    return [
        _file_difference(name, old.get(name), new.get(name))
        if name.startswith(_MODEL_FILE)
        else f"{name} was {_shown(old[name]) if name in old else 'not set'}, "
        f"is {_shown(new[name]) if name in new else 'not set'}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name) or (name in old) != (name in new)
    ]


def _file_difference(name: str, old: Any, new: Any) -> str:
    """What became of a file of the checkpoint; its stamps are texts as `_files_of` makes them."""
    if old is None or new is None:
        return f"{printable(name)} {'is new' if old is None else 'is gone'}"
    return f"{printable(name)} has changed: it was {_stamp_in_words(old)}, is {_stamp_in_words(new)}"


def _stamp_in_words(stamp: Any) -> str:
    try:
        size, time = str(stamp).split(" bytes of ")
        written = datetime.fromtimestamp(float(time), UTC)
        return f"{int(size):,} bytes, last written {written:%Y-%m-%d %H:%M:%S}.{written.microsecond // 1000:03} UTC"
    except (ValueError, OverflowError, OSError):
        return _shown(stamp)


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    text = printable(text)
    return text if len(text) <= 60 else f"{text[:40]}...{text[-15:]}"


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return len(data).to_bytes(8, "little") + data


def _what(media: Media) -> bytes:
    """What a medium is taken for, and which part of it is meant."""
    part = "" if media.start_s is None and media.end_s is None else f" {media.start_s} {media.end_s}"
    return f"{media.kind}{part} ".encode()


def _stamp(media: Media) -> bytes:
    if media.data is not None:
        return b"d" + _what(media) + blake2b(media.data, digest_size=16).digest()
    path = local_path(media.location)
    if path is None:
        return b"u" + _what(media) + _text(media.location) + _version(media)
    try:
        found = os.stat(path)  # noqa: PTH116  a Path for each row would double the cost of a key
        what = f"{found.st_size} {found.st_mtime_ns} "
    except (OSError, ValueError):
        what = "missing "
    return b"f" + _what(media) + what.encode() + _text(path.rpartition("/")[2]) + _version(media)


def _version(media: Media) -> bytes:
    """What tells a file elsewhere from what it was, and a part of a file from its others."""
    said = b"" if media.version is None else b"v" + _text(media.version)
    return said if media.span is None else said + f"{media.span}".encode()


def _file_hash(path: str, root: str | None, span: tuple[int, int] | None) -> blake2b:
    hash = blake2b(digest_size=16)
    left = _LARGEST
    with fetch.open_file(path, root) as whole:
        file = whole if span is None else fetch.part_of(whole, span)
        if span is None and os.fstat(whole.fileno()).st_size > left:
            raise OSError("too large to be compared")
        while chunk := file.read(_CHUNK):
            hash.update(chunk)
            left -= len(chunk)
            if left < 0:  # it grows while it is read
                raise OSError("too large to be compared")
    return hash


def _files_of(folder: Path) -> dict[str, str]:
    stamps = {}
    for path in sorted(folder.iterdir()):
        if path.name in _MODEL_FILES or path.suffix in _WEIGHTS:
            found = path.stat()
            stamps[path.name] = f"{found.st_size} bytes of {found.st_mtime_ns / 1e9:.3f}"
    return stamps
