"""Locality-constrained low-rank representation with dictionary learning: problem 5, Algorithm 1 of the paper.

    min_{Z,E,D} |Z|_* + lam |E|_21 + alpha |R o Z|_1 + gamma/2 |D|_F^2    s.t.  X = DZ + E

    X (d,n)  training samples, unit columns        Z (m,n)  codes; J and L its copies for |.|_* and |R o .|_1
    D (d,m)  dictionary                            E (d,n)  sample-specific error
    R (m,n)  locality weights                      Y1 (d,n), Y2, Y3 (m,n)  multipliers, mu  penalty, rho  its growth

The updates are the paper's, in its order, except that E comes before L (they do not depend on each other). A literal
transcription is in tests/fixtures/oracle.py. This version gives the same results, but faster:

- Rotation: X = QX' with orthonormal Q. D, E and Y1 stay in span X, and no norm of the problem changes under Q. So the loop
  runs on X' (min(d,n) rows). Only the stopping test, a largest entry, needs pixel space.
- Scaled multipliers y = Y/mu: a multiplier update is one addition. T = X - E replaces E.
- |x - Dz| follows from products of the Z update. While no column exceeds lam/mu, E = 0 and DZ is not computed.
- Cholesky factors instead of inverses, symmetric products by half, updates in place, all by SciPy's BLAS: four matrices of
  X's size and ten of Z's in memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, lapack

from edge.errors import ParameterError
from trainer.method.prox import column_norms, shrink_factors, svt
from trainer.method.qr import orthonormal
from trainer.method.result import SolverResult
from trainer.types import Array

gemm, syrk, trsm = blas.dgemm, blas.dsyrk, blas.dtrsm
MU_MAX = 1e8


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How fast the penalty grows, and when to stop. This sets the number of iterations."""

    rho: float = 1.15
    """Growth of the penalty mu per iteration."""
    tol: float = 1e-6
    """Stop when no entry of the three residuals is larger."""
    max_iterations: int = 500
    """Stop after this number (converged = False)."""
    mu0: float | None = None
    """The first penalty. None: 1/sqrt(max(d, m))."""

    def __post_init__(self) -> None:
        penalties = self.rho - 1, self.tol, 1.0 if self.mu0 is None else self.mu0
        if not (all(0 < value < np.inf for value in penalties) and self.max_iterations >= 1):
            raise ParameterError("a schedule needs rho > 1, tol > 0, max_iterations >= 1 and mu0 > 0")


# `quick` takes six iterations: it starts with a penalty at which Z is not almost zero. trainer.update uses it for thresholds.
SCHEDULES = {"paper": Schedule(), "fast": Schedule(rho=2.0, tol=1e-4), "quick": Schedule(rho=8.0, tol=1e-3, mu0=1.0)}


@dataclass(frozen=True)
class Step:
    """Statistics of one iteration, for the callback."""

    iteration: int
    residuals: tuple[float, float, float]
    """Largest column norm of X - DZ - E; largest entry of Z - J; largest entry of Z - L."""
    rank: int
    mu: float


