"""Rows of equal content and equal prompt: the first is computed, the others get its answer.

They stay rows of their own. `duplicate_of` names the row that was computed, `attempts` is 0, and the columns of tokens
and times are empty, since nothing was spent on them; a failure is handed on as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gemma4cli import keys, reading
from gemma4cli.identity import Key, content_digest
from gemma4cli.ledger import Source
from gemma4cli.records import Item, Row, Status
from gemma4cli.schema import DUPLICATE_KEY, DUPLICATE_OF, ROW_FIELDS

Digest = tuple[int, int]
Ints = np.ndarray[Any, np.dtype[Any]]
_RECENT = 1 << 16
_AT_ONCE = 4096  # rows that wait for their answers to be looked up
_SPENT = ("prompt_tokens", "image_tokens", "audio_tokens", "video_tokens", "output_tokens",
          "decode_ms", "render_ms", "queue_ms", "generate_ms")  # fmt: skip
_OWN = ("row_index", "id", "source", "attempts")
_COPIED = tuple(name for name in ROW_FIELDS if name not in _SPENT and name not in _OWN)


class Seen:
    """Digests and the row_index of the first row with each: 24 bytes a row, sorted, and a few more in a dictionary."""

    def __init__(self, high: Ints, low: Ints, row_index: Ints) -> None:
        order = np.lexsort((row_index, low, high))
        self._high, self._low, self._row_index = high[order], low[order], row_index[order]
        self._recent: dict[tuple[int, int], int] = {}

    def first(self, digest: tuple[int, int], row_index: int) -> int:
        """The row that had this digest first: an earlier one, or else this one."""
        found = self._recent.get(digest)
        if found is not None:
            return found
        at = int(np.searchsorted(self._high, np.uint64(digest[0])))
        while at < len(self._high) and int(self._high[at]) == digest[0]:
            if int(self._low[at]) == digest[1]:
                return int(self._row_index[at])
            at += 1
        self._recent[digest] = row_index
        if len(self._recent) >= _RECENT:
            self._settle()
        return row_index

    def _settle(self) -> None:
        recent = np.array(list(self._recent), np.uint64)
        index = np.fromiter(self._recent.values(), np.int64)
        order = np.lexsort((recent[:, 1], recent[:, 0]))
        at = np.searchsorted(self._high, recent[order, 0])
        self._high = np.insert(self._high, at, recent[order, 0])
        self._low = np.insert(self._low, at, recent[order, 1])
        self._row_index = np.insert(self._row_index, at, index[order])
        self._recent = {}


class Duplicates:
    """Which rows are held back for which, over one run. What is kept of each is its place, not its content."""

    def __init__(
        self, done: pa.Table, root: Callable[[], str | None] = lambda: None, answers: Sequence[str] = ()
    ) -> None:
        """How duplicates are found.

        Args:
            done: the keys of the rows that are committed and stay; those that are ok can be copied.
            root: asked for the folder outside of which no file is read.
            answers: columns of typed answers, which are copied too.
        """
        self._root, self._copied = root, (*_COPIED, *answers)
        without = keys.column(done, "failed") | keys.column(done, "skipped")
        usable = np.flatnonzero((keys.column(done, "digest0") != 0) & ~without)
        self._seen = Seen(*(keys.column(done, name)[usable] for name in ("digest0", "digest1", "row_index")))
        # Of each row held back: its row_index, that of the row it copies, and its digest.
        self._held, self._first = array("q"), array("q")
        self._digests = array("Q"), array("Q")

    def computed(self, items: Iterable[Item], digested: Callable[[Item, Digest], None]) -> Iterator[Item]:
        """The rows to compute; the others are held back. `digested` is told what a row's bytes come to."""
        root = self._root()
        for item in items:
            digest = content_digest(item, root)
            digested(item, digest)
            first = item.row_index if digest == (0, 0) else self._seen.first(digest, item.row_index)
            if first == item.row_index:
                yield item
                continue
            self._held.append(item.row_index)
            self._first.append(first)
            for half, value in zip(self._digests, digest, strict=True):
                half.append(value)

    def copies(
        self, items: Iterable[Item], expected: dict[int, tuple[Key, Item]], sources: Sequence[Source]
    ) -> Iterator[Row]:
        """The rows that were held back, once those that they copy are committed.

        Args:
            items: the same rows again, in the same order.
            expected: what the reading of items notes of each, and the writing of its row takes out again.
            sources: where committed rows lie; it may grow while the copies are taken.
        """
        waiting: list[tuple[Item, Key, int]] = []
        at = 0
        for item in items:
            key, _ = expected.pop(item.row_index)
            if item.row_index == self._held[at]:
                digest = self._digests[0][at], self._digests[1][at]
                waiting.append((item, key._replace(digest=digest), self._first[at]))
                at += 1
            if at == len(self._held):
                break
            if len(waiting) >= _AT_ONCE:
                yield from self._filled(waiting, expected, sources)
                waiting = []
        yield from self._filled(waiting, expected, sources)

    @property
    def waiting(self) -> bool:
        return bool(self._held)

    def _filled(
        self, waiting: list[tuple[Item, Key, int]], expected: dict[int, tuple[Key, Item]], sources: Sequence[Source]
    ) -> Iterator[Row]:
        found = reading.records(sources, [first for _, _, first in waiting], [*self._copied, DUPLICATE_OF])
        for item, key, first in waiting:
            answer = found.get(first)
            if answer is None:  # it was not computed, so this row is still to do
                continue
            values: dict[str, Any] = {name: answer.get(name) for name in self._copied}
            values["status"] = Status(values["status"])
            origin = answer.get(DUPLICATE_OF)
            extra = {**item.extra, DUPLICATE_KEY: first if origin is None else origin}
            expected[item.row_index] = key, item
            yield Row(item.row_index, item.id, item.source, **values, attempts=0, extra=extra)
