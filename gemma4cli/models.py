"""Finds a model and reads what it can do from its configuration, before any weights load."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma4cli.errors import ModelError, UsageError
from gemma4cli.records import Kind

ALIASES = {
    "E2B": "google/gemma-4-E2B-it",
    "E4B": "google/gemma-4-E4B-it",
    "12B": "google/gemma-4-12B-it",
    "26B-A4B": "google/gemma-4-26B-A4B-it",
    "31B": "google/gemma-4-31B-it",
}
ARCHITECTURES = ("Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that was found.

    name: what the user called it.  location: folder, or hub id when the weights are yet to be fetched.
    revision: the hub's commit, where known.  hears, sees: whether it takes audio; images and video.
    context: tokens that a prompt and its answer may come to together.
    config: its config.json.
    """

    name: str
    location: str
    revision: str | None
    hears: bool
    sees: bool
    context: int
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def quantization(self) -> str | None:
        """What its weights are stored as, in a word or two; None where that is bfloat16."""
        stored = self.config.get("quantization_config") or {}
        method = str(stored.get("quant_method") or "") or None
        if method is None:
            return None
        groups = stored.get("config_groups") or {}
        weights = next(({**group.get("weights", {})} for group in groups.values() if isinstance(group, dict)), {})
        bits, kind = weights.get("num_bits"), weights.get("type")
        scheme = str(stored.get("quant_algo") or "") or ("" if bits is None else f"{kind}{bits}")
        if "nvfp4" in str(stored.get("format") or "").lower():
            scheme = "NVFP4"
        words = {"float8": "FP8", "float4": "NVFP4", "int4": "w4a16", "int8": "int8"}
        if stored.get("bits") is not None:
            scheme = f"w{stored['bits']}a16"
        scheme = words.get(scheme, scheme) or ("FP8" if method in ("fp8", "fbgemm_fp8") else "")
        return f"{scheme} ({method})" if scheme else method

    @property
    def bidirectional(self) -> bool:
        """Whether the tokens of an image attend to one another both ways, so that it must not be cut."""
        return bool((self.config.get("text_config") or {}).get("use_bidirectional_attention"))

    @property
    def shares_kv(self) -> bool:
        """Whether its last layers read the keys and values of earlier ones, as in E2B and E4B.

        Of a prompt they then have its last token alone to do, which vLLM knows of this architecture.
        """
        shared = (self.config.get("text_config") or {}).get("num_kv_shared_layers") or 0
        return shared > 0 and "Gemma4ForConditionalGeneration" in (self.config.get("architectures") or ())

    def require(self, task: str, kinds: frozenset[Kind]) -> None:
        """Refuses a task none of whose media the model takes.

        Raises:
            UsageError: naming the models that would do.
        """
        takes = {kind for kind in kinds if (self.hears if kind is Kind.AUDIO else self.sees)}
        if not takes:
            lacks = "an audio tower" if Kind.AUDIO in kinds else "a vision tower"
            raise UsageError(
                f"{self.name} cannot {task}: it has no {lacks.removeprefix('an ').removeprefix('a ')}",
                "E2B, E4B and 12B take audio; try --model E4B." if Kind.AUDIO in kinds else "",
            )


def find(name: str) -> Model:
    """Resolves an alias, a hub id or a folder, and reads its configuration.

    Raises:
        UsageError: it is no Gemma 4 model.
        ModelError: it is neither on this machine nor within reach, or cannot be read.
    """
    return _describe(name, *located(name, "--model"))


def located(name: str, flag: str) -> tuple[str, str | None, Mapping[str, Any]]:
    """Where a model is (folder, or hub id when its weights are yet to be fetched), its revision, its configuration.

    Raises:
        UsageError: it cannot be a model's name.
        ModelError: it is neither on this machine nor within reach, or cannot be read.
    """
    if name == "tiny":
        from gemma4cli.tiny import CHECKPOINT

        return str(CHECKPOINT), None, _read(CHECKPOINT / "config.json")
    try:
        folder = Path(name).expanduser()
        is_folder, has_config = folder.is_dir(), (folder / "config.json").is_file()
    except (OSError, RuntimeError) as error:  # not ours to read; `~nobody` has no home
        raise UsageError(
            f"{flag} {name}: {getattr(error, 'strerror', None) or error}", "Name a folder that can be read."
        ) from None
    if is_folder:
        if not has_config:
            raise UsageError(f"{flag} {name}: the folder holds no config.json", "Name the folder of a checkpoint.")
        return str(folder.resolve()), None, _read(folder / "config.json")
    if name not in ALIASES and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
        raise UsageError(
            f"{flag} {name}: no such folder, and not a model's name",
            f"It takes {', '.join(ALIASES)}, tiny, a hub id such as {ALIASES['E4B']}, or a folder.",
        )
    return _on_the_hub(ALIASES.get(name, name), flag)


def _on_the_hub(repo: str, flag: str) -> tuple[str, str | None, Mapping[str, Any]]:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        cached = Path(snapshot_download(repo, local_files_only=True))
        if _whole(cached):
            return str(cached), cached.name, _read(cached / "config.json")
    except (LocalEntryNotFoundError, HFValidationError):
        pass
    try:
        # First a question that is asked once: the download itself would ask for half a minute before it gives up.
        get_hf_file_metadata(hf_hub_url(repo, "config.json"), timeout=10)
        config = Path(hf_hub_download(repo, "config.json"))
    except GatedRepoError:
        raise ModelError(
            f"{repo} asks for a login",
            f"Accept its terms at https://huggingface.co/{repo}, then run: hf auth login",
        ) from None
    except RepositoryNotFoundError:
        raise ModelError(
            f"{repo} is not on the hub, or your login may not read it",
            f"Check the name; --model takes {', '.join(ALIASES)}, tiny, a hub id or a folder.",
        ) from None
    except Exception as error:  # whatever a network can do wrong; the ways out are the same for all
        raise ModelError(
            f"{repo} is neither in this machine's model cache nor within reach ({type(error).__name__})",
            f"With a network: hf download {repo}\n"
            f"Without one: copy the model's folder here and name it with {flag} /path/to/folder,\n"
            "or set HF_HOME to a cache that holds it.\n"
            "To try the program without a model: --model tiny",
        ) from None
    return repo, config.parent.name, _read(config)


def _whole(folder: Path) -> bool:
    """Whether a cached snapshot has its configuration and all its weights: a fetch may have been cut short."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return (folder / "model.safetensors").is_file()
    return all((folder / name).is_file() for name in set(_read(index).get("weight_map", {}).values()))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", "Fetch the checkpoint again.") from None
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a model's configuration", "Fetch the checkpoint again.")
    return config


def _describe(name: str, location: str, revision: str | None, config: Mapping[str, Any]) -> Model:
    architectures = config.get("architectures") or []
    if not set(architectures) & set(ARCHITECTURES):
        found = ", ".join(architectures) or "no architecture"
        raise UsageError(
            f"--model {name} is not a Gemma 4 multimodal model (its configuration says {found})",
            f"It takes {', '.join(ALIASES)}, tiny, or a checkpoint derived from one of them.",
        )
    text = config.get("text_config") or {}
    return Model(
        name=name,
        location=location,
        revision=revision,
        hears=config.get("audio_config") is not None,
        sees=config.get("vision_config") is not None,
        context=int(text.get("max_position_embeddings") or 131072),
        config=config,
    )
