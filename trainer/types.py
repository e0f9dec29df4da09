"""Types that every room of the trainer uses."""

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


def silent(*_: object) -> None:
    """Ignore progress and messages: the default Progress, Stage and Say."""
