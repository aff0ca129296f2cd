"""A plugin that vLLM loads in each of its processes: makes audio work on the CPU build.

The audio tower hands a transposed activation to a linear layer. vLLM's oneDNN kernel asserts that the last
dimension is contiguous, and the assertion ends the engine. Whether a layer meets that kernel depends on its size
and type, so the published sizes do. Here the kernel gets a contiguous copy. (vLLM 0.32.0)
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    """Entry point in the group `vllm.general_plugins`. Does nothing on other platforms; safe to call twice."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm import _custom_ops

    original = _custom_ops.onednn_mm
    if hasattr(original, "contiguous"):
        return

    def onednn_mm(handler: Any, x: Any, bias: Any) -> Any:
        return original(handler, x if x.stride(-1) == 1 else x.contiguous(), bias)

    onednn_mm.contiguous = True  # type: ignore[attr-defined]
    _custom_ops.onednn_mm = onednn_mm
