"""How fast earlier runs went on this machine, for the plans of later ones. A file of the user's, and never a must.

`$XDG_STATE_HOME/gemma4cli/rates.json`, else below `~/.local/state`. For each machine, engine, model and task it has
the rows, seconds and tokens of each bucket; what is older counts half with each run. A file that cannot be read is one
without rates, and one that cannot be written stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemma4cli import buckets, resources
from gemma4cli.config import RunConfig
from gemma4cli.records import Row, Status

LEAST_ROWS = 8  # of a bucket that say how fast it goes; fewer tell more of the run's begin and end
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@dataclass(slots=True)
class Rate:
    """What rows of a bucket took: seconds of the run, prompt and output tokens, milliseconds of the readers."""

    rows: float = 0.0
    seconds: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    read_ms: float = 0.0

    def add(self, other: Rate, share: float = 1.0) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + share * getattr(other, name))


class Pace:
    """Takes the time of a run apart by bucket: what passes until a row is finished is that row's."""

    def __init__(self) -> None:
        self.rates: dict[str, Rate] = {}
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """The engine is ready: time counts from here."""
        self._since = now

    def count(self, row: Row, now: float) -> None:
        """A row is finished. The time of rows without a bucket goes to the next one that has some."""
        if self._since is None or row.bucket is None or row.status is not Status.OK:
            return
        read_ms = (row.decode_ms or 0.0) + (row.render_ms or 0.0)
        rate = Rate(1.0, now - self._since, row.prompt_tokens or 0, row.output_tokens or 0, read_ms)
        self.rates.setdefault(name_of(row.bucket), Rate()).add(rate)
        self._since = now


def name_of(bucket: str) -> str:
    """Rows of several media, or in pieces, have buckets without number: their kinds alone tell them apart."""
    return bucket if "+" not in bucket else buckets.kind_of(bucket)


def machine() -> str:
    """The cores and accelerators that decide how fast a run goes, in words. Asks no driver."""
    cards: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for path in sorted(_NVIDIA.glob("*/information")):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith("Model:"):
                    name = line.partition(":")[2].strip()
                    cards[name] = cards.get(name, 0) + 1
    found = [f"{count} x {name}" for name, count in cards.items()]
    return ", ".join([f"{resources.cores()} cores", *found])


def recorded(config: RunConfig) -> dict[str, Rate]:
    """The rates of earlier runs like this one; empty where there are none."""
    return _rates(_document().get(_key(config)))


def record(config: RunConfig, pace: Pace) -> None:
    """Adds the rates of a run to those of earlier ones. Never raises."""
    if not pace.rates:
        return
    with contextlib.suppress(OSError), _locked():
        document = _document()
        rates = {name: Rate() for name in pace.rates}
        for name, earlier in _rates(document.get(_key(config))).items():
            rates.setdefault(name, Rate()).add(earlier, 0.5 if name in pace.rates else 1.0)
        for name, rate in pace.rates.items():
            rates[name].add(rate)
        document[_key(config)] = {name: asdict(rate) for name, rate in rates.items()}
        temporary = path().with_suffix(f".{os.getpid()}")
        try:
            temporary.write_text(json.dumps(document, indent=1), encoding="utf-8")
            temporary.replace(path())
        finally:
            temporary.unlink(missing_ok=True)


def path() -> Path:
    """Where the rates are. Raises OSError where nobody knows where home is."""
    folder = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(folder) if folder.startswith("/") else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return base / "gemma4cli" / "rates.json"


def _key(config: RunConfig) -> str:
    several = f" with {len(config.outputs)} outputs" if config.outputs else ""
    several += "" if config.gpus is None else f"; --gpus {config.gpus}"
    return f"{machine()}; {config.engine}; {config.model}; {config.task}{several}"


def _document() -> dict[str, Any]:
    try:
        found = json.loads(path().read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _rates(found: Any) -> dict[str, Rate]:
    rates: dict[str, Rate] = {}
    for name, values in found.items() if isinstance(found, Mapping) else ():
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            rate = Rate(**{field: float(values[field]) for field in Rate.__slots__ if field in values})
            if rate.rows > 0 and all(0 <= getattr(rate, field) < 1e15 for field in Rate.__slots__):
                rates[name] = rate
    return rates


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One run at a time; the lock ends with its process."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with path().with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
