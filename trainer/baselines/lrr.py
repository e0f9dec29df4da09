"""LRR, low-rank representation over a fixed dictionary (Liu, Lin and Yu 2010): problem 2 of the paper.

    min_{Z,E} |Z|_* + lam |E| + |R o Z|_1    s.t.  X = DZ + E        |E|: the l1 or the l21 norm

    X (d,n)  samples, unit columns     D (d,m)  dictionary     R (m,n)  weights of the codes, or None (LRR)
    Z (m,n)  codes; J and L: its copies for |.|_* and |R o .|_1     E (d,n)  error

With R, this is also the training of LCLRR and LRRS.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from trainer.method.base import CodeClassifier
from trainer.method.coding import Coder, Coding, l1_weight
from trainer.method.prox import column_shrink, soft_threshold, svt
from trainer.method.result import SolverResult
from trainer.types import Array

ERRORS = {"l1": soft_threshold, "l21": column_shrink}


def represent(
    X: Array,
    D: Array,
    *,
    lam: float,
    error: str = "l1",
    R: Array | float | None = None,
    mu0: float | None = None,
    rho: float = 1.2,
    tol: float = 1e-4,
    max_iterations: int = 500,
) -> SolverResult:
    """ADMM with multipliers y = Y/mu, in the precision of X and D. All residuals are largest entries.

    The problem is convex. The growth of mu decides how close to the optimum this stops: on faces rho = 1.2 takes about 40
    iterations and ends within 0.1 % of it (4 % if lam is so large that E is almost zero).
    """
    mu = mu0 or 0.2 * lam / typical_size(X, error)  # a smaller mu keeps Z almost zero
    P = cho_factor(D.T @ D + (1 if R is None else 2) * np.eye(D.shape[1], dtype=D.dtype))
    Z, L, y2, y3 = (np.zeros((D.shape[1], X.shape[1]), X.dtype) for _ in range(4))
    E, y1 = np.zeros_like(X), np.zeros_like(X)
    rank, converged = 0, False
    history: list[list[float]] = []
    while not converged and len(history) < max_iterations:
        J, rank = svt(Z + y2, 1 / mu, rank)
        J = J.astype(X.dtype, copy=False)
        copies = J - y2 if R is None else J - y2 + L - y3
        Z = cho_solve(P, D.T @ (X - E + y1) + copies, check_finite=False)
        L = Z if R is None else soft_threshold(Z + y3, R / mu)
        rest = X - D @ Z
        E = ERRORS[error](rest + y1, lam / mu)
        y1, y2, y3 = next_multipliers((y1, y2, y3), (rest - E, Z - J, Z - L), rho, history)
        mu, converged = rho * mu, max(history[-1]) < tol
    return SolverResult(Z, D, E, np.array(history), rank, converged)


def typical_size(X: Array, error: str = "l1") -> float:
    """Return the root mean square of X's entries, 1/sqrt(d) for unit columns; of its columns' norms for an l21 error."""
    return float(np.linalg.norm(X) / np.sqrt(X.size if error == "l1" else X.shape[1]))


def next_multipliers(ys: Sequence[Array], gaps: Sequence[Array], rho: float, history: list[list[float]]) -> list[Array]:
    """Return the multipliers over the next penalty, (Y + mu gap)/(rho mu). Append the gaps' largest entries to history."""
    history.append([float(np.abs(gap).max()) for gap in gaps])
    return [(y + gap) / rho for y, gap in zip(ys, gaps, strict=True)]


@dataclass(eq=False, repr=False)
class FixedDictionary(CodeClassifier):
    """Base of LRR, LCLRR and LRRS: random samples of each class are the dictionary, and W is learned on their codes."""

    _: KW_ONLY
    lam: float = 4.0
    """Weight of the error, for an l1 error in units of 1/sqrt(d) (coding.l1_weight)."""
    error: str = "l1"
    """Norm of the error: "l1" (as in the published coding) or "l21" (as printed; try a lam of about 5)."""
    classifier_codes: str = "coder"
    """W is learned on codes made face by face ("coder", more accurate) or on the Z of all samples ("training", as printed)."""

    def _learn(self, samples: Array, labels: Array) -> None:
        self.D_ = self._choose_atoms(samples, labels)
        self._learn_linear(self.code(samples) if self.classifier_codes == "coder" else self._represent(samples), labels)

    def _represent(self, samples: Array) -> Array:
        """Return the codes of all samples together."""
        R = self._code_weights(samples)
        return represent(samples, self.D_, lam=self._error_weight(), error=self.error, R=R).Z

    def _error_weight(self) -> float:
        return l1_weight(self.lam, len(self.D_)) if self.error == "l1" else self.lam

    def _code_weights(self, samples: Array) -> Array | None:
        """Return R (m,n) of the problem."""
        return None


@dataclass(eq=False, repr=False)
class LRR(FixedDictionary):
    """Problem 2 with random samples as dictionary. Faces are coded one at a time (trainer.method.coding)."""

    @property
    def coding(self) -> Coding:
        return replace(Coding.default(self.error), lam=self._error_weight())

    def code(self, samples: Array) -> Array:
        return Coder(self.D_.astype(np.float32), self.coding).code(samples)
