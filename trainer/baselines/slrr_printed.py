"""SLRR as its paper prints it: the problem of trainer.baselines.slrr by linearised ADM with a growing penalty, from K-SVD.

    Z = SVT_{1/(mu t)}(Z + [D'(X - DZ - E + Y/mu) - (Z - V + M/mu)]/t)         t = 1.02 (|D|_2^2 + 1)
    V = S_{beta/(2 alpha + mu)}((2 alpha Q + mu (Z + M/mu))/(2 alpha + mu))
    E = S_{lam/mu}(X - DZ + Y/mu)
    Y += mu (X - DZ - E);  M += mu (Z - V);  mu = min(mu_max, rho mu)

    X (d,n)  samples, unit columns     D (d,m)  dictionary     Q (m,n)  1 if atom and sample have the same class, else 0
    Z (m,n)  codes, V its copy         E (d,n)  error          y = Y/mu (d,n), w = M/mu (m,n)  multipliers / penalty mu

The step 1/t is short, because similar atoms make |D|_2 large. The penalty grows all the same, and so the iteration ends before
the optimum, near Z = 0 for small weights: where it ends is part of the method. Samples of a call are coded together.
"""

from typing import Any

import numpy as np

from trainer.method.prox import soft_threshold, svt
from trainer.method.result import SolverResult
from trainer.types import Array

MU0, RHO, MU_MAX = 1e-3, 1.1, 1e6
TOLERANCE = 1e-3  # for the largest entries of X - DZ - E and of Z - V
MAX_ITERATIONS = 500
OLD_SHARE = 0.5  # share of the old D in the new D
RIDGE = 1e-6  # of the update of D, relative to the largest entry of the diagonal of ZZ'


def represent(X: Array, D: Array, Q: Array | None = None, *, lam: float, beta: float, alpha: float = 0.0) -> SolverResult:
    """Return Z and E for a fixed D, from Z = V = E = Y = M = 0. Test samples have no Q, and alpha is 0."""
    result, _ = _represent(X, D, 0 if Q is None else Q, lam, beta, alpha)
    return result


def learn(X: Array, D: Array, Q: Array, *, rounds: int, **weights: Any) -> SolverResult:
    """Do `rounds` times: represent X, then move D half of the way to (X - E + Y/mu) Z'(ZZ')^-1. At last, represent X."""
    for _ in range(rounds):
        found, y = _represent(X, D, Q, **weights)
        gram = (found.Z @ found.Z.T).astype(np.float64)
        gram.flat[:: len(gram) + 1] += RIDGE * max(gram.max(), RIDGE)
        fitted = np.linalg.solve(gram, (found.Z @ (X - found.E + y).T).astype(np.float64)).T
        D = OLD_SHARE * D + (1 - OLD_SHARE) * fitted.astype(D.dtype)
    return represent(X, D, Q, **weights)


def _represent(X: Array, D: Array, Q: Array | float, lam: float, beta: float, alpha: float) -> tuple[SolverResult, Array]:
    """Return the result of `represent`, and Y/mu."""
    t = 1.02 * (float(np.linalg.norm(D, 2)) ** 2 + 1)
    mu, kind, rank, converged = MU0, X.dtype, 0, False
    Z, V, w = (np.zeros((D.shape[1], X.shape[1]), kind) for _ in range(3))
    E, y, rest = np.zeros_like(X), np.zeros_like(X), X  # rest = X - DZ
    history: list[list[float]] = []
    while not converged and len(history) < MAX_ITERATIONS:
        step = (D.T @ (rest - E + y) - (Z - V + w)) / t
        wide, rank = svt((Z + step).astype(np.float64), 1 / (mu * t), rank)
        Z = wide.astype(kind)
        V = soft_threshold((2 * alpha * Q + mu * (Z + w)) / (2 * alpha + mu), beta / (2 * alpha + mu)).astype(kind)
        rest = X - D @ Z
        F = rest + y
        y = np.clip(F, -lam / mu, lam / mu)  # what S removes is the next Y/mu
        E = F - y
        w += Z - V
        ratio = mu / min(MU_MAX, RHO * mu)
        history.append([float(np.abs(gap).max()) for gap in (rest - E, Z - V)])
        mu, converged = mu / ratio, max(history[-1]) < TOLERANCE
        y *= ratio
        w *= ratio
    return SolverResult(Z, D, E, np.array(history), rank, converged), y
