"""An orthonormal basis of a tall matrix."""

import numpy as np
from scipy.linalg import blas, lapack, qr

from trainer.types import Array


def orthonormal(X: Array) -> tuple[Array, Array]:
    """Return Q with orthonormal columns, and R, with X = QR: thin QR of a tall matrix, both in Fortran order.

    Cholesky QR, twice: X'X = R'R, Q = XR^-1. The columns of the first Q are orthonormal up to eps cond(X)^2, those of the
    second up to rounding. Its products and triangular solves are faster than Householder's reflections. These are used if X
    is so badly conditioned that the first Q is far from orthonormal.
    """
    first, failed = lapack.dpotrf(blas.dsyrk(1.0, X, trans=1))
    if not failed:
        Q = blas.dtrsm(1.0, first, X, side=1)
        second, failed = lapack.dpotrf(blas.dsyrk(1.0, Q, trans=1))
        if not failed and np.square(second - np.eye(len(second))).sum() < 1e-4:
            return blas.dtrsm(1.0, second, Q, side=1, overwrite_b=1), blas.dtrmm(1.0, second, first)
    Q, R = qr(X, mode="economic", check_finite=False)
    return np.asfortranarray(Q), np.asfortranarray(R)