def solve(
    X: Array,
    D0: Array,
    R: Array,
    *,
    lam: float,
    alpha: float,
    gamma: float,
    schedule: Schedule = SCHEDULES["fast"],
    callback: Callable[[Step], None] | None = None,
) -> SolverResult:
    """Algorithm 1, from Z = J = L = E = Y = 0 and D = D0. The callback receives every iteration.

    In the loop y = Y/mu, T = X - E and B = X - E + Y1/mu.
    """
    X, Q, D = _rotate(np.asfortranarray(X, dtype=np.float64), np.asfortranarray(D0, dtype=np.float64))
    R = np.asfortranarray(R, dtype=np.float64)
    mu = schedule.mu0 or 1 / np.sqrt(max(len(D0), D.shape[1]))
    Z, L, y2, y3, work = (np.zeros(R.shape, order="F") for _ in range(5))
    T, y1, B = X.copy(order="F"), np.zeros(X.shape, order="F"), np.empty(X.shape, order="F")
    rank, no_error, converged = 0, True, False
    history: list[tuple[float, float, float]] = []

    while not converged and len(history) < schedule.max_iterations:
        next_mu = min(MU_MAX, schedule.rho * mu)

        # J = SVT_{1/mu}(Z + Y2/mu), eq. 12
        J, rank = svt(np.add(Z, y2, out=work), 1 / mu, rank)

        # Z = (D'D + 2I)^-1 [D'(X - E + Y1/mu) + J + L - (Y2 + Y3)/mu], eq. 15
        np.add(T, y1, out=B)
        K = np.add(J, L, out=work)
        K -= y2
        K -= y3
        right = gemm(1.0, D, B, trans_a=1, beta=1.0, c=K)
        Z = _solve(syrk(1.0, D, trans=1, lower=1), 2.0, right.copy(order="F"))

        # E = B_{lam/mu}(X - DZ + Y1/mu), eq. 18; before L, because K and right are needed here
        no_error = no_error and _largest_error(B, Z, K, right) < (1 - 1e-6) * lam / mu
        del K, right
        if not no_error:
            F = gemm(-1.0, D, Z, beta=1.0, c=np.add(X, y1, out=T), overwrite_c=1)
            F *= shrink_factors(column_norms(F), lam / mu)
            np.subtract(X, F, out=T)
            np.add(T, y1, out=B)

        # L = S_{alpha R/mu}(Z + Y3/mu), eq. 17; the part that S removes is the next Y3/mu
        M = np.add(Z, y3, out=L)
        t = np.multiply(R, alpha / mu, out=work)
        np.minimum(M, t, out=y3)
        np.maximum(y3, np.negative(t, out=t), out=y3)
        L -= y3

        # D = (X - E + Y1/mu) Z' (ZZ' + gamma/mu I)^-1, eq. 19
        D = _solve(syrk(1.0, Z, lower=1), gamma / mu, gemm(1.0, B, Z, trans_b=1), side=1)

        # Y1 += mu (X - DZ - E), Y2 += mu (Z - J), Y3 += mu (Z - L), mu = min(mu_max, rho mu)
        gemm(-1.0, D, Z, beta=1.0, c=B, overwrite_c=1)
        residual = np.subtract(B, y1, out=y1)
        worst_code = _largest_entry(np.subtract(Z, L, out=work))
        worst = float(column_norms(residual).max()), _largest_entry(np.subtract(Z, J, out=work)), worst_code
        converged = max(worst[1:]) < schedule.tol and _entries_below(residual, Q, schedule.tol)
        y1, B = B, y1
        y2 += work
        for y in (y1, y2, y3):
            y *= mu / next_mu
        mu = next_mu
        history.append(worst)
        if callback is not None:
            callback(Step(len(history), worst, rank, mu))
        del J

    E = np.subtract(X, T, out=T)
    if Q is not None:
        D, E = gemm(1.0, Q, D), gemm(1.0, Q, E)
    return SolverResult(Z, D, E, np.array(history), rank, converged)


def _rotate(X: Array, D: Array) -> tuple[Array, Array | None, Array]:
    """Return X', Q, D' with X = QX', D = QD'. Q is None if rotation would not shorten X, or if D is not in span X."""
    if X.shape[0] <= X.shape[1]:
        return X, None, D
    Q, rotated = orthonormal(X)
    D_rotated = gemm(1.0, Q, D, trans_a=1)
    mixture = np.random.default_rng(0).standard_normal(D.shape[1])  # if it is in span X, so is every column of D
    inside = blas.dgemv(1.0, Q, blas.dgemv(1.0, D_rotated, mixture))
    if np.abs(blas.dgemv(1.0, D, mixture) - inside).max() > 1e-10:
        return X, None, D
    return rotated, Q, D_rotated


def _solve(lower: Array, ridge: float, right: Array, side: int = 0) -> Array:
    """Return (A + ridge I)^-1 right, or right (A + ridge I)^-1 if side = 1, in place. Only the lower triangle of A is read."""
    lower.flat[:: len(lower) + 1] += ridge
    factor, failed = lapack.dpotrf(lower, lower=1, overwrite_a=1)
    if failed or not np.isfinite(factor[-1, -1]):
        raise FloatingPointError("a matrix of the update is not positive definite")
    half = trsm(1.0, factor, right, side=side, lower=1, trans_a=side, overwrite_b=1)
    solution: Array = trsm(1.0, factor, half, side=side, lower=1, trans_a=1 - side, overwrite_b=1)
    return solution


def _largest_error(B: Array, Z: Array, K: Array, right: Array) -> float:
    """Return max_j |b_j - Dz_j| without DZ, from (D'D + 2I)Z = right and D'B = right - K of the Z update."""
    pairs = (B, B), (Z, K), (Z, right), (Z, Z)
    BB, ZK, Zright, ZZ = (np.einsum("ij,ij->j", one, other) for one, other in pairs)
    squared = BB + 2 * ZK - Zright - 2 * ZZ
    return float(np.sqrt(max(squared.max(), 0)))


def _largest_entry(A: Array) -> float:
    return float(max(A.max(), -A.min()))


def _entries_below(residual: Array, Q: Array | None, tol: float) -> bool:
    """Return whether all entries of Q residual are below tol. Checks columns by falling norm, which bounds their entries."""
    if Q is None:
        return bool(np.abs(residual).max() < tol)
    norms = column_norms(residual)
    for j in np.argsort(-norms):
        if norms[j] < tol:
            return True
        if np.abs(blas.dgemv(1.0, Q, residual[:, j])).max() >= tol:
            return False
    return True
