"""Proximal operators: pure functions, each the minimiser of a small problem.

soft_threshold   argmin_L  t |L|_1  + 1/2 |L - A|_F^2     eq. 13, 17; t may be a matrix of weights
svt              argmin_J  t |J|_*  + 1/2 |J - A|_F^2     eq. 12
column_shrink    argmin_E  t |E|_21 + 1/2 |E - A|_F^2     eq. 18
"""

import numpy as np
from scipy.linalg import blas, eigh

from trainer.types import Array


def soft_threshold(A: Array, t: Array | float) -> Array:
    """Return S_t(A): move each entry towards zero by t."""
    L: Array = A - np.clip(A, -t, t)
    return L


def column_shrink(A: Array, t: float) -> Array:
    """Return B_t(A): each column a becomes a max(1 - t/|a|_2, 0)."""
    E: Array = A * shrink_factors(column_norms(A), t)
    return E


def column_norms(A: Array) -> Array:
    """Return the l2 norm of each column."""
    norms: Array = np.sqrt(np.einsum("ij,ij->j", A, A))
    return norms


def shrink_factors(norms: Array, t: float) -> Array:
    """Return max(1 - t/norm, 0) for each norm."""
    factors: Array = 1 - t / np.maximum(norms, t)
    return factors


def svt(A: Array, t: float, expected_rank: int | None = None) -> tuple[Array, int]:
    """Return SVT_t(A) and its rank, computed with the Gram matrix of the shorter side, in float64.

    eigh(AA') = U diag(s^2) U', and SVT_t(A) = U_+ (1 - t/s_+) U_+'A for all s > t. At most |A|_F^2/t^2 singular values can
    exceed t. If that is below 1 the result is zero. If few are expected, only the largest ones are computed.
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
    if most < m / 10:  # above that, a full decomposition is faster than a partial one
        w, U = eigh(gram, subset_by_value=(t * t, np.inf), driver="evr", check_finite=False, overwrite_a=True)
    else:
        w, U = eigh(gram, driver="evd", check_finite=False, overwrite_a=True)
        first = np.searchsorted(w, t * t, side="right")
        w, U = w[first:], U[:, first:]
    rank = len(w)
    if rank == 0:
        return np.zeros_like(A), 0
    shrink = 1 - t / np.sqrt(w)
    if rank > m // 2:  # one m x m x n product instead of two m x rank x n products
        return blas.dsymm(1.0, blas.dsyrk(1.0, U * np.sqrt(shrink), lower=1), A, lower=1), rank
    return blas.dgemm(1.0, U * shrink, blas.dgemm(1.0, U, A, trans_a=1)), rank
