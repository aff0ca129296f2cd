"""Which columns of a manifest name the media, the id and the prompt."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable
from gemma4cli.records import Kind

ID_NAMES = ("id", "custom_id", "key", "__key__")
_WORDS = {
    Kind.IMAGE: frozenset({"image", "images", "img", "imgs", "picture", "pictures", "photo", "photos"}),
    Kind.AUDIO: frozenset({"audio", "audios", "sound", "sounds", "speech", "wav"}),
    Kind.VIDEO: frozenset({"video", "videos", "clip", "clips"}),
}
_ENDINGS = ("", "_path", "_file", "_filepath", "_file_path", "_filename", "_file_name", "_url", "_uri", "_bytes")
_STEMS = {
    Kind.IMAGE: ("image", "images", "img", "picture", "photo"),
    Kind.AUDIO: ("audio", "audios", "sound", "speech", "wav"),
    Kind.VIDEO: ("video", "videos", "clip"),
}
_NEUTRAL = ("media", "path", "file", "file_path", "filepath", "file_name", "filename", "url", "uri", "paths", "files")
_FEATURES = {"Image": Kind.IMAGE, "Audio": Kind.AUDIO, "Video": Kind.VIDEO}


@dataclass(frozen=True, slots=True)
class MediaColumn:
    """A column that names media.

    steps: its name, then the fields to go down in a struct.
    kind: what its name, or the data set's own description, says it holds; None lets the content decide.
    many: its cells are lists of media.
    """

    name: str
    steps: tuple[str, ...]
    kind: Kind | None
    many: bool


@dataclass(frozen=True, slots=True)
class ContentColumn:
    """Where content in OpenAI's form stands: a list of parts, or of whole messages.

    beside: columns that belong to it and are not carried.
    """

    steps: tuple[str, ...]
    messages: bool
    beside: frozenset[str]


@dataclass(frozen=True, slots=True)
class Choice:
    """The columns of a manifest by the part they play.

    carried: those that go to the output, with their types there.
    content: the one that holds media and texts in order; then no other one holds media.
    """

    media: tuple[MediaColumn, ...]
    id: str | None
    prompt: str | None
    carried: pa.Schema
    content: ContentColumn | None = None


def choose(
    schema: pa.Schema,
    manifest: str,
    *,
    kinds: frozenset[Kind],
    kind: Kind | None = None,
    media_columns: Sequence[str],
    id_column: str | None,
    prompt_column: str | None,
    as_json: frozenset[str] = frozenset(),
) -> Choice:
    """Picks the columns of a manifest whose types are known; `as_json` are those of values of several types.

    Columns of `kind` go before those of the other kinds.

    Raises:
        UsageError: a named column is not there, or no column looks like media and some were expected.
    """
    features = hf_features(schema)
    content = None if media_columns else _content(schema, as_json)
    media: tuple[MediaColumn, ...] = ()
    if media_columns:
        media = tuple(_named(name, schema, features, manifest) for name in media_columns)
    elif content is None:
        media = tuple(_usual(schema, features, kinds, kind))
        if not media and kinds and len(schema):
            words = " or ".join(kind.value for kind in sorted(kinds))
            raise UsageError(
                f"no column of {manifest} is called like {words} files",
                f"name it with --media-column; the columns are: {_listing(schema.names)}",
            )
    for name in (id_column, prompt_column):
        if name is not None and len(schema) and name not in schema.names:
            raise _unknown(name, schema.names, manifest)
    id_name = id_column or next((name for name in ID_NAMES if name in schema.names), None)
    apart = {column.name for column in media if len(column.steps) == 1} | {id_name}
    if content is not None:
        apart |= content.beside
    if prompt_column is not None:
        apart.discard(prompt_column)
    carried = [field for field in schema if field.name not in apart]
    for column in media:
        carried = [_without(field, column.steps) if field.name == column.steps[0] else field for field in carried]
    carried = [field for field in carried if field is not None]
    kept = {field.name: features[field.name] for field in carried if field.name in features}
    metadata = {"huggingface": json.dumps({"info": {"features": kept}})} if kept else None
    return Choice(media, id_name, prompt_column, pa.schema(carried, metadata), content)


def _content(schema: pa.Schema, as_json: frozenset[str]) -> ContentColumn | None:
    """A line of an OpenAI batch, else a column of messages, else one of parts; None where there is no such thing.

    Parts and messages are lists of objects that say what they are; where texts stand among them, the column's values
    are of several types.
    """
    names = frozenset(schema.names)
    if "custom_id" in names and ("body" in as_json or _says(schema, ("body", "messages"), "role")):
        return ContentColumn(("body", "messages"), True, frozenset({"body", "method", "url"}) & names)
    if "messages" in as_json or _says(schema, ("messages",), "role"):
        return ContentColumn(("messages",), True, frozenset({"messages"}))
    if "content" in as_json or _says(schema, ("content",), "type"):
        return ContentColumn(("content",), False, frozenset({"content"}))
    return None


def _says(schema: pa.Schema, steps: Sequence[str], field: str) -> bool:
    """Whether a column is a list of structs with this field."""
    kind = _type_at(schema, steps)
    if kind is None or not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    return bool(pa.types.is_struct(kind.value_type) and kind.value_type.get_field_index(field) >= 0)


def hf_features(schema: pa.Schema) -> Mapping[str, Any]:
    """The `datasets` features that a Parquet file describes itself with; empty without any."""
    try:
        return dict(json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError):
        return {}


def _usual(
    schema: pa.Schema, features: Mapping[str, Any], kinds: frozenset[Kind], first: Kind | None
) -> Iterable[MediaColumn]:
    """Columns described as media; else those called after a kind, one of each; else one called like a file.

    Failing all that, a column of {bytes, path} structs, which is how `datasets` stores media. Where there are any of
    the kind `first`, others do not count.
    """
    if not kinds:
        return []
    described = [(name, kind) for name in schema.names if (kind := _described(features.get(name))) is not None]
    called: dict[Kind, tuple[str, Kind]] = {}
    lower = {name.lower(): name for name in reversed(schema.names)}
    for kind, stems in _STEMS.items():
        for candidate in (stem + ending for ending in _ENDINGS for stem in stems):
            if candidate in lower:
                called.setdefault(kind, (lower[candidate], kind))
    for pairs in (described, list(called.values())):
        fitting = [pair for pair in pairs if pair[1] is first] or [pair for pair in pairs if pair[1] in kinds]
        if fitting:
            order = {name: i for i, name in enumerate(schema.names)}
            fitting.sort(key=lambda pair: order[pair[0]])
            return [MediaColumn(name, (name,), kind, _many(schema, (name,))) for name, kind in fitting]
    named = (lower[name] for name in _NEUTRAL if name in lower)
    embedded = (f.name for f in schema if pa.types.is_struct(f.type) and {"bytes", "path"} <= {g.name for g in f.type})
    neutral = next(chain(named, embedded), None)
    return [] if neutral is None else [MediaColumn(neutral, (neutral,), None, _many(schema, (neutral,)))]


def _named(name: str, schema: pa.Schema, features: Mapping[str, Any], manifest: str) -> MediaColumn:
    if name in schema.names or not len(schema):
        steps: tuple[str, ...] = (name,)
    else:
        # The longest column name that starts it is the column, the rest are fields: a name may have dots itself.
        column = max((n for n in schema.names if name.startswith(n + ".")), key=len, default=None)
        if column is None:
            raise _unknown(name, schema.names, manifest)
        steps = (column, *name[len(column) + 1 :].split("."))
        known = _type_at(schema, steps)
        if known is None:
            raise UsageError(
                f"column {printable(column)} of {manifest} has no field {printable('.'.join(steps[1:]))}",
                f"its type is {schema.field(column).type}",
            )
    kind = _described(features.get(name)) or _kind_of_words(name)
    return MediaColumn(name, steps, kind, _many(schema, steps))


def _described(feature: Any) -> Kind | None:
    """Image, Audio or Video, or a list of one of them, in either notation of `datasets`."""
    if isinstance(feature, list) and len(feature) == 1:
        return _described(feature[0])
    if isinstance(feature, dict):
        if "feature" in feature:
            return _described(feature["feature"])
        return _FEATURES.get(str(feature.get("_type")))
    return None


def _kind_of_words(name: str) -> Kind | None:
    words = set(re.split(r"[^a-z]+", name.lower()))
    kinds = [kind for kind, of_kind in _WORDS.items() if words & of_kind]
    return kinds[0] if len(kinds) == 1 else None


def _type_at(schema: pa.Schema, steps: Sequence[str]) -> pa.DataType | None:
    """The type of a nested field; None if there is none. Text columns may hold JSON objects: any field will do."""
    if steps[0] not in schema.names:
        return None
    kind = schema.field(steps[0]).type
    for step in steps[1:]:
        if pa.types.is_string(kind):
            return kind
        if not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return kind


def _many(schema: pa.Schema, steps: Sequence[str]) -> bool:
    kind = _type_at(schema, steps)
    return steps[-1].lower() in {"images", "audios", "videos", "paths", "files"} or (
        kind is not None and (pa.types.is_list(kind) or pa.types.is_large_list(kind))
    )


def _without(field: pa.Field | None, steps: Sequence[str]) -> pa.Field | None:
    """A column without the media in it, and without bytes beside their path; None if nothing else is left."""
    if field is None or not pa.types.is_struct(field.type):
        return field
    dropped = (steps[1], "bytes") if len(steps) == 2 else ()
    fields = [_without(f, steps[1:]) if f.name == steps[1] else f for f in field.type if f.name not in dropped]
    kept = [f for f in fields if f is not None]
    return field.with_type(pa.struct(kept)) if kept else None


def _unknown(name: str, names: Sequence[str], manifest: str) -> UsageError:
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    did = f"did you mean {printable(near[0])}? " if near else ""
    return UsageError(f"{manifest} has no column {printable(name)}", f"{did}the columns are: {_listing(names)}")


def _listing(names: Sequence[str], most: int = 40) -> str:
    shown = ", ".join(printable(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
