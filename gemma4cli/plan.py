"""What a row will cost, estimated before it is decoded, and the order in which rows go through the engine.

Rows of a window are put together by bucket, so that what the encoder takes at a time is alike and little of it is
padding. Kinds of media take turns, a run of each, for some are slow to read and others slow to answer: one after the
other, now the engine would wait for the readers and now these for the engine. Every other window goes from large to
small, so that windows join in like buckets, and the last one does, so that the job does not end with the engine waiting
for one large row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from math import ceil

from gemma4cli import buckets, gemma
from gemma4cli.config import BUCKET_ORDER, RunConfig
from gemma4cli.probe import probe, stated
from gemma4cli.records import Item, Kind, Media, Probe
from gemma4cli.windows import windows

FIRST_ROWS = 256  # of the first window, for the engine is waiting; each further one has twice as many
WINDOW_ROWS = 4096
RUN = 16  # rows of a kind between those of others
WINDOW_BYTES = 128 << 20  # of rows that carry their media, text or columns with them

Read = Callable[[list[Item]], list[tuple[Probe, ...]]]
"""Reads the headers of rows' media."""
Rank = tuple[int, int, str, float]
"""Sorts rows by bucket: kinds of media, size of the bucket, its name, and the size within it that is padded."""
_KINDS = {Kind.AUDIO: 1, Kind.IMAGE: 2, Kind.VIDEO: 3}
_SEVERAL, _UNKNOWN = 4, 5


@dataclass(frozen=True, slots=True)
class Load:
    """What one medium is to the engine.

    bucket: empty where too little is known.  size: of the bucket, such as its budget, seconds or frames.
    fine: what is padded within the bucket.  tokens: soft tokens.  around: further tokens of the prompt.
    pieces: inputs of the engine that it is cut into.  nbytes: of the rendered medium, in bfloat16.
    apart: these are inputs of their own, beside those of the row's other media.
    """

    kind: Kind | None
    bucket: str
    size: int = 0
    fine: float = 0.0
    tokens: int = 0
    around: int = 0
    pieces: int = 1
    nbytes: int = 0
    apart: bool = False


