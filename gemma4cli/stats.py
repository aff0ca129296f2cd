"""Counters of a run: what the display shows while it lasts and the summary says at its end."""

from __future__ import annotations

import platform
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from gemma4cli import __version__
from gemma4cli.busy import Busy
from gemma4cli.errors import JobError
from gemma4cli.fetching import Fetching
from gemma4cli.rates import Pace
from gemma4cli.records import Row, Status

WINDOW_S = 30.0
MOMENT_S = 0.1  # whose rows are counted together, for thousands may come in a second
LEAST_FOR_A_SHARE = 100
MEDIA_PACKAGES = ("av", "librosa", "numpy", "pillow", "pyarrow")


@dataclass(slots=True)
class _Moment:
    """Rows that were finished within a moment, and their output tokens."""

    began: float
    rows: int = 0
    tokens: int = 0


class Stats:
    """Counts rows as they reach the output. Read by the display's thread, written by one other."""

    def __init__(
        self,
        total: int | None,
        max_failures: int | float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._max_failures = max_failures
        self.ok = self.failed = self.skipped = 0
        self.tokens: Counter[str] = Counter()
        self.reasons: Counter[tuple[str, str]] = Counter()
        self.finish: Counter[str] = Counter()
        self.busy_ms: defaultdict[str, float] = defaultdict(float)
        self.busy = Busy(clock)
        self.fetching = Fetching()
        self.pace = Pace()
        self._clock = clock
        self._began_at = datetime.now(UTC)
        self._began = clock()
        self._generating: float | None = None
        self._recent: deque[_Moment] = deque()

    @property
    def done(self) -> int:
        return self.ok + self.failed + self.skipped

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    @property
    def generating(self) -> bool:
        """Whether the model is loaded."""
        return self._generating is not None

    def engine_ready(self, ago: float = 0.0) -> None:
        """Rates count from here, or from some seconds ago: loading a model is not the rows' time."""
        self._generating = self._clock() - ago
        self.pace.begin(self._generating)

    def count(self, row: Row) -> None:
        now = self._clock()
        if row.status is Status.FAILED:
            self.failed += 1
            self.reasons[row.error_stage or "", row.error_type or ""] += 1
        elif row.status is Status.SKIPPED:
            self.skipped += 1
        else:
            self.ok += 1
            self.finish[row.finish_reason or "none"] += 1
        for name in ("prompt", "image", "audio", "video", "output"):
            self.tokens[name] += getattr(row, f"{name}_tokens") or 0
        if row.thinking_tokens:
            self.tokens["thinking"] += row.thinking_tokens
        for name in ("decode", "render", "queue", "generate"):
            self.busy_ms[name] += getattr(row, f"{name}_ms") or 0.0
        self.pace.count(row, now)
        self._note(now, 1, row.output_tokens or 0)

    def tally(self) -> dict[str, Any]:
        """What was counted, for `add` in another process."""
        return {
            "rows": (self.ok, self.failed, self.skipped),
            "counters": (self.tokens, self.reasons, self.finish, dict(self.busy_ms)),
        }

    def add(self, tally: Mapping[str, Any]) -> None:
        """Counts rows that were counted elsewhere."""
        ok, failed, skipped = tally["rows"]
        tokens, reasons, finish, busy_ms = tally["counters"]
        self.ok, self.failed, self.skipped = self.ok + ok, self.failed + failed, self.skipped + skipped
        for counter, more in ((self.tokens, tokens), (self.reasons, reasons), (self.finish, finish)):
            counter.update(more)
        for name, ms in busy_ms.items():
            self.busy_ms[name] += ms
        self._note(self._clock(), ok + failed + skipped, tokens["output"])

    def check_failures(self) -> None:
        """Raises JobError when more rows failed than may: a share counts once there are a hundred rows."""
        limit = self._max_failures
        if limit is None or not self.failed:
            return
        if isinstance(limit, float):
            if self.done < LEAST_FOR_A_SHARE or self.failed <= limit * self.done:
                return
            said = f"{self.failed:,} of {self.done:,} rows failed, more than {100 * limit:.6g}%"
        elif self.failed <= limit:
            return
        else:
            said = f"{self.failed:,} rows failed"
        (stage, type), rows = self.reasons.most_common(1)[0]
        raise JobError(
            f"{said}, most of them ({rows:,}) at {stage}: {type}",
            "--max-failures set this limit. What was done is kept; the same command goes on from there.",
        )

    def rates(self) -> tuple[float, float]:
        """Rows and output tokens a second, over the last half minute at most."""
        recent = list(self._recent)
        if not recent or self._generating is None:
            return 0.0, 0.0
        span = max(min(self._clock() - self._generating, WINDOW_S), 1e-9)
        return sum(each.rows for each in recent) / span, sum(each.tokens for each in recent) / span

    def _note(self, now: float, rows: int, tokens: int) -> None:
        """Counts rows among the recent ones."""
        if not self._recent or now - self._recent[-1].began >= MOMENT_S:
            self._recent.append(_Moment(now))
        self._recent[-1].rows += rows
        self._recent[-1].tokens += tokens
        while now - self._recent[0].began > WINDOW_S:
            self._recent.popleft()

    def seconds_left(self) -> float | None:
        rows_per_s, _ = self.rates()
        return None if self.total is None or not rows_per_s else (self.total - self.done) / rows_per_s

    def summary(self, config: dict[str, Any], engine: dict[str, Any]) -> dict[str, Any]:
        """The document that `.gemma4cli/summary.json` holds."""
        generating = self._clock() - self._generating if self._generating is not None else 0.0
        rate = 1 / generating if generating else 0.0
        return {
            "rows": {"total": self.done, "ok": self.ok, "failed": self.failed, "skipped": self.skipped},
            "failures": [
                {"stage": stage, "type": type, "rows": rows} for (stage, type), rows in self.reasons.most_common()
            ],
            "finish_reasons": dict(self.finish),
            "tokens": dict(self.tokens),
            "seconds": {
                "total": round(self.elapsed, 3),
                "engine_start": round(self.elapsed - generating, 3),
                "rows": round(generating, 3),
            },
            "rates": {
                "rows_per_s": round(self.done * rate, 3),
                "output_tokens_per_s": round(self.tokens["output"] * rate, 3),
            },
            "busy": self.busy.summary(self.busy_ms["decode"] + self.busy_ms["render"], generating),
            "fetched": self.fetching.summary(),
            "mean_ms": {name: round(total / self.done, 3) for name, total in self.busy_ms.items() if self.done},
            "started": self._began_at.isoformat(timespec="seconds"),
            "versions": versions(),
            "engine": engine,
            "config": config,
        }


def versions() -> dict[str, str]:
    """Versions of what decides how media are read."""
    found = {"gemma4cli": __version__, "python": platform.python_version()}
    for name in MEDIA_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found
