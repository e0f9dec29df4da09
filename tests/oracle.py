"""Algorithm 1 of the paper, line by line, with nothing clever: what the fast solver must equal.

Every line is the printed update with its equation number. It is slow on purpose: full SVD, explicit inverses,
all of pixel space. Change it only if the paper was misread.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class OracleResult:
    Z: np.ndarray
    D: np.ndarray
    E: np.ndarray
    iterations: int
    residual: float


def soft_threshold(A: np.ndarray, t: np.ndarray | float) -> np.ndarray:
    return np.where(A > t, A - t, np.where(A < -t, A + t, 0.0))  # eq. 13


def locality_weights(X: np.ndarray, D: np.ndarray, form: str) -> np.ndarray:
    R = np.empty((D.shape[1], X.shape[1]))
    for i in range(D.shape[1]):
        for j in range(X.shape[1]):
            R[i, j] = np.sqrt(np.sum((D[:, i] - X[:, j]) ** 2))
    if form == "squared":  # eq. 3
        return R**2
    return np.exp(R - R.max(axis=1, keepdims=True))  # as the published experiments had it


def solve(
    X: np.ndarray,
    D0: np.ndarray,
    R: np.ndarray,
    *,
    lam: float,
    alpha: float,
    gamma: float,
    rho: float = 1.15,
    tol: float = 1e-6,
    mu_max: float = 1e8,
    max_iterations: int = 500,
) -> OracleResult:
    (d, n), m = X.shape, D0.shape[1]
    D = D0.copy()
    Z, J, L = np.zeros((m, n)), np.zeros((m, n)), np.zeros((m, n))
    E, Y1 = np.zeros((d, n)), np.zeros((d, n))
    Y2, Y3 = np.zeros((m, n)), np.zeros((m, n))
    mu = 1 / np.sqrt(max(d, m))
    iteration, residual = 0, np.inf
    while residual >= tol and iteration < max_iterations:
        # eq. 12
        U, s, Vt = np.linalg.svd(Z + Y2 / mu, full_matrices=False)
        J = U @ np.diag(soft_threshold(s, 1 / mu)) @ Vt
        # eq. 15
        Z = np.linalg.inv(D.T @ D + 2 * np.eye(m)) @ (D.T @ (X - E) + J + L + (D.T @ Y1 - Y2 - Y3) / mu)
        # eq. 17
        L = soft_threshold(Z + Y3 / mu, alpha * R / mu)
        # eq. 18
        M = X - D @ Z + Y1 / mu
        E = np.zeros((d, n))
        for j in range(n):
            norm = np.linalg.norm(M[:, j])
            if norm > lam / mu:
                E[:, j] = (norm - lam / mu) / norm * M[:, j]
        # eq. 19
        D = (Y1 @ Z.T / mu - (E - X) @ Z.T) @ np.linalg.inv(gamma / mu * np.eye(m) + Z @ Z.T)
        # multipliers and penalty
        Y1 = Y1 + mu * (X - D @ Z - E)
        Y2 = Y2 + mu * (Z - J)
        Y3 = Y3 + mu * (Z - L)
        mu = min(mu_max, rho * mu)
        residual = max(np.abs(Z - J).max(), np.abs(Z - L).max(), np.abs(X - D @ Z - E).max())
        iteration += 1
    return OracleResult(Z, D, E, iteration, float(residual))