class Planner:
    """Estimates for the rows of a run."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._settings = config.media
        self._options = config.media.options()
        self._kinds = config.kinds
        settings = config.media
        # Then all pictures are of one bucket, whatever their size.
        self._pictures_alike = not (settings.pages or settings.frames or settings.auto_soft_tokens)

    def stated(self, item: Item) -> tuple[Probe, ...] | None:
        """What the row's columns say of its media; None where that is not enough."""
        known = stated(item, self._kinds)
        return None if known is None else (known,)

    def probes(self, item: Item) -> tuple[Probe, ...]:
        """What is known of the row's media, from its columns or their headers. Reads files; never raises."""
        return self.stated(item) or tuple(probe(each, self._kinds, self._options) for each in item.media)

    def known(self, item: Item) -> tuple[Probe, ...] | None:
        """As much of that as sorting the row needs, if no file must be read for it."""
        found = self.stated(item)
        if found is not None:
            return found
        if self._pictures_alike and all(medium.kind is Kind.IMAGE for medium in item.media):
            return tuple(Probe(Kind.IMAGE, frames=1) for _ in item.media)
        return () if item.failure is not None else None

    def loads(self, item: Item, probes: Iterable[Probe]) -> tuple[Load, ...]:
        """What each medium of the row is to the engine."""
        found = tuple(probes)
        budget = self.budget(found)
        alone = len(item.content) == 1
        media = list(zip(item.media, found, strict=True))
        loads = [self._load(medium, each, budget, alone) for medium, each in media]
        if self._config.sound is not None and len(media) == 1 and found[0].kind is Kind.VIDEO:
            # Whether the video has a sound track is not looked at.
            loads.append(replace(self._audio(*media[0], cut=True), apart=True))
        return tuple(loads)

    def budget(self, probes: Iterable[Probe]) -> int:
        """The soft tokens that an image of the row may take."""
        most = self._settings.max_soft_tokens
        if not self._settings.auto_soft_tokens:
            return most
        pictures = [each for each in probes if each.kind is Kind.IMAGE]
        sizes = [(each.width, each.height) for each in pictures if each.width is not None and each.height is not None]
        return _row_budget(tuple(sizes), most) if len(sizes) == len(pictures) else most

    def rank(self, item: Item, probes: Iterable[Probe] | None) -> Rank:
        """Where the row belongs among others. What could not be read comes first: it fails at once."""
        loads = self.loads(item, self.probes(item) if probes is None else probes) if item.failure is None else ()
        if not loads:
            return (0, 0, "", 0.0)
        if len(loads) == 1:
            (load,) = loads
            kind = _KINDS[load.kind] if load.bucket and load.kind is not None else _UNKNOWN
            return (kind, load.size, load.bucket, load.fine)
        return (_SEVERAL, sum(load.tokens for load in loads), buckets.joined(load.bucket for load in loads), 0.0)

    def _load(self, medium: Media, known: Probe, budget: int, alone: bool) -> Load:
        match known.kind:
            case Kind.IMAGE:
                return _image(known, budget)
            case Kind.AUDIO:
                return self._audio(medium, known, cut=alone and self._config.task == "transcribe")
            case Kind.VIDEO:
                return self._video(medium, known, alone)
        return Load(None, "")

    def _audio(self, medium: Media, known: Probe, *, cut: bool) -> Load:
        if known.duration_s is None:
            return Load(Kind.AUDIO, "")
        begin_s, end_s = self._part(medium, known.duration_s)
        seconds = end_s - begin_s
        longest = gemma.MAX_AUDIO_SECONDS
        pieces = ceil(seconds / longest) if cut else 1
        piece_s = min(seconds, longest) if pieces > 1 else seconds
        tokens = gemma.audio_tokens(round(seconds / max(1, pieces) * gemma.AUDIO_RATE)) * pieces
        nbytes = round(piece_s * pieces * _AUDIO_BYTES_PER_S)
        step = buckets.audio_step(piece_s)
        return Load(Kind.AUDIO, buckets.audio(piece_s), step, piece_s, tokens, 2 * pieces, max(1, pieces), nbytes)

    def _video(self, medium: Media, known: Probe, alone: bool) -> Load:
        total = known.frames
        if total is None and known.duration_s is None:
            return Load(Kind.VIDEO, "")
        length_s = known.duration_s
        settings, pieces, share = self._settings, 1, 1.0
        if length_s is not None:
            begin_s, end_s = self._part(medium, length_s)
            if settings.window is not None and alone:
                pieces = max(1, len(windows(begin_s, end_s, settings.window)))
            seconds = (end_s - begin_s) / pieces
            share = seconds / length_s if length_s else 1.0
            if settings.fps is not None and ceil(seconds * settings.fps) <= settings.max_frames:
                most = max(1, ceil(seconds * settings.fps))
            else:
                most = settings.max_frames
        else:
            most = settings.max_frames
        frames = most if total is None else max(1, min(most, ceil(total * share - 0.01)))
        each = gemma.VIDEO_BUDGET
        if known.width is not None and known.height is not None:
            each = _image_tokens(known.width, known.height, gemma.VIDEO_BUDGET)
        around = gemma.FRAME_MARKS * frames * pieces
        nbytes = frames * pieces * gemma.VIDEO_BUDGET * _BYTES_PER_TOKEN
        return Load(Kind.VIDEO, buckets.video(frames), frames, 0.0, frames * each * pieces, around, pieces, nbytes)

    def _part(self, medium: Media, length_s: float) -> tuple[float, float]:
        """Begin and end of what is meant of a sound or video, in seconds."""
        settings = self._settings
        begin, end = medium.start_s, medium.end_s
        if begin is None and end is None:
            begin, end = settings.start, settings.end
        end_s = length_s if end is None else min(length_s, end)
        return min(begin or 0.0, end_s), end_s


