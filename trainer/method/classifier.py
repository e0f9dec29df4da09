"""The linear classifier on codes: eq. 8 to 10 of the paper.

W = argmin |H - WZ|_F^2 + eta |W|_F^2 = HZ'(ZZ' + eta I)^-1      label = argmax Wz

Z (m,n) codes     H (C,n) one-hot labels     W (C,m)
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve as solve_linear

from trainer.types import Array


def one_hot(labels: Array, classes: int) -> Array:
    """H (C,n) from labels 0..C-1."""
    H = np.zeros((classes, len(labels)))
    H[labels, np.arange(len(labels))] = 1
    return H


def ridge(Z: Array, H: Array, eta: float, weights: Array | None = None) -> Array:
    """W (C,m) of eq. 9; `weights` (n,) say how much each sample counts, 1 if nothing is said."""
    Z = Z.astype(np.float64, copy=False)
    if weights is not None:
        Z, H = Z * np.sqrt(weights), H * np.sqrt(weights)
    gram = Z @ Z.T
    gram.flat[:: len(gram) + 1] += eta
    return solve_linear(gram, Z @ H.T, assume_a="pos", check_finite=False).T
