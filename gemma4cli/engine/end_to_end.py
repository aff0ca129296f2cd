"""What both towers take to run media of different sizes end to end: their places, their way to the GPU, the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any


def used_of(used: Any) -> list[int]:
    """How much of each medium is used, asked for at once. used: `(n, length)`, or one tensor a medium."""
    import torch

    counts = used.sum(dim=1) if isinstance(used, torch.Tensor) else torch.stack([each.sum() for each in used])
    return counts.tolist()  # type: ignore[no-any-return]


def laid_out(counts: Sequence[int], padded: int, device: Any) -> tuple[Any, Any]:
    """Of each used part of rows that are padded to one length: its row, and its place where all rows lie end to end."""
    import torch

    n, total = len(counts), sum(counts)
    shifts = [i * padded - before for i, before in zip(range(n), accumulate(counts, initial=0), strict=False)]
    sizes, ahead = torch.tensor([counts, shifts], device="cpu").to(device, non_blocking=True)
    row = torch.repeat_interleave(torch.arange(n, device=device), sizes, output_size=total)
    return row, torch.arange(total, device=device) + ahead[row]


def sent(given: Any, device: Any) -> Any:
    """A tensor, or each of a list, to the GPU without waiting for what the GPU has in hand."""
    if isinstance(given, list):
        return [sent(each, device) for each in given]
    if given.device == device or device.type == "cpu":
        return given.to(device)
    return given.pin_memory().to(device, non_blocking=True)


def compiled_layers(tower: Any, layers: Any) -> tuple[Callable[..., Any], ...]:
    """A tower's layers, compiled once for all sizes; as they are where there is no GPU."""
    if not hasattr(tower, "packed_layers"):
        for layer in layers:
            if hasattr(layer, "lconv1d"):
                # Cached: its first reading takes a lock, where compilers stop.
                _ = layer.lconv1d.depthwise_conv1d.left_pad
        # In a tuple, or the tower would count its layers twice.
        tower.packed_layers = tuple(_compiled(layer.forward) for layer in layers)
    compiled: tuple[Callable[..., Any], ...] = tower.packed_layers
    return compiled


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    if not torch.cuda.is_available():
        return function
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled
