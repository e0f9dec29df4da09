"""SLRR, structured low-rank representation: the codes of a person's faces should use the atoms of that person.

    min_{Z,E,D} |Z|_* + lam |E|_1 + beta |Z|_1 + alpha |Z - Q|_F^2    s.t.  X = DZ + E

    X (d,n)  training samples, unit columns        Z (m,n)  codes; J and V: its copies for |.|_* and for |.|_1 with Q
    D (d,m)  dictionary                            E (d,n)  sample-specific error
    Q (m,n)  1 if atom and sample have the same class, else 0       y1 (d,n), y2, y3 (m,n)  multipliers / penalty mu

Zhang, Jiang, Davis: Learning structured low-rank representations for image classification, CVPR 2013. A test face is coded
without Q, by itself (trainer.baselines.lrrs), with its own lam: |z|_2 of one face is not a share of |Z|_* of all faces.

Differences from the paper (reasons: docs/research/results.md): an exact Z update, a constant penalty with an early stop
(entries of X - DZ - E are about 0.01), and random samples as the first D. `together` has none of them
(trainer.baselines.slrr_printed).
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from edge.errors import ParameterError
from trainer.baselines.ksvd import k_svd
from trainer.baselines.lrrs import SparseCoding, code_faces
from trainer.baselines.slrr_printed import learn, represent
from trainer.method.base import CodeClassifier, check_codes
from trainer.method.coding import l1_weight
from trainer.method.prox import soft_threshold, svt
from trainer.method.result import SolverResult
from trainer.types import Array

OLD_SHARE = 0.5  # share of the old D in the new D, as in the paper
RIDGE = 1.0  # delta; with 1e-3 atoms that few samples use grew without bound, and the accuracy was lower
RELAXATION = 1.8


def slrr(
    X: Array,
    D0: Array,
    Q: Array,
    *,
    lam: float,
    beta: float,
    alpha: float,
    rounds: int = 8,
    first_steps: int = 10,
    steps: int = 3,
) -> SolverResult:
    """Start from Z = E = 0 and D = D0. Do `first_steps` iterations, then `rounds` times: update D, do `steps` iterations.

    The arithmetic has the dtype of X. With rounds = 0, D is fixed, the problem is convex, and this is ADMM. The result has
    Z = V, which is exactly sparse, and residuals (largest entries) of each round. converged is False: there is no tolerance.
    """
    D, kind, a = D0.astype(X.dtype), X.dtype, RELAXATION
    # Entries of a unit face are about 1/sqrt(d). So should be lam/mu, the threshold of E's entries.
    mu = float(1.3 * lam * np.sqrt(len(X)))
    pull = 1 / (2 * alpha + mu)
    Z, J, V, y2, y3 = (np.zeros(Q.shape, kind) for _ in range(5))
    E, y1 = np.zeros_like(X), np.zeros_like(X)
    residuals, rank = [], 0
    for number in range(rounds + 1):
        if number:
            # D = g D + (1 - g)(X - E + Y1/mu) Z'(ZZ' + delta I)^-1
            fitted = (X - E + y1) @ Z.T @ _inverse(Z @ Z.T, RIDGE)
            D = OLD_SHARE * D + (1 - OLD_SHARE) * fitted
        P = _inverse(D.T @ D, 2.0)
        for _ in range(steps if number else first_steps):
            # Z = (D'D + 2I)^-1 [D'(X - E + Y1/mu) + J + V - (Y2 + Y3)/mu]
            Z = P @ (D.T @ (X - E + y1) + J + V - y2 - y3)
            # J = SVT_{1/mu}(Z + Y2/mu), over-relaxed like V and E below; the part that SVT removes is the next Y2/mu
            y2 += a * Z + (1 - a) * J
            wide, rank = svt(y2.astype(np.float64), 1 / mu, rank)
            J = wide.astype(kind)
            y2 -= J
            # V = S_{beta/(2 alpha + mu)}((2 alpha Q + mu (Z + Y3/mu))/(2 alpha + mu))
            y3 += a * Z + (1 - a) * V
            V = soft_threshold(pull * (2 * alpha * Q + mu * y3), pull * beta).astype(kind)
            y3 -= V
            # E = S_{lam/mu}(X - DZ + Y1/mu)
            F = X - D @ Z
            y1 += a * F + (1 - a) * E
            E = soft_threshold(y1, lam / mu)
            y1 -= E
        residuals.append([float(np.abs(gap).max()) for gap in (F - E, Z - J, Z - V)])
    return SolverResult(V, D, E, np.array(residuals), rank, converged=False)


def _inverse(A: Array, ridge: float) -> Array:
    """Return (A + ridge I)^-1, computed in float64, in the dtype of A."""
    return np.linalg.inv(A.astype(np.float64) + ridge * np.eye(len(A))).astype(A.dtype)


@dataclass(eq=False, repr=False)
class SLRR(CodeClassifier):
    """Structured low-rank representation with dictionary learning. Learned beside D_ and W_: result_ (SolverResult)."""

    _: KW_ONLY
    lam: float = 10.0
    """Weight of the error in training; with `together`, in units of 1/sqrt(d), and in coding too."""
    beta: float = 0.03
    """Weight of sparsity, in training and in coding."""
    alpha: float = 3.0
    """Weight of the structure Q."""
    code_lam: float = 7.0
    """Weight of the error in coding, in units of 1/sqrt(d) (coding.l1_weight)."""
    eta: float = 1e-2
    """Ridge of the classifier (eq. 8)."""
    rounds: int = field(default=8, metadata={"least": 0})
    """Updates of D. 0: keep the first one."""
    together: bool = False
    """As printed: D starts from K-SVD, Z is updated by linearisation, W is learned on the Z of training, and all faces of a
    call are coded together with the weights of training: then a face's label depends on the other faces. For tables only; a
    device codes one face at a time."""

    def _learn(self, samples: Array, labels: Array) -> None:
        samples = samples.astype(np.float32)
        D0 = self._choose_atoms(samples, labels)
        Q = (self.atom_classes_[:, None] == labels).astype(np.float32)
        weights: dict[str, Any] = {"lam": self.lam, "beta": self.beta, "alpha": self.alpha}
        if self.together:
            D0 = k_svd(samples, labels, D0, self.atom_classes_)
            weights["lam"] = l1_weight(self.lam, len(samples))
            self.result_ = learn(samples, D0, Q, **weights, rounds=self.rounds)
        else:
            self.result_ = slrr(samples, D0, Q, **weights, rounds=self.rounds)
        check_codes(self.result_.Z)
        self.D_ = self.result_.D
        self._learn_linear(self.result_.Z if self.together else self.code(samples), labels)

    @property
    def coding(self) -> SparseCoding:
        if self.together:
            raise ParameterError("a device codes one face at a time; leave out together")
        return SparseCoding(lam=l1_weight(self.code_lam, len(self.D_)), beta=self.beta)

    def code(self, samples: Array) -> Array:
        if self.together:
            return represent(samples.astype(np.float32), self.D_, lam=l1_weight(self.lam, len(samples)), beta=self.beta).Z
        return code_faces(self.D_, samples, self.coding)
