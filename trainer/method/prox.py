"""Proximal operators: plain functions of arrays, each the minimiser of a small problem.

soft_threshold   argmin_L  t |L|_1  + 1/2 |L - A|_F^2     (eq. 13, 17; t may be a matrix of weights)
svt              argmin_J  t |J|_*  + 1/2 |J - A|_F^2     (eq. 12)
column_shrink    argmin_E  t |E|_21 + 1/2 |E - A|_F^2     (eq. 18)
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, eigh

from trainer.types import Array


def soft_threshold(A: Array, t: Array | float) -> Array:
    """S_t(A): every entry moved towards zero by t, entry by entry."""
    return A - np.clip(A, -t, t)


def column_shrink(A: Array, t: float) -> Array:
    """B_t(A): every column a becomes a max(1 - t/|a|_2, 0)."""
    return A * shrink_factors(column_norms(A), t)


def column_norms(A: Array) -> Array:
    return np.sqrt(np.einsum("ij,ij->j", A, A))


def shrink_factors(norms: Array, t: float) -> Array:
    return 1 - t / np.maximum(norms, t)


def svt(A: Array, t: float, expected_rank: int | None = None) -> tuple[Array, int]:
    """SVT_t(A) and its rank, through the Gram matrix of the shorter side.

    eigh(AA') = U diag(s^2) U', and SVT_t(A) = U_+ (1 - t/s_+) U_+'A over the s that pass t. Only float64 is accurate
    enough for this. At most |A|_F^2/t^2 singular values can pass t: none is looked for where that is below one, and only the
    leading ones where few are expected.
    """
    if A.shape[0] > A.shape[1]:
        J, rank = svt(A.T, t, expected_rank)
        return J.T, rank
    A = np.asfortranarray(A)
    m = A.shape[0]
    most = np.einsum("ij,ij->", A, A) / t**2
    if most <= 1:
        return np.zeros_like(A), 0
    if expected_rank is not None:
        most = min(most, 2 * expected_rank + 4)
    gram = blas.dsyrk(1.0, A, lower=1)
    if most < m / 10:  # past that a full decomposition is quicker than a partial one
        w, U = eigh(gram, subset_by_value=(t * t, np.inf), driver="evr", check_finite=False, overwrite_a=True)
    else:
        w, U = eigh(gram, driver="evd", check_finite=False, overwrite_a=True)
        first = np.searchsorted(w, t * t, side="right")
        w, U = w[first:], U[:, first:]
    rank = len(w)
    if rank == 0:
        return np.zeros_like(A), 0
    shrink = 1 - t / np.sqrt(w)
    if rank > m // 2:  # one m x m x n product instead of two of m x rank x n
        return blas.dsymm(1.0, blas.dsyrk(1.0, U * np.sqrt(shrink), lower=1), A, lower=1), rank
    return blas.dgemm(1.0, U * shrink, blas.dgemm(1.0, U, A, trans_a=1)), rank
