"""The flags that the tasks share: declared once, as the fields of a dataclass, and given to each command.

`takes` turns a command that wants a `RunOptions` into one whose signature has a parameter for each field, which is
what Typer reads. Every flag can also be set through the environment, as GEMMA4_ and its name. A flag that was not
set stays None and overrides nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

INPUT, MODEL, ANSWER, SAMPLING, MEDIA, OUTPUT = "Input", "Model", "Answer", "Sampling", "Media", "Output"
LIMITS, FILES, TYPED = "Limits", "Files beside the rows", "Typed answers"
WATCH = "When nobody watches"
DRAWN = "Thoughts and samples"
CLUSTER = "More machines"


def flag(*names: str, panel: str, help: str, **more: Any) -> Any:
    """A flag in a panel of the help, which can be set in the environment too."""
    longest = max(names, key=len)
    environment = "GEMMA4_" + longest.removeprefix("--").split("/")[0].replace("-", "_").upper()
    return typer.Option(*names, rich_help_panel=panel, help=help, envvar=environment, show_envvar=False, **more)


OUTPUT_DIR = flag(
    "--output-dir",
    panel=FILES,
    metavar="DIR",
    help="A folder for these files, with the folders of the inputs; else each lies beside its input.",
)
WHOLE_NAME = flag("--whole-name", panel=FILES, help="Call them a.jpg.txt rather than a.txt.")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user said. Field names are those of `overrides.Overrides` where both have them.

    outputs, examples: what a recipe says of each output alone, and its examples; there is no flag for that.
    """

    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="INPUT...",
            show_default=False,
            help="Files, folders, quoted globs, JSONL or Parquet manifests, tar shards, a data set's folder, or - for "
            "paths from standard input; each also as s3://, gs://, hf://, https:// and so on.",
        ),
    ] = None
    limit: Annotated[int | None, flag("--limit", panel=INPUT, min=1, metavar="N", help="Only the first N rows.")] = None
    shard: Annotated[
        str | None,
        flag(
            "--shard",
            panel=CLUSTER,
            metavar="I/N",
            help="Only share I, from 0, of N equal ones, beside processes with the others; see gemma4 merge.",
        ),
    ] = None
    kinds: Annotated[
        str | None,
        flag(
            "--kinds",
            panel=INPUT,
            metavar="KIND[,KIND]",
            help="Take image, audio or video alone. Default: all that the task takes.",
        ),
    ] = None
    media_column: Annotated[
        str | None,
        flag(
            "--media-column",
            panel=INPUT,
            metavar="NAME[,NAME]",
            help="Manifest columns that hold the media; image.path reaches inside. Default: found by name.",
        ),
    ] = None
    prompt_column: Annotated[
        str | None,
        flag("--prompt-column", panel=INPUT, metavar="NAME", help="Manifest column with a prompt for each row."),
    ] = None
    id_column: Annotated[
        str | None,
        flag(
            "--id-column",
            panel=INPUT,
            metavar="NAME",
            help="Manifest column that names the rows. Default: id.",
        ),
    ] = None
    columns: Annotated[
        str | None,
        flag("--columns", panel=INPUT, metavar="A,B", help="Carry only these columns to the output. Default: all."),
    ] = None
    where: Annotated[
        str | None,
        flag(
            "--where",
            panel=INPUT,
            metavar="EXPR",
            help="Only rows of which it is true: \"width > 512 and label == 'a'\".",
        ),
    ] = None
    dataset: Annotated[
        str | None,
        flag("--dataset", panel=INPUT, metavar="OWNER/NAME", help="A data set of the Hugging Face hub as the input."),
    ] = None
    name: Annotated[
        str | None, flag("--name", panel=INPUT, metavar="NAME", help="Which configuration of the data set.")
    ] = None
    split: Annotated[
        str | None, flag("--split", panel=INPUT, metavar="SPLIT", help="Which split of the data set, or of its folder.")
    ] = None
    revision: Annotated[
        str | None, flag("--revision", panel=INPUT, metavar="REV", help="Which branch, tag or commit of the data set.")
    ] = None
    streaming: Annotated[
        bool, flag("--streaming", panel=INPUT, help="Read the data set while it is fetched, without a copy here.")
    ] = False
    model: Annotated[
        str | None,
        flag(
            "--model",
            "-m",
            panel=MODEL,
            help="E2B, E4B, 12B, 26B-A4B, 31B, tiny (a test instrument), a hub id or a folder. Default: E4B.",
        ),
    ] = None
    lora: Annotated[
        list[str] | None,
        flag("--lora", panel=MODEL, metavar="NAME=FOLDER", help="A LoRA adapter in peft's format. Repeatable."),
    ] = None
    lora_column: Annotated[
        str | None,
        flag("--lora-column", panel=INPUT, metavar="NAME", help="Manifest column that names each row's adapter."),
    ] = None
    quantization: Annotated[
        str | None,
        flag("--quantization", panel=MODEL, help="fp8: make weights 8 bits wide while they are loaded."),
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        flag("--kv-cache-dtype", panel=MODEL, help="auto, fp8, fp8_e4m3 or fp8_e5m2, for more rows at a time."),
    ] = None
    speculative: Annotated[
        str | None,
        flag(
            "--speculative",
            panel=MODEL,
            metavar="MODEL|auto",
            help="Draft tokens with this model, which answers check; auto: the one that is published with --model.",
        ),
    ] = None
    speculative_method: Annotated[
        str | None,
        flag("--speculative-method", panel=MODEL, help="mtp or eagle3. Default: by the drafter's configuration."),
    ] = None
    drafted: Annotated[
        int | None, flag("--drafted", panel=MODEL, metavar="N", help="Tokens to draft at a time. Default: 4.")
    ] = None
    encoder_cudagraph: Annotated[
        bool, flag("--encoder-cudagraph", panel=MODEL, help="Record the towers' work and replay it. Often slower.")
    ] = False
    prefix_caching: Annotated[
        bool | None,
        flag(
            "--prefix-caching/--no-prefix-caching",
            panel=MODEL,
            help="Compute once what prompts begin with. Default: where they share a long --system, or have samples.",
        ),
    ] = None
    engine: Annotated[
        str | None,
        flag("--engine", panel=MODEL, help="vllm, or fake: no model, deterministic. Default: vllm."),
    ] = None
    engine_arg: Annotated[
        list[str] | None,
        flag("--engine-arg", panel=MODEL, metavar="KEY=VALUE", help="Any other argument of vLLM's. Repeatable."),
    ] = None
    gpus: Annotated[
        str | None,
        flag(
            "--gpus",
            panel=MODEL,
            metavar="N|all|I,J",
            help="An engine on each of N GPUs, of all, or of these. On the CPU, N engines that share its cores.",
        ),
    ] = None
    tensor_parallel: Annotated[
        int | None,
        flag("--tensor-parallel", panel=MODEL, min=1, metavar="N", help="Each engine spreads its layers over N GPUs."),
    ] = None
    pipeline_parallel: Annotated[
        int | None,
        flag(
            "--pipeline-parallel", panel=MODEL, min=1, metavar="N", help="Each engine has its layers on N GPUs in turn."
        ),
    ] = None
    prompt: Annotated[str | None, flag("--prompt", "-p", panel=ANSWER, help="What to ask of each row.")] = None
    system: Annotated[str | None, flag("--system", panel=ANSWER, help="A fixed instruction before every prompt.")] = (
        None
    )
    prompt_file: Annotated[
        str | None, flag("--prompt-file", panel=ANSWER, metavar="FILE", help="A file that holds the prompt.")
    ] = None
    system_file: Annotated[
        str | None, flag("--system-file", panel=ANSWER, metavar="FILE", help="A file that holds that instruction.")
    ] = None
    max_tokens: Annotated[
        int | None, flag("--max-tokens", panel=SAMPLING, metavar="N", help="Longest answer, in tokens.")
    ] = None
    temperature: Annotated[float | None, flag("--temperature", panel=SAMPLING, metavar="T", help="0 is greedy.")] = None
    top_p: Annotated[
        float | None, flag("--top-p", panel=SAMPLING, metavar="P", help="Draw from the likeliest share P.")
    ] = None
    top_k: Annotated[
        int | None,
        flag("--top-k", panel=SAMPLING, metavar="K", help="Draw from the K likeliest tokens; 0 for all."),
    ] = None
    seed: Annotated[int | None, flag("--seed", panel=SAMPLING, metavar="N", help="Seed of every row.")] = None
    suppress_tokens: Annotated[
        str | None,
        flag("--suppress-tokens", panel=SAMPLING, metavar="A,B|@FILE", help="Texts that are never generated."),
    ] = None
    max_soft_tokens: Annotated[
        str | None,
        flag(
            "--max-soft-tokens",
            panel=MEDIA,
            metavar="N|auto[:N]",
            help="Tokens for an image: 70, 140, 280, 560 or 1120; auto: by its size, at most N.",
        ),
    ] = None
    max_frames: Annotated[
        int | None,
        flag("--max-frames", panel=MEDIA, metavar="N", help="Frames taken from a video, up to 32."),
    ] = None
    fps: Annotated[
        float | None,
        flag("--fps", panel=MEDIA, metavar="F", help="Frames a second from a video, as long as they are not too many."),
    ] = None
    window: Annotated[
        float | None,
        flag(
            "--window", panel=MEDIA, metavar="S", help="Describe a longer video in windows of S seconds, as segments."
        ),
    ] = None
    start: Annotated[
        str | None, flag("--start", panel=MEDIA, metavar="TIME", help="Leave out what comes before: 90, or 0:01:30.")
    ] = None
    end: Annotated[
        str | None, flag("--end", panel=MEDIA, metavar="TIME", help="Leave out what comes after. Sound and video.")
    ] = None
    frames: Annotated[
        str | None,
        flag("--frames", panel=MEDIA, metavar="N|all", help="Take a GIF for a video, and a TIFF's pages for pictures."),
    ] = None
    pages: Annotated[
        bool, flag("--pages", panel=MEDIA, help="All pages of a TIFF are pictures of one row; else the first is.")
    ] = False
    channel: Annotated[
        str | None,
        flag("--channel", panel=MEDIA, help="Of a sound: mix, left, right, or a number from 1. Default: mix."),
    ] = None
    background: Annotated[
        str | None,
        flag("--background", panel=MEDIA, metavar="COLOUR", help="What transparent pixels lie on."),
    ] = None
    max_pixels: Annotated[
        int | None, flag("--max-pixels", panel=MEDIA, metavar="N", help="Refuse larger images undecoded.")
    ] = None
    max_duration: Annotated[
        float | None,
        flag("--max-duration", panel=MEDIA, metavar="S", help="Refuse longer sound and video. Default: a day."),
    ] = None
    root: Annotated[
        str | None,
        flag("--root", panel=MEDIA, metavar="DIR", help="Refuse files outside DIR, for manifests from strangers."),
    ] = None
    allow_private_hosts: Annotated[
        bool,
        flag("--allow-private-hosts", panel=MEDIA, help="Fetch from private and loopback addresses too."),
    ] = False
    output: Annotated[
        str | None,
        flag(
            "--output",
            "-o",
            panel=OUTPUT,
            metavar="PATH",
            help="A folder, a .parquet or .jsonl file, or - for JSONL on standard output. Default: gemma4-TASK/.",
        ),
    ] = None
    format: Annotated[
        str | None,
        flag(
            "--format",
            panel=OUTPUT,
            help="parquet or jsonl, where the output's name leaves it open; openai for lines as its batches have.",
        ),
    ] = None
    fetch_concurrency: Annotated[
        int | None,
        flag(
            "--fetch-concurrency",
            panel=LIMITS,
            metavar="N",
            help="Rows read at a time, each by a process and a connection of its own. Default: one for each core, four "
            "where the inputs are elsewhere.",
        ),
    ] = None
    max_failures: Annotated[
        str | None,
        flag("--max-failures", panel=LIMITS, metavar="N|P%", help="Give up when more rows than this failed."),
    ] = None
    row_timeout: Annotated[
        float | None,
        flag("--row-timeout", panel=LIMITS, metavar="S", help="Seconds to read a row's media. Default: 300."),
    ] = None
    stall_timeout: Annotated[
        float | None,
        flag(
            "--stall-timeout", panel=LIMITS, metavar="S", help="Seconds of silence that end the engine. Default: 600."
        ),
    ] = None
    max_engine_deaths: Annotated[
        int | None,
        flag("--max-engine-deaths", panel=LIMITS, metavar="N", help="In a row, without a finished row. Default: 12."),
    ] = None
    grace: Annotated[
        float | None,
        flag("--grace", panel=LIMITS, metavar="S", help="Seconds to finish rows after Ctrl-C. Default: 30."),
    ] = None
    overwrite: Annotated[
        bool, flag("--overwrite", panel=OUTPUT, help="Start again, in the place of an output that is there.")
    ] = False
    new_only: Annotated[
        bool,
        flag("--new-only", panel=OUTPUT, help="Keep the rows that are there; do new inputs, and changed ones again."),
    ] = False
    known: Annotated[
        list[str] | None,
        flag(
            "--known",
            panel=INPUT,
            metavar="OUTPUT",
            help="Leave out inputs that another output has an answer to. Repeatable.",
        ),
    ] = None
    retry_failed: Annotated[bool, flag("--retry-failed", panel=OUTPUT, help="Do failed rows again.")] = False
    dedupe: Annotated[
        bool, flag("--dedupe", panel=OUTPUT, help="Compute equal inputs once; the others get the same answer.")
    ] = False
    order: Annotated[
        str | None,
        flag(
            "--order",
            panel=LIMITS,
            metavar="HOW",
            help="How rows go through the engine: bucket, alike together, or input. The output's order is the input's.",
        ),
    ] = None
    on: Annotated[
        str | None,
        flag("--on", panel=CLUSTER, metavar="ray", help="Where the work is done, if not here: ray, on a cluster."),
    ] = None
    address: Annotated[
        str | None,
        flag("--address", panel=CLUSTER, help="Of the Ray cluster, such as auto. Default: this machine alone."),
    ] = None
    engines: Annotated[
        int | None,
        flag("--engines", panel=CLUSTER, min=1, metavar="N", help="Engines on the cluster. Default: one for each GPU."),
    ] = None
    dry_run: Annotated[
        bool,
        flag("--dry-run", panel=OUTPUT, help="Only say what the run will come to, from headers, as gemma4 plan does."),
    ] = False
    log_file: Annotated[
        str | None, flag("--log-file", panel=WATCH, metavar="PATH", help="Add what is said here to a file, with times.")
    ] = None
    summary_json: Annotated[
        str | None, flag("--summary-json", panel=WATCH, metavar="PATH", help="Write how it went as JSON; - prints it.")
    ] = None
    on_finish: Annotated[
        str | None,
        flag(
            "--on-finish", panel=WATCH, metavar="COMMAND", help="Run this at the end; it gets that JSON as its input."
        ),
    ] = None
    webhook: Annotated[
        str | None, flag("--webhook", panel=WATCH, metavar="URL", help="Post that JSON there at the end.")
    ] = None
    quiet: Annotated[bool, flag("--quiet", "-q", panel=OUTPUT, help="Only errors.")] = False
    verbose: Annotated[
        bool, flag("--verbose", "-v", panel=OUTPUT, help="Settings, and vLLM's own log, on standard error.")
    ] = False
    outputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    examples: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerOptions(RunOptions):
    """Flags of the tasks whose answers may be made to be of a form."""

    schema: Annotated[
        str | None,
        flag(
            "--schema",
            panel=TYPED,
            metavar="FILE|MODULE:MODEL",
            help="A JSON Schema, or a pydantic model: answers are JSON of it, and typed in the column answer.",
        ),
    ] = None
    choices: Annotated[
        str | None,
        flag("--choices", panel=TYPED, metavar="A,B|@FILE", help="Answers are one of these, or of a file's lines."),
    ] = None
    regex: Annotated[str | None, flag("--regex", panel=TYPED, metavar="R", help="Answers match this pattern.")] = None
    logprobs: Annotated[
        bool,
        flag(
            "--logprobs",
            panel=TYPED,
            help="A column logprob: the natural logarithm of how likely the answer was at temperature 1, among all "
            "that the flags above allow; with --choices a column choice_logprobs with that of each.",
        ),
    ] = False
    answer_retries: Annotated[
        int | None,
        flag(
            "--answer-retries",
            panel=TYPED,
            metavar="N",
            help="Ask again up to N times for an answer that is none of these. Default: 1.",
        ),
    ] = None
    n: Annotated[
        int | None,
        flag("--n", panel=DRAWN, metavar="N", help="Draw N answers to each row, for a column samples."),
    ] = None
    thinking: Annotated[
        bool,
        flag("--thinking", panel=DRAWN, help="Let the model think before it answers; its thoughts have a column."),
    ] = False
    thinking_budget: Annotated[
        int | None,
        flag(
            "--thinking-budget",
            panel=DRAWN,
            metavar="N",
            help="Tokens it may think for, on top of --max-tokens. Default: 1024.",
        ),
    ] = None


