"""What people see: data on standard output, everything else on standard error, and no noise from libraries.

A library that prints, in this process or in one that it starts, prints to the run's log, because for the length
of a run the file descriptors 1 and 2 lead there. The console and the data stream keep descriptors of their own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task
from rich.text import Text

if TYPE_CHECKING:
    from gemma4cli.stats import Stats

LINE_EVERY_S = 10.0
WORTH_SAYING = 0.05  # share of the time that the engine waited for rows, on the live line

_console: Console | None = None
_log: TextIO | None = None


def console() -> Console:
    """The console on standard error, as it was when the program began."""
    global _console
    if _console is None:
        _console = Console(file=os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1))
    return _console


def standard_output() -> BinaryIO:
    """Standard output for data, out of reach of whatever else prints. Take it before `noise_to`.

    Raises:
        UsageError: it is closed.
    """
    if sys.stdout is None:
        from gemma4cli.errors import UsageError

        raise UsageError("standard output is closed", "Leave out >&-, or give -o the name of a folder or a file.")
    sys.stdout.flush()
    return os.fdopen(os.dup(1), "wb")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextlib.contextmanager
def noise_to(log: Path | None) -> Iterator[Path | None]:
    """Sends what libraries print to `log`, to a temporary file if None.

    Yields the log's path. The console and streams taken before are not affected.
    """
    console()
    _flush()
    if log is None:
        handle, name = tempfile.mkstemp(prefix="gemma4-", suffix=".log")
        path = Path(name)
    else:
        path = log
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    kept = os.dup(1), os.dup(2)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield path
    finally:
        _flush()
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        os.close(kept[0])
        os.close(kept[1])
        if log is None:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def noise_to_standard_error() -> Iterator[None]:
    """For -v: what libraries print goes to standard error, never between the data."""
    _flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def cause_in(log: Path) -> str:
    """The last line of a log that names an exception; empty if there is none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in reversed(lines):
        words = line.split("] ", 1)[-1].strip()
        name = words.partition(":")[0]
        if name.endswith(("Error", "Exception")) and " " not in name and "initialization failed" not in words:
            return words[:300]
    return ""


class _Line(ProgressColumn):
    """What runs and how far it is: never markup, for a model may be called `q[/bold]`, and never a second line."""

    def __init__(self, stats: Stats) -> None:
        super().__init__()
        self._stats = stats

    def render(self, task: Task) -> Text:
        room = console().width - 16  # beside the spinner, the bar and the gaps
        name, state = Text(task.description), Text(_state(self._stats), style="dim")
        name.truncate(max(room - 1 - state.cell_len, 10), overflow="ellipsis")  # figures go before a long name
        line = Text.assemble(name, " ", state)
        line.truncate(max(room, 10), overflow="ellipsis")
        line.no_wrap = True
        return line


