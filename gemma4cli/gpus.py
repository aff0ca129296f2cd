"""The GPUs of this machine, and how `--gpus` shares them out over engines: one each, or a group for each.

A GPU is named as `CUDA_VISIBLE_DEVICES` has it where that is set, else by its number in `nvidia-smi`. Named twice, it
has two engines, which share its memory. Where vLLM runs on the CPU, and with the fake engine, `--gpus N` means N
engines, and each gets its share of the cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from gemma4cli import resources
from gemma4cli.errors import UsageError

BINDING = "VLLM_CPU_OMP_THREADS_BIND"  # cores of each process of an engine of vLLM's CPU build: `0,1|2,3`
FORMS = "It takes how many (2), which (0,2; 0,0 for two engines on one) or all."


@dataclass(frozen=True, slots=True)
class Gpus:
    """What --gpus asked for: the first `count`, or those of these `numbers`, or all where neither is set.

    A number that comes several times is a GPU with several engines.
    """

    count: int | None = None
    numbers: tuple[int, ...] = ()

    @property
    def engines_on_one(self) -> int:
        """How many engines share a GPU."""
        return max(map(self.numbers.count, self.numbers), default=1)

    def __str__(self) -> str:
        return ",".join(map(str, self.numbers)) or ("all" if self.count is None else str(self.count))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine runs: what its processes find in their environment, and the cores that they are held to.

    after: the place whose engine has to be up before this one starts, by its number in the list.
    """

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] | None = None
    after: int = 0


