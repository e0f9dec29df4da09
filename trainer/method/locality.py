"""Weights of locality, the R of problems 3 to 5: a sample should use atoms that are near to it."""

import numpy as np
from scipy.linalg import blas

from trainer.types import Array


def locality_weights(X: Array, D: Array, form: str = "exp") -> Array:
    """Return R (m,n), the distances between atom i of the initial dictionary and sample j (eq. 3).

    `squared`: |d_i - x_j|^2, as printed. `exp`: exp(distance - largest distance of the atom), as in the published experiments.
    """
    squared: Array = np.einsum("ij,ij->j", D, D)[:, None] + np.einsum("ij,ij->j", X, X) - 2 * blas.dgemm(1.0, D, X, trans_a=1)
    # Atoms are samples. For equal vectors all digits cancel, and the root of the rounding error would be 1e-8 instead of 0.
    atoms, samples = np.nonzero(squared < 1e-6)
    squared[atoms, samples] = np.square(D[:, atoms] - X[:, samples]).sum(axis=0)
    if form == "squared":
        return squared
    if form != "exp":
        raise ValueError(f"form must be 'exp' or 'squared', not {form!r}")
    distance = np.sqrt(squared)
    weights: Array = np.exp(distance - distance.max(axis=1, keepdims=True))
    return weights
