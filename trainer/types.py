"""Types that every room of the trainer uses."""

import mmap
from collections.abc import Callable

import numpy as np

Array = np.ndarray
"""Matrices and vectors of the solvers: samples are columns."""
Progress = Callable[[int, int], None]
"""Receives (steps done, steps)."""
Stage = Callable[[str, int, int], None]
"""Receives (what is done now, steps done, steps)."""
Say = Callable[[str], None]
"""Receives messages for the user."""


def release(array: Array) -> None:
    """Let the memory of an array go that is mapped from a file. It is read from the file again when it is used."""
    mapped = getattr(array, "_mmap", None)  # of np.memmap
    if isinstance(mapped, mmap.mmap):
        mapped.madvise(mmap.MADV_DONTNEED)


def silent(*_: object) -> None:
    """Ignore progress and messages: the default Progress, Stage and Say."""