@contextlib.contextmanager
def display(stats: Stats, what: str, quiet: bool) -> Iterator[None]:
    """Shows the run while the block lasts: a live line on a terminal, else one line every ten seconds."""
    live = console().is_terminal and not quiet
    say = write_log if live or quiet else print_line
    with contextlib.ExitStack() as shown:
        if live:
            progress = shown.enter_context(
                Progress(
                    SpinnerColumn(),
                    _Line(stats),
                    BarColumn(bar_width=10),
                    console=console(),
                    transient=True,
                    refresh_per_second=4,
                    # What libraries print goes to the log, not in between.
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
            )
            task = progress.add_task(what, total=stats.total)
            shown.enter_context(
                _every(0.25, lambda: progress.update(task, completed=stats.done, description=_phase(stats, what)))
            )
        if say is print_line or _log is not None:
            say(f"{what}: loading the model")
            shown.enter_context(_every(LINE_EVERY_S, lambda: say(f"{_phase(stats, what)}: {_state(stats)}")))
        yield


def log_to(path: str | None) -> None:
    """From now on, adds every line for people to a file, with its time; to none if None.

    Raises:
        UsageError: it cannot be written to.
    """
    global _log
    if _log is not None:
        _log.close()
        _log = None
    if path is None:
        return
    try:
        _log = Path(path).open("a", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115
    except OSError as error:
        from gemma4cli.errors import UsageError

        message = f"--log-file {path} cannot be written to: {error.strerror or error}"
        raise UsageError(message, "Name a file in a folder that is there and yours.") from error


def write_log(line: str) -> None:
    """A line for the log file alone, where there is one."""
    if _log is not None:
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        with contextlib.suppress(OSError):  # a full disk: the job has other ways to say so
            _log.write("".join(f"{stamp} {part}\n" for part in line.splitlines()))


def print_line(line: str) -> None:
    """A line for people, as it is: nothing in it is markup."""
    write_log(line)
    console().print(line, markup=False, highlight=False, soft_wrap=True)


def write_card(path: Path) -> None:
    """Writes the card of an output that is done; that it cannot be written is no more than a note."""
    from gemma4cli import card, outputs
    from gemma4cli.errors import Gemma4Error
    from gemma4cli.parts import DamagedPartError

    try:
        card.write(outputs.locate(str(path)))
    except (OSError, ValueError, Gemma4Error, DamagedPartError) as error:
        print_line(f"note: no card was written: {error}")


def _phase(stats: Stats, what: str) -> str:
    return what if stats.generating else f"{what}: loading the model"


def _state(stats: Stats) -> str:
    if not stats.generating:
        return f"{stats.elapsed:.0f} s"
    rows, tokens = stats.rates()
    total = "" if stats.total is None else f"/{stats.total:,}"
    failed = f", {stats.failed:,} failed" if stats.failed else ""
    left = stats.seconds_left()
    when = "" if left is None else f", {timedelta(seconds=round(left))} left"
    starved = stats.busy.starved
    idle = f", starved {starved:.0%}" if starved is not None and starved > WORTH_SAYING else ""
    fetched = stats.fetching.state()
    return f"{stats.done:,}{total} rows{failed}{when}, {rows:.1f}/s, {tokens:.0f} tok/s{idle}{fetched}"


@contextlib.contextmanager
def _every(seconds: float, act: Any) -> Iterator[None]:
    """Calls `act` at this interval, in a thread, while the block lasts."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(seconds):
            act()

    thread = threading.Thread(target=tick, name="display", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def print_summary(summary: dict[str, Any], output: str) -> None:
    """The end of a run in a few lines: what came of the rows, why some failed, how fast it went."""
    rows, seconds, rates = summary["rows"], summary["seconds"], summary["rates"]
    failed = f", {rows['failed']:,} failed" if rows["failed"] else ""
    failed += f", {rows['skipped']:,} skipped: their files are there" if rows["skipped"] else ""
    where = "standard output" if output == "-" else output
    print_line(f"{rows['ok']:,} of {rows['total']:,} rows ok{failed} -> {where}")
    for failure in summary["failures"]:
        print_line(f"  {failure['rows']:>6,} failed: {failure['stage']} {failure['type']}")
    cut = summary["finish_reasons"].get("length", 0)
    if cut:
        print_line(f"  {cut:>6,} answers were cut off at --max-tokens")
    circles = summary["finish_reasons"].get("repetition", 0)
    if circles:
        print_line(f"  {circles:>6,} answers went round in circles (finish_reason repetition)")
    tokens = summary["tokens"]
    print_line(
        f"  {rates['rows_per_s']:.1f} rows/s, {rates['output_tokens_per_s']:.0f} output tokens/s; "
        f"{tokens.get('prompt', 0):,} tokens in, {tokens.get('output', 0):,} out; "
        f"{seconds['rows']:.1f} s after {seconds['engine_start']:.1f} s of start-up"
    )
    fetched = summary["fetched"]
    if fetched["files"]:
        from gemma4cli.fetching import size

        print_line(f"  {fetched['files']:,} files fetched, {size(fetched['bytes'])}, {fetched['mean_ms']:,.0f} ms each")
    busy = summary["busy"]
    if busy["engine_starved"] is not None:
        print_line(
            f"  engine starved {busy['engine_starved']:.0%} of the time; {busy['readers']} readers "
            f"{busy['readers_busy']:.0%} busy, writing {busy['writing']:.0%}"
        )
    each = summary["engine"].get("engines", [])
    for engine in each if len(each) > 1 else []:
        starved = "" if engine["starved"] is None else f", starved {engine['starved']:.0%}"
        deaths = f", died {engine['deaths']} times".replace("died 1 times", "died once") if engine["deaths"] else ""
        print_line(f"  {engine['name']}: {engine['rows']:,} rows{starved}{deaths}{', lost' if engine['lost'] else ''}")
