"""The linear classifier on codes (eq. 8 to 10).

W = argmin |H - WZ|_F^2 + eta |W|_F^2 = HZ'(ZZ' + eta I)^-1        label = argmax Wz

Z (m,n)  codes        H (C,n)  one-hot labels        W (C,m)  classifier
"""

import numpy as np
from scipy.linalg import solve as solve_linear

from trainer.types import Array


def one_hot(labels: Array, classes: int) -> Array:
    """Return H (C,n) of labels 0..C-1."""
    H = np.zeros((classes, len(labels)))
    H[labels, np.arange(len(labels))] = 1
    return H


def ridge(Z: Array, H: Array, eta: float, weights: Array | None = None) -> Array:
    """Return W (C,m) of eq. 9. `weights` (n,) are the weights of the samples; None: all 1."""
    Z = Z.astype(np.float64, copy=False)
    if weights is not None:
        Z, H = Z * np.sqrt(weights), H * np.sqrt(weights)
    gram = Z @ Z.T
    gram.flat[:: len(gram) + 1] += eta
    W: Array = solve_linear(gram, Z @ H.T, assume_a="pos", check_finite=False).T
    return W
