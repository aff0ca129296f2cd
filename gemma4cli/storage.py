"""Files elsewhere: URIs that fsspec opens (s3://, gs://, hf://, memory://, and whatever else is installed).

Credentials and settings are fsspec's own: its configuration files, FSSPEC_... variables, and those of each store.
Paths, file:, data:, http: and https: are none of them: the last two are downloaded by `media.download`, which guards
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from gemma4cli.escaping import printable

_PROTOCOL = re.compile(r"([a-z][a-z0-9+.-]*)(?:://|::)", re.IGNORECASE)
_OWN = frozenset({"file", "local", "data", "http", "https"})
# The host is the store's own, whatever the rest of the URI says. Others may lead to hosts that only this machine can
# reach, as may those inside others (`zip://a.jpg::http://...`).
STORES = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "hf", "oss", "oci", "tos", "memory"})
INSTALL = "install the package of the store beside gemma4: pip install 'gemma4cli[s3]', [gs] or [azure]"
_SECRET = re.compile(r"//[^/@]*@")
_VERSIONS = ("ETag", "etag", "md5Hash", "blob_id", "checksum", "mtime", "LastModified", "last_modified", "updated",
             "created")  # fmt: skip


def protocols(text: str) -> tuple[str, ...]:
    """The protocols of a URI that fsspec opens, the outer one first; empty for all that it has no part in."""
    if "://" not in text:
        return ()
    match = _PROTOCOL.match(text)
    if match is None or match[1].lower() in _OWN or not _is_known(match[1].lower()):
        return ()
    links = (_PROTOCOL.match(link) or re.match("(.*)", link) for link in text.split("::"))
    return tuple(link[1].lower() for link in links if link is not None)


def is_remote(text: str) -> bool:
    """Whether fsspec opens it."""
    return bool(protocols(text))


def filesystem(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path there.

    Raises:
        ImportError: the package that it takes is not installed; the message says which.
        Exception: what the file system raises where its settings are wrong.
    """
    from fsspec.core import url_to_fs

    fs, path = url_to_fs(uri)
    return fs, path


def is_shared(uri: str) -> bool:
    """Whether other processes find there what this one does."""
    return "memory" not in protocols(uri)


def modules(protocols: Iterable[str]) -> list[str]:
    """The modules that open URIs of some protocols; importing one may take seconds."""
    from fsspec.registry import known_implementations

    classes = (known_implementations[name]["class"] for name in sorted(protocols) if name in known_implementations)
    return [name.rpartition(".")[0] for name in classes]


def refusal(uri: str, allowed: Iterable[str]) -> str:
    """Why a row may not name a URI: the protocol that may lead anywhere, and is none of those allowed; else empty."""
    found = protocols(uri)
    free = STORES | frozenset(allowed)
    return next((name for name in found if name not in free), "")


def version(info: dict[str, Any]) -> str:
    """What a listing says of the version of a file: its size, and its checksum or time."""
    mark = next((f"{name} {info[name]}" for name in _VERSIONS if info.get(name) is not None), "")
    return f"{info.get('size')} {mark}"


def reason(error: BaseException) -> str:
    """What a store's exception says, in one line."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
    return printable(_SECRET.sub("//", text))[:200]


def shown(uri: str) -> str:
    """A URI for people, without user and password."""
    return printable(_SECRET.sub("//", uri))


def _is_known(protocol: str) -> bool:
    from fsspec.registry import known_implementations, registry

    return protocol in known_implementations or protocol in registry
