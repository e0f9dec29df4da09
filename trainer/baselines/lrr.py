"""Low-rank representation over a fixed dictionary (Liu, Lin and Yu 2010): problem 2 of the paper.

    min_{Z,E} |Z|_* + lam |E| + |R o Z|_1    s.t.  X = DZ + E        |E| its l1 or its l21 norm

    X (d,n)  samples, unit columns     D (d,m)  dictionary     R (m,n)  weights of the codes, or None (LRR itself)
    Z (m,n)  codes; J and L its copies for |.|_* and |R o .|_1     E (d,n)  error

With R, this is the training of LCLRR and of LRRS too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from edge.errors import ParameterError, TrainingError
from trainer.features.spec import Spec
from trainer.method.base import CodeClassifier, check_count, check_positive, random_atoms
from trainer.method.coding import Coder, Coding
from trainer.method.prox import column_shrink, soft_threshold, svt
from trainer.types import Array

ERRORS = {"l1": soft_threshold, "l21": column_shrink}


@dataclass(frozen=True)
class Representation:
    """Z (m,n) and E (d,n), and how they were reached."""

    Z: Array
    E: Array
    residuals: Array
    """(iterations, 3): largest entry of X - DZ - E, of Z - J and of Z - L."""
    converged: bool


def represent(
    X: Array,
    D: Array,
    *,
    lam: float,
    error: str = "l1",
    R: Array | None = None,
    rho: float = 1.2,
    tol: float = 1e-4,
    max_iterations: int = 500,
) -> Representation:
    """ADMM with multipliers y = Y/mu. The problem is convex, so how mu grows decides how near to the optimum this stops: on
    faces rho = 1.2 takes some 40 iterations and ends within 0.1 % of it (4 % where lam is so large that E is almost zero).
    """
    mu = 0.2 * lam * (np.sqrt(len(X)) if error == "l1" else 1)  # below that, Z is almost zero and nothing happens
    P = cho_factor(D.T @ D + (1 if R is None else 2) * np.eye(D.shape[1]))
    Z, L, y2, y3 = (np.zeros((D.shape[1], X.shape[1])) for _ in range(4))
    E, y1 = np.zeros_like(X), np.zeros_like(X)
    rank, converged = 0, False
    history: list[list[float]] = []
    while not converged and len(history) < max_iterations:
        J, rank = svt(Z + y2, 1 / mu, rank)
        copies = J - y2 if R is None else J - y2 + L - y3
        Z = cho_solve(P, D.T @ (X - E + y1) + copies, check_finite=False)
        L = Z if R is None else soft_threshold(Z + y3, R / mu)
        rest = X - D @ Z
        E = ERRORS[error](rest + y1, lam / mu)
        gaps = rest - E, Z - J, Z - L
        y1, y2, y3 = ((y + gap) / rho for y, gap in zip((y1, y2, y3), gaps, strict=True))
        mu *= rho
        history.append([float(np.abs(gap).max()) for gap in gaps])
        converged = max(history[-1]) < tol
    return Representation(Z, E, np.array(history), converged)


class FixedDictionary(CodeClassifier):
    """What LRR, LCLRR and LRRS share: random samples of each class are the dictionary, and W is learned on their codes."""

    atoms_per_class: int
    lam: float
    error: str = "l1"
    classifier_codes: str
    random_state: int | None

    def _learn(self, samples: Array, labels: Array) -> None:
        atoms = random_atoms(labels, self.atoms_per_class, self.random_state)
        self.D_, self.atom_classes_ = samples[:, atoms], labels[atoms]
        self._prepare(samples)
        codes = self.code(samples) if self.classifier_codes == "coder" else self._represent(samples).Z
        refuse_zero(codes)
        self._learn_linear(codes, labels)

    def _prepare(self, samples: Array) -> None:
        """What the coder needs beside D_."""

    def _error_weight(self) -> float:
        """lam, for an l1 error over sqrt(d): pixels of unit vectors shrink with their number, and one lam serves all sizes."""
        return float(self.lam / np.sqrt(len(self.D_))) if self.error == "l1" else self.lam

    def _represent(self, samples: Array) -> Representation:
        """The codes of training as printed, all samples together."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        check_count(self, "atoms_per_class")
        check_positive(self, "lam", "eta")
        check_classifier_codes(self)


class LRR(FixedDictionary):
    """Problem 2 with random samples as dictionary; faces are coded one at a time (trainer.method.coding).

    Parameters
    ----------
    atoms_per_class : samples of each class in D; a class with fewer gives all it has.
    lam : weight of the error; of an l1 error it is lam/sqrt(d), so that one lam serves every size of image.
    error : its norm, "l1" or "l21" (which wants a lam of 5 or so).
    eta : ridge of the classifier.
    classifier_codes : W is learned on codes made face by face ("coder", the more accurate) or on the Z of problem 2
        for all training samples together ("training", as printed).
    features, random_state : as in LCLRRDL.

    Attributes: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), coder_, codes_ (m, n).
    """

    def __init__(
        self,
        atoms_per_class: int = 5,
        *,
        lam: float = 4.0,
        error: str = "l1",
        eta: float = 1e-3,
        classifier_codes: str = "coder",
        features: Spec | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.atoms_per_class = atoms_per_class
        self.lam = lam
        self.error = error
        self.eta = eta
        self.classifier_codes = classifier_codes
        self.features = features
        self.random_state = random_state

    @property
    def coding(self) -> Coding:
        return replace(Coding.default(self.error), lam=self._error_weight())

    def code(self, samples: Array) -> Array:
        return self.coder_.code(samples)

    def _prepare(self, samples: Array) -> None:
        self.coder_ = Coder(self.D_.astype(np.float32), self.coding)

    def _represent(self, samples: Array) -> Representation:
        return represent(samples, self.D_, lam=self._error_weight(), error=self.error)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.error not in ERRORS:
            raise ParameterError(f"error must be one of {', '.join(ERRORS)}, not {self.error!r}")


def refuse_zero(codes: Array) -> None:
    """A model whose codes are all zero, up to the tolerance of the solvers, is never a success."""
    if not np.isfinite(codes).all() or np.abs(codes).max() < 1e-3:
        raise TrainingError("Training collapsed: every code is zero, so nobody could be told apart.", "Use a larger lam.")


def check_classifier_codes(method: Any) -> None:
    """As every method with a coder and a training of its own takes them."""
    if method.classifier_codes not in ("coder", "training"):
        raise ParameterError(f"classifier_codes must be coder or training, not {method.classifier_codes!r}")
