"""The descriptors 0 to 2, which the caller may have closed, and which may lead to a reader that has gone."""

from __future__ import annotations

import os


def hold_standard_descriptors() -> None:
    """Opens those of the descriptors 0 to 2 that the caller closed (`>&-`), lest a file take their numbers.

    `sys.stdout` and its like stay None, which says that they were closed.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


def discard_standard_output() -> None:
    """What is still buffered for standard output goes nowhere, lest the interpreter fail on it when it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
