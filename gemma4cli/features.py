"""What of the engine a run uses beyond its defaults: adapters, quantisation, drafters, caches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4cli import flag_values
from gemma4cli.errors import UsageError
from gemma4cli.escaping import printable

if TYPE_CHECKING:
    from gemma4cli.overrides import Overrides

QUANTIZATIONS = ("fp8",)  # that weights can be given while they are loaded
KV_CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
METHODS = ("mtp", "eagle3")
# Compute capability of the GPU that a flag needs: 8.9 computes in 8 bits.
NEEDS = {"--quantization": 8.9, "--kv-cache-dtype": 8.9, "--encoder-cudagraph": 8.0}
AVX512 = "--kv-cache-dtype"  # vLLM's CPU build does that as well, with AVX-512
AUTO = "auto"  # the drafter that is published beside the model
DRAFTED = 4  # tokens at a time


def lacking(flag: str, capability: float | None) -> str | None:
    """What this machine lacks for one of `NEEDS`, in words; None where it lacks nothing.

    capability: of its GPU, such as 9.0; None where vLLM runs on the CPU.
    """
    if capability is None and flag == AVX512:
        import torch

        able = torch.cpu._is_avx512_supported() or torch.cpu._is_amx_tile_supported()
        return None if able else "a GPU, or a processor with AVX-512"
    if capability is None:
        return "a GPU, and there is none here"
    if capability < NEEDS[flag]:
        return f"a GPU of compute capability {NEEDS[flag]:g}; this one has {capability:g}"
    return None


@dataclass(frozen=True, slots=True)
class Features:
    """What of the engine a run uses beyond its defaults.

    loras: names of adapters and their folders.  lora_column: of the manifest, which names each row's adapter.
    quantization: what weights become while they are loaded; None leaves them as they are stored.
    kv_cache_dtype: what keys and values are stored as; None is as they are computed.
    speculative: the model that drafts tokens, a folder, a hub id or `auto`.  method: how; None goes by the model.
    drafted: tokens that it drafts at a time.
    suppressed: texts of one token each that are never generated.
    encoder_cudagraph: replay the towers' work from recordings.
    prefix_caching: whether what prompts begin with is computed once; None decides by the job.
    """

    loras: tuple[tuple[str, str], ...] = ()
    lora_column: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    speculative: str | None = None
    method: str | None = None
    drafted: int = DRAFTED
    suppressed: tuple[str, ...] = ()
    encoder_cudagraph: bool = False
    prefix_caching: bool | None = None

    @property
    def adapter(self) -> str | None:
        """The adapter of rows that name none."""
        return self.loras[0][0] if self.loras and self.lora_column is None else None


def of(user: Overrides) -> Features:
    """The user's settings, as far as they can be checked without a model.

    Raises:
        UsageError: naming the flag.
    """
    loras = tuple(_lora(pair) for pair in user.lora or ())
    names = [name for name, _ in loras]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--lora {printable(name)} is given twice", "Give each adapter a name of its own.")
    if len(loras) > 1 and user.lora_column is None:
        raise UsageError("--lora is given several times", "Say which column names each row's adapter: --lora-column.")
    if user.lora_column is not None and not loras:
        raise UsageError("--lora-column names adapters, and there are none", "Add --lora NAME=FOLDER for each.")
    for flag, value in (("--speculative-method", user.speculative_method), ("--drafted", user.drafted)):
        if value is not None and user.speculative is None:
            raise UsageError(f"{flag} is about drafting, which is off", "Add --speculative MODEL.")
    return Features(
        loras=loras,
        lora_column=user.lora_column,
        quantization=_one_of("--quantization", user.quantization, QUANTIZATIONS),
        kv_cache_dtype=_one_of("--kv-cache-dtype", user.kv_cache_dtype, KV_CACHE_DTYPES),
        speculative=user.speculative,
        method=_one_of("--speculative-method", user.speculative_method, METHODS),
        drafted=flag_values.whole("--drafted", DRAFTED if user.drafted is None else user.drafted, 1, 16),
        suppressed=()
        if user.suppress_tokens is None
        else flag_values.choices(user.suppress_tokens, "--suppress-tokens"),
        encoder_cudagraph=user.encoder_cudagraph,
        prefix_caching=user.prefix_caching,
    )


def fingerprint(features: Features) -> dict[str, Any]:
    """What of them decides answers, by flags, with values for people."""
    drafting = features.speculative and f"{features.speculative}, {features.drafted} tokens"
    return {
        **{f"--lora {name}": _stamp(folder) for name, folder in features.loras},
        "--lora-column": features.lora_column,
        "--quantization": features.quantization,
        "--kv-cache-dtype": None if features.kv_cache_dtype == "auto" else features.kv_cache_dtype,
        "--speculative": drafting,  # the draws are others, though as likely
        "--speculative-method": features.method,
        "--suppress-tokens": ", ".join(features.suppressed) or None,
    }


def _lora(pair: str) -> tuple[str, str]:
    name, equals, path = pair.partition("=")
    if not equals or not name.strip() or not path.strip():
        raise UsageError(f"--lora {printable(pair)} is not NAME=FOLDER", "Example: --lora brand=adapters/brand")
    return name.strip(), path.strip()


def _one_of(flag: str, value: str | None, choices: tuple[str, ...]) -> str | None:
    return None if value is None else flag_values.one_of(flag, value, choices)


def _stamp(folder: str) -> str:
    """An adapter by its weights' size and time, as checkpoints are known."""
    path = Path(folder).expanduser() / "adapter_model.safetensors"
    try:
        found = path.stat()
    except OSError:
        return folder
    return f"{found.st_size} bytes of {found.st_mtime_ns / 1e9:.3f}"
