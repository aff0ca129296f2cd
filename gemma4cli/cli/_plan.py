"""What a run will come to, in words: for `gemma4 plan` and --dry-run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4cli.cli._errors import DONE

if TYPE_CHECKING:
    from gemma4cli.cli._job import Job
    from gemma4cli.cli._options import RunOptions
    from gemma4cli.companions import Form
    from gemma4cli.forecast import Forecast
    from gemma4cli.remaining import Remaining

_BUCKETS = 24  # lines of the table at most
_GIB, _MIB = 2**30, 2**20


def show(job: Job, options: RunOptions, form: Form | None = None, *, as_json: bool = False) -> int:
    """Looks at the headers of the rows that are to do, and prints what they will come to on standard output.

    Raises:
        UsageError, JobError: as the run would.
    """
    from gemma4cli import forecast, rates, strict_json
    from gemma4cli.cli._stdout import write_lines
    from gemma4cli.companions import Companions
    from gemma4cli.remaining import remaining

    left = remaining(job.output, job.inputs, job.fingerprint, job.resume, options.overwrite, job.shard)
    companions = None if form is None else Companions(form, lambda line: None)
    passed = None if companions is None else companions.done
    found = forecast.forecast(left.items, job.config, job.model, _context(job), passed)
    known = rates.recorded(job.config)
    forecast.timed(found, known)
    mean_output = forecast.output_tokens(found, known)
    if as_json:
        document = _document(job, found, left, mean_output)
        write_lines(iter([strict_json.encode(document, indent=2)]))
    else:
        lines = _lines(job, found, left, mean_output, bool(known))
        write_lines(line.encode(errors="backslashreplace") for line in lines)
    return DONE


def _context(job: Job) -> int:
    from gemma4cli.engine.vllm_settings import CONTEXT

    given = job.config.engine_args.get("max_model_len")
    return given if isinstance(given, int) and job.config.engine == "vllm" else min(job.model.context, CONTEXT)


def _document(job: Job, found: Forecast, left: Remaining, mean_output: float | None) -> dict[str, Any]:
    from gemma4cli import rates

    return {
        "task": job.config.task,
        "model": job.model.name,
        "machine": rates.machine(),
        "output": job.output,
        "rows": found.rows,
        "kept": {"ok": left.kept_ok, "failed": left.kept_failed},
        "skipped": found.skipped,
        "buckets": [{"bucket": name, **asdict(share)} for name, share in _sorted(found)],
        "tokens": {str(kind): tokens for kind, tokens in found.tokens.items()},
        "longest_prompt": found.longest,
        "max_output_tokens": found.inputs * job.config.answer_tokens,
        "mean_output_tokens": None if mean_output is None else round(mean_output, 1),
        "memory": {
            "rendered_bytes_in_flight": _in_flight(job, found),
            "largest_input_bytes": found.largest,
            "kv_bytes_of_longest": _kv_bytes(job, found),
        },
        "seconds": None if found.seconds is None else round(found.seconds, 1),
        "rows_without_rate": _untimed(found),
        "failures": [asdict(group) for group in _failures(found)],
    }


def _lines(job: Job, found: Forecast, left: Remaining, mean_output: float | None, rated: bool) -> Iterator[str]:
    from gemma4cli import rates
    from gemma4cli.escaping import printable

    model = printable(job.model.name)
    yield f"{job.config.task} with {model}: {_rows(found.rows)} to do"
    if left.kept_ok or left.kept_failed:
        failed = f", {left.kept_failed:,} failed" if left.kept_failed else ""
        yield _field("done before", f"{left.kept_ok:,} ok{failed}, in {printable(job.output)}")
    if found.skipped:
        yield _field("skipped", f"{_rows(found.skipped)} whose files are there")
    if found.shares:
        yield ""
        yield from _table(found)
        yield ""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.tokens.items() if count)
        yield _field("tokens in", f"about {sum(found.tokens.values()):,} ({kinds})")
        most = job.config.answer_tokens
        usual = "" if mean_output is None else f"; {mean_output:.0f} an answer in earlier runs"
        each = "a row" if job.config.outputs else "an answer"
        yield _field("tokens out", f"at most {found.inputs * most:,} ({most:,} {each}){usual}")
        kv = _kv_bytes(job, found)
        keys = "" if kv is None else f"; keys and values of the longest row {_bytes(kv)}"
        yield _field("memory", f"rendered media in flight up to {_bytes(_in_flight(job, found))}{keys}")
        seconds = found.seconds
        if seconds is not None:
            untimed = _untimed(found)
            without = f", without {_rows(untimed)} of kinds not run before" if untimed else ""
            yield _field("time", f"about {_duration(seconds)} after start-up, as earlier runs went here{without}")
        else:
            why = "too few rows of such kinds were run" if rated else f"no {job.config.task} run with {model}"
            yield _field("time", f"not known: {why} on this machine yet ({rates.machine()})")
    if found.failures:
        yield _field("would fail", _rows(found.failing))
        for group in _failures(found):
            yield _field("", f"{group.rows:,} {group.stage} {group.type}, such as {printable(group.id)}:")
            yield _field("", f"  {printable(group.message)}")


def _table(found: Forecast) -> Iterator[str]:
    """Buckets with their rows, prompt tokens, share of these, and time."""
    shares = _sorted(found)
    total = max(1, sum(share.prompt_tokens for _, share in shares))
    yield f"  {'bucket':<26}{'rows':>11}{'tokens in':>15}{'share':>8}{'time':>12}"
    for name, share in shares[:_BUCKETS]:
        shown = name if len(name) <= 25 else f"{name[:22]}..."
        time = "?" if share.seconds is None else _duration(share.seconds)
        part = f"{share.prompt_tokens / total:.1%}"
        yield f"  {shown:<26}{share.rows:>11,}{share.prompt_tokens:>15,}{part:>8}{time:>12}"
    rest = shares[_BUCKETS:]
    if rest:
        rows, tokens = sum(share.rows for _, share in rest), sum(share.prompt_tokens for _, share in rest)
        yield f"  {f'{len(rest):,} others':<26}{rows:>11,}{tokens:>15,}{f'{tokens / total:.1%}':>8}"


def _sorted(found: Forecast) -> list[tuple[str, Any]]:
    return sorted(found.shares.items(), key=lambda pair: (-pair[1].prompt_tokens, pair[0]))


def _failures(found: Forecast) -> list[Any]:
    return sorted(found.failures.values(), key=lambda group: -group.rows)


def _untimed(found: Forecast) -> int:
    return sum(share.rows for share in found.shares.values() if share.seconds is None)


def _in_flight(job: Job, found: Forecast) -> int:
    from gemma4cli import resources

    every = sum(share.nbytes for share in found.shares.values())
    return min(every, resources.bytes_in_flight(job.config.engines) + found.largest)


def _kv_bytes(job: Job, found: Forecast) -> int | None:
    from gemma4cli.forecast import kv_bytes

    try:
        config = json.loads((Path(job.model.location) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # the checkpoint is yet to be fetched
        return None
    return kv_bytes(config, found.longest + job.config.longest_answer)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _bytes(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count >= _GIB else f"{count / _MIB:,.1f} MiB"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def _field(name: str, text: str) -> str:
    return f"  {name:<12}{text}".rstrip()
