"""A plugin that vLLM loads in each of its processes, for what cannot be set from outside.

- The engine's processes leave the terminal's process group, so that Ctrl-C reaches this program alone, which then
  lets them finish what they have; and they die with it, however it dies.
- Rows enter the batch in groups (`admission`), their blocks are looked into when they need one (`blocks`), and on a GPU
  media are encoded in our own way (`towers`).
- Audio works on the CPU build. The audio tower hands a transposed activation to a linear layer. vLLM's oneDNN kernel
  asserts that the last dimension is contiguous, and the assertion ends the engine. Whether a layer meets that kernel
  depends on its size and type; with the published sizes it does. Here the kernel gets a contiguous copy. (vLLM 0.32.0)
- A row with a seed may have its prompt read in parts on the CPU build. After each part but the last vLLM winds the
  row's random generator back, in a way that CUDA's generators have and the CPU's has not, and the engine would end
  there. (vLLM 0.32.0)
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from typing import Any

from gemma4cli.engine import admission, blocks, towers
from gemma4cli.engine.child import NAME

OWNER = "GEMMA4_ENGINE_OWNER"  # set by the program that starts an engine; other users of vLLM are left alone
PR_SET_PDEATHSIG = 1


def register() -> None:
    """Entry point in the group `vllm.general_plugins`. Safe to call twice."""
    if OWNER not in os.environ:
        return
    if multiprocessing.parent_process() is not None and not _is_a_front_end():
        _belong_to_the_program()
    from vllm.platforms import current_platform

    admission.install()
    blocks.install()
    if towers.wanted():
        towers.install()
    if current_platform.is_cpu():
        _accept_transposed_activations()
        _wind_generators_back()


def _belong_to_the_program() -> None:
    if multiprocessing.current_process().name.startswith("EngineCore") and _in_the_owners_group():
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_a_front_end() -> bool:
    """A process of `engine.child`, which sees to its end by itself."""
    return multiprocessing.current_process().name.startswith(NAME)


def _in_the_owners_group() -> bool:
    """Else it was started by a process that has a group of its own, which is ended as one."""
    try:
        return os.getpgrp() == os.getpgid(int(os.environ[OWNER]))
    except (OSError, ValueError):
        return True


def _accept_transposed_activations() -> None:
    from vllm import _custom_ops

    original = _custom_ops.onednn_mm
    if hasattr(original, "accepts_transposed"):
        return

    def onednn_mm(handler: Any, x: Any, bias: Any) -> Any:
        return original(handler, x if x.stride(-1) == 1 else x.contiguous(), bias)

    onednn_mm.accepts_transposed = True  # type: ignore[attr-defined]
    _custom_ops.onednn_mm = onednn_mm


def _wind_generators_back() -> None:
    import torch

    if hasattr(torch.Generator, "winds_back"):
        return

    class Generator(torch.Generator):  # type: ignore[misc]
        """A CPU generator whose only way back is to its beginning.

        That is where a row stands whose prompt is still being read: none of its tokens has been drawn.
        """

        winds_back = True

        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> None:
            self.manual_seed(self.initial_seed())

    torch.Generator = Generator