def parse(text: str) -> Gpus:
    """`2`, `all`, or numbers with commas: `0,2`; `0,` is the first one alone, `0,0` two engines on it.

    Raises UsageError.
    """
    word = text.strip().lower()
    if word == "all":
        return Gpus()
    if "," not in word:
        if not (word.isascii() and word.isdecimal()):
            raise UsageError(f"--gpus {text} is not possible", FORMS)
        if int(word) == 0:
            raise UsageError("--gpus 0 leaves nothing to run on", f"{FORMS} GPU number 0 alone is 0, with a comma.")
        return Gpus(int(word))
    parts = [part.strip() for part in word.removesuffix(",").split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(f"--gpus {text} is not possible", FORMS)
    numbers = tuple(map(int, parts))
    if len(set(map(numbers.count, numbers))) > 1:
        raise UsageError(
            f"--gpus {text} names some GPUs more often than others",
            "Engines get equal shares of memory: name each of them as often as it is to have engines, all the same.",
        )
    return Gpus(numbers=numbers)


def visible() -> tuple[str, ...]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them. Wakes none of them."""
    found = _count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None or not found:
        return tuple(map(str, range(found)))
    devices = [name.strip() for name in named.split(",")]
    # What follows a name that means nothing is not there, as the driver has it.
    return tuple(devices[: next((i for i, name in enumerate(devices) if name in ("", "-1")), None)])


def on_cpu(engine: str) -> bool:
    """Whether the engines of a run need no GPU: the fake one, and vLLM's CPU build."""
    if engine == "fake":
        return True
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def places(asked: Gpus | None, each: int, devices: Sequence[str] | None, cores: Sequence[int] = ()) -> list[Place]:
    """A place for each engine.

    each: GPUs that one engine takes.  devices: those there are; None for engines that need none, which then share
    `cores`, where any are given.

    Raises:
        UsageError: there are not as many, or they cannot be shared out.
    """
    if asked is None:
        if devices is not None and each > max(1, len(devices)):
            raise UsageError(
                f"an engine of {each} GPUs does not fit: there {_are(len(devices))}", "Lower --tensor-parallel."
            )
        return [Place("engine", _bound(cores, each) if devices is None else {})]
    if devices is None:
        return _on_cores(asked, each, cores)
    chosen = _chosen(asked, devices)
    if asked.engines_on_one > 1:
        if each > 1:
            raise UsageError(
                f"--gpus {asked} names GPUs several times, and an engine takes {each} of them",
                "Engines share a GPU where each takes one. Lower --tensor-parallel.",
            )
        return _shared(chosen)
    if len(chosen) % each:
        raise UsageError(
            f"--gpus {asked} comes to {len(chosen)}, which do not divide into engines of {each} GPUs",
            "That is what --tensor-parallel times --pipeline-parallel comes to; choose a multiple of it.",
        )
    groups = [chosen[i : i + each] for i in range(0, len(chosen), each)]
    return [
        Place(f"GPU {group[0]}" if each == 1 else f"GPUs {','.join(group)}", _seeing(",".join(group)))
        for group in groups
    ]


def _shared(chosen: Sequence[str]) -> list[Place]:
    """Engines on one GPU start one after another, for each looks how much memory the others have left."""
    made: list[Place] = []
    last: dict[str, int] = {}
    for i, device in enumerate(chosen):
        name = f"GPU {device}, engine {chosen[:i].count(device)}"
        made.append(Place(name, _seeing(device), after=last.get(device, 0)))
        last[device] = i
    return made


def _seeing(devices: str) -> dict[str, str]:
    # CUDA's own order is by speed, which nobody sees; nvidia-smi's is by slot.
    order = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return {"CUDA_VISIBLE_DEVICES": devices, "CUDA_DEVICE_ORDER": order}


def _chosen(asked: Gpus, devices: Sequence[str]) -> list[str]:
    if not devices:
        raise UsageError(
            f"--gpus {asked}: no NVIDIA GPU is to be seen here",
            "CUDA_VISIBLE_DEVICES may hide them; gemma4 doctor tells what is wrong.",
        )
    most = max(asked.numbers) + 1 if asked.numbers else asked.count or 1
    if most > len(devices):
        which = f"GPU {most - 1}" if asked.numbers else f"{most} GPUs"
        raise UsageError(
            f"--gpus {asked} asks for {which}, and there {_are(len(devices))}",
            f"Their numbers are 0 to {len(devices) - 1}; CUDA_VISIBLE_DEVICES counts.",
        )
    return [devices[number] for number in asked.numbers or range(asked.count or len(devices))]


def _on_cores(asked: Gpus, each: int, cores: Sequence[int]) -> list[Place]:
    if asked.count is None:
        raise UsageError(
            f"--gpus {asked}: the engine runs on the CPU here", "Say how many engines are to share it: --gpus 2."
        )
    if asked.count % each:
        raise UsageError(f"--gpus {asked} does not divide into engines of {each}", "Choose a multiple of it.")
    engines = asked.count // each
    if cores and engines > len(cores):
        raise UsageError(
            f"--gpus {asked}: the engine runs on the CPU here, which has {len(cores)} cores", "An engine needs one."
        )
    share = len(cores) // engines
    shares = [tuple(cores[i * share : (i + 1) * share]) for i in range(engines)]
    return [Place(f"engine {i}", _bound(mine, each), mine or None) for i, mine in enumerate(shares)]


def _bound(cores: Sequence[int], each: int) -> dict[str, str]:
    """Gives each process of an engine its cores, where it has several. vLLM's CPU build would look for NUMA nodes.

    Raises UsageError where there are fewer cores than processes.
    """
    if each == 1 or not cores or BINDING in os.environ:
        return {}
    if each > len(cores):
        raise UsageError(
            f"an engine of {each} processes does not fit: there {_are(len(cores))} for it to run on",
            "The engine runs on the CPU here, and each takes a core. Lower --tensor-parallel.",
        )
    share = len(cores) // each
    return {BINDING: "|".join(",".join(map(str, cores[i * share : (i + 1) * share])) for i in range(each))}


def of_run(asked: Gpus | None, each: int, engine: str) -> list[Place]:
    """A place for each engine of a run on this machine. Raises UsageError, see `places`."""
    if not on_cpu(engine):
        return places(asked, each, visible())
    return places(asked, each, None, [] if engine == "fake" else sorted(os.sched_getaffinity(0))[: resources.cores()])


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _count() -> int:
    """GPUs by NVIDIA's management library, which starts no driver; 0 where it is not installed."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        if library.nvmlInit_v2() != 0:
            return 0
        found = library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        library.nvmlShutdown()
    except (OSError, AttributeError):
        return 0
    return count.value if found else 0
