"""Types that every room of the trainer uses."""

from __future__ import annotations

import numpy as np

Array = np.ndarray
"""Matrices and vectors of the solvers: samples are columns."""