# Of each patch, pixels in bfloat16 and its position in int64.
_BYTES_PER_TOKEN = gemma.PATCHES_PER_TOKEN * (gemma.PATCH**2 * 3 * 2 + 2 * 8)
_AUDIO_BYTES_PER_S = 100 * 128 * 2  # a frame of 128 mel bands every 10 ms


def _image(known: Probe, budget: int) -> Load:
    count = known.frames or 1  # pages
    tokens = budget
    if known.width is not None and known.height is not None:
        tokens = _image_tokens(known.width, known.height, budget)
    bucket = buckets.joined([buckets.image(budget)] * count)
    return Load(
        Kind.IMAGE, bucket, budget * count, 0.0, tokens * count, 2 * count, 1, budget * count * _BYTES_PER_TOKEN
    )


_row_budget = lru_cache(maxsize=1 << 16)(gemma.row_budget)
_image_tokens = lru_cache(maxsize=1 << 16)(gemma.image_tokens)


def arranged(
    items: Iterable[Item],
    planner: Planner,
    order: str = BUCKET_ORDER,
    total: int | None = None,
    read: Read | None = None,
    *,
    window_rows: int = WINDOW_ROWS,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[list[Item]]:
    """Windows of rows, each in the order in which they go through the engine. A window is all that is held.

    Args:
        total: how many rows there are, where known: the first window then goes the way that lets all join.
        read: reads the headers of rows that do not say enough of themselves; by default in this process.
    """
    sizes = _sizes(window_rows)
    falling = total is not None and _windows_of(total, window_rows) % 2 == 1
    source = iter(items)
    ahead = next(source, None)
    read = read or (lambda unread: [planner.probes(item) for item in unread])
    while ahead is not None:
        window: list[Item] = []
        rows, held = next(sizes), 0
        while ahead is not None and (not window or (len(window) < rows and held < window_bytes)):
            window.append(ahead)
            held += _held(ahead)
            ahead = next(source, None)
        if order == BUCKET_ORDER:
            ranks = _ranks(window, planner, read)
            falling = falling or ahead is None
            window = [window[i] for i in _taking_turns(ranks, falling)]
            falling = not falling
        yield window


def _taking_turns(ranks: list[Rank], falling: bool) -> list[int]:
    """Places of rows: of each kind in order, and runs of kinds in turn, so that all kinds end together."""
    kinds: dict[int, list[int]] = {}
    for i in sorted(range(len(ranks)), key=ranks.__getitem__, reverse=falling):
        kinds.setdefault(ranks[i][0], []).append(i)
    turns = [
        (first / len(rows), kind, rows[first : first + RUN])
        for kind, rows in kinds.items()
        for first in range(0, len(rows), RUN)
    ]
    return [i for _, _, run in sorted(turns) for i in run]


def _ranks(window: list[Item], planner: Planner, read: Read) -> list[Rank]:
    """The rank of each row."""
    known = [planner.known(item) for item in window]
    found = iter(read([item for item, each in zip(window, known, strict=True) if each is None]))
    probes = [next(found) if each is None else each for each in known]
    return [planner.rank(item, each) for item, each in zip(window, probes, strict=True)]


def _sizes(window_rows: int) -> Iterator[int]:
    rows = min(FIRST_ROWS, window_rows)
    while True:
        yield rows
        rows = min(2 * rows, window_rows)


def _windows_of(total: int, window_rows: int) -> int:
    """How many windows so many rows make."""
    count = 0
    for rows in _sizes(window_rows):
        if total <= 0:
            return count
        if rows == window_rows:
            return count + -(-total // rows)
        total, count = total - rows, count + 1
    raise AssertionError


def _held(item: Item) -> int:
    """About how many bytes a row keeps in memory."""
    parts = chain(item.content, item.extra.values(), (item.prompt,))
    return 1000 + sum(
        len(part.data or b"") + len(part.location) if isinstance(part, Media) else len(part)
        for part in parts
        if isinstance(part, (Media, str, bytes))
    )