def takes(options: type[RunOptions]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command a parameter for each flag of `options`, beside the parameters of its own after the first.

    A parameter of its own that is called like a field takes the field's place.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(options, include_extras=True)
        own_names = set(list(inspect.signature(command).parameters)[1:])
        shared = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default,
                annotation=hints[each.name],
            )
            for each in fields(options)
            if each.name not in own_names and hasattr(hints[each.name], "__metadata__")
        ]
        own_hints = get_type_hints(command, include_extras=True)
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=own_hints[parameter.name])
            for parameter in list(inspect.signature(command).parameters.values())[1:]
        ]

        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            mine = {parameter.name: given.pop(parameter.name) for parameter in own}
            command(options(**given), **mine)

        signature = inspect.Signature([shared[0], *own, *shared[1:]])
        wrapper.__signature__ = signature  # type: ignore[attr-defined]
        wrapper.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        del wrapper.__wrapped__  # Typer would look through it
        return wrapper

    return decorate


def output_path(task: str, options: RunOptions) -> str:
    """Where the rows go: as told, else a folder in the working directory. --format settles what a name leaves open.

    Raises:
        UsageError: the name and the format disagree.
    """
    from gemma4cli.errors import UsageError

    output = options.output or f"gemma4-{task}"
    if options.format is None:
        return output
    if options.format == "openai":
        if Path(output).suffix in (".parquet", ".jsonl"):
            raise UsageError(
                f"--format openai and -o {output} disagree", "Name a folder, which will hold openai.jsonl, or -."
            )
        return output
    if options.format not in ("parquet", "jsonl"):
        raise UsageError(
            f"--format {options.format} is not possible", "It takes parquet or jsonl for the rows, or openai."
        )
    suffix = f".{options.format}"
    if output == "-":
        if options.format == "parquet":
            raise UsageError("Parquet cannot be written to standard output", "Give -o a file name.")
        return output
    if options.output is None:
        return output + (suffix if options.format == "jsonl" else "")
    given = Path(output).suffix
    if given in (".parquet", ".jsonl") and given != suffix:
        raise UsageError(f"--format {options.format} and -o {output} disagree", "Leave one of them out.")
    return output + suffix if options.format == "jsonl" and given != suffix else output
