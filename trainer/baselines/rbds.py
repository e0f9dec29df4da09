"""RBDS, robust block-diagonal representation with a learned dictionary: the other reading of the paper's row LRSR.

    min_{Z,E,D}  |Z|_* + beta |Z|_1 + lam |E|_1 + alpha/2 |Z - Q|_F^2 + gamma/2 |D|_F^2     s.t.  X = DZ + E

    X (d,n)  training samples, unit columns     D (d,m)  dictionary     Z (m,n)  codes; J and L its copies     E (d,n)  error
    Q (m,n)  Z, with zeros for atoms of other classes

RCBD, the cited method (Li et al. 2014), solves this for training and test samples together. RBDS, its form of 2020, uses only
the training samples, so a device can use it. A face x is coded by itself, as in trainer.baselines.lrrs.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from trainer.baselines.lrr import next_multipliers
from trainer.baselines.lrrs import LRRS
from trainer.method.prox import soft_threshold, svt
from trainer.method.solver import SolverResult
from trainer.types import Array


def block_diagonal(
    X: Array,
    D: Array,
    same: Array,
    *,
    alpha: float,
    lam: float,
    beta: float,
    gamma: float,
    rho: float = 1.5,
    tol: float = 1e-4,
    max_iterations: int = 500,
) -> SolverResult:
    """RBDS, starting with the dictionary D. `same` (m,n): whether atom i and sample j have the same class. y = Y/mu.

    The published schedule (mu from 1e-5, rho 1.1, 1e-6) takes 240 iterations, with Z = 0 in many of them. This one takes 20.
    """
    mu = 0.2 * lam * np.sqrt(len(X))
    Z, L, Q, y2, y3 = (np.zeros(same.shape) for _ in range(5))
    E, y1 = np.zeros_like(X), np.zeros_like(X)
    eye = np.eye(len(same))
    rank, converged = 0, False
    history: list[list[float]] = []
    while not converged and len(history) < max_iterations:
        J, rank = svt(Z + y2, 1 / mu, rank)
        right = D.T @ (X - E + y1) + J + L - y2 - y3 + alpha / mu * Q
        Z = cho_solve(cho_factor(D.T @ D + (2 + alpha / mu) * eye), right, check_finite=False)
        L = soft_threshold(Z + y3, beta / mu)
        E = soft_threshold(X - D @ Z + y1, lam / mu)
        D = cho_solve(cho_factor(Z @ Z.T + gamma / mu * eye), Z @ (X - E + y1).T, check_finite=False).T
        Q = np.where(same, Z, 0)
        y1, y2, y3 = next_multipliers((y1, y2, y3), (X - D @ Z - E, Z - J, Z - L), rho, history)
        mu, converged = rho * mu, max(history[-1]) < tol
    return SolverResult(Z, D, E, np.array(history), rank, converged)


@dataclass(eq=False, repr=False)
class RBDS(LRRS):
    """The codes of LRRS with a dictionary that makes them block-diagonal. Learned beside D_ and W_: result_ (SolverResult)."""

    _: KW_ONLY
    alpha: float = 10.0
    """Weight of codes with atoms of other classes."""
    lam: float = 8.0
    """Weight of the error, in units of 1/sqrt(d) (coding.l1_weight), in training and in coding."""
    beta: float = 0.1
    """Weight of sparsity, in training and in coding."""
    gamma: float = 0.2
    """Weight of the dictionary's size."""

    def _learn(self, samples: Array, labels: Array) -> None:
        self.D_ = self._choose_atoms(samples, labels)
        same, lam = self.atom_classes_[:, None] == labels, self._error_weight()
        self.result_ = block_diagonal(samples, self.D_, same, alpha=self.alpha, lam=lam, beta=self.beta, gamma=self.gamma)
        self.D_ = self.result_.D
        self._learn_linear(self.code(samples) if self.classifier_codes == "coder" else self.result_.Z, labels)
