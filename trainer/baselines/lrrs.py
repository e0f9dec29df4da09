"""LRRS and RBDS, low-rank and sparse representations: two readings of the paper's row LRSR.

    LRRS    min_{Z,E}    |Z|_* + beta |Z|_1 + lam |E|_1                                              s.t.  X = DZ + E
    RBDS    min_{Z,E,D}  |Z|_* + beta |Z|_1 + lam |E|_1 + alpha/2 |Z - Q|_F^2 + gamma/2 |D|_F^2     s.t.  X = DZ + E

    X (d,n)  samples, unit columns     D (d,m)  dictionary, at first random samples     E (d,n)  error
    Z (m,n)  codes; J and L its copies     Q (m,n)  Z, with zeros for atoms of other classes

LRRS is most likely the method behind the row. The cited one, RCBD (Li et al. 2014), solves the second problem for training and
test samples together. RBDS, its form of 2020, uses only the training samples, so a device can use it. Both code a face x by
itself: the nuclear norm of one column is |z|_2. As printed (`together`), |Z|_* is that of all test faces.
"""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from edge.errors import ParameterError
from trainer.baselines.lrr import ERRORS, FixedDictionary, next_multipliers, represent, typical_size
from trainer.baselines.src import ridge_constants
from trainer.features.spec import Spec
from trainer.method.coding import Callback, in_chunks
from trainer.method.prox import column_shrink, soft_threshold, svt
from trainer.method.result import SolverResult
from trainer.types import Array

PRINTED_SCHEDULE: dict[str, Any] = {"mu0": 1e-5, "rho": 1.1}  # the tolerance 1e-6 instead of 1e-4 takes 50 iterations more


@dataclass(frozen=True, kw_only=True)
class SparseCoding:
    """Settings of the coder. The penalty is mu0 rho^k for every face, so it folds into the graph."""

    kind: str = "lrrs"
    lam: float = 0.3
    """Weight of the error."""
    beta: float = 0.03
    """Weight of sparsity."""
    iterations: int = 24
    """Fixed number of iterations."""
    start: float = 2.0
    """The first penalty is mu0 = start lam sqrt(d), because pixels of unit vectors are about 1/sqrt(d)."""
    rho: float = 1.15
    """Growth of the penalty."""
    kappa: float = 0.1
    """Share of the penalty for z = j. Below 1, because a code has fewer and larger entries than a face."""
    relaxation: float = 1.8
    """Over-relaxation. 1: none."""

    def __post_init__(self) -> None:
        valid = min(self.lam, self.start, self.kappa) > 0 and self.beta >= 0 and self.iterations >= 1
        if not (valid and self.rho >= 1 and 1 <= self.relaxation < 2):
            raise ParameterError("coding needs lam, start, kappa > 0, beta >= 0, iterations, rho >= 1 and 1 <= relaxation < 2")

    @property
    def ridge(self) -> float:
        """Ridge of the z update, which inverts D'D + ridge I."""
        return self.kappa

    def converged(self) -> "SparseCoding":
        """Return settings that solve the same problem to the end: the reference for fixed iterations."""
        return replace(self, iterations=200, rho=1.02)

    def penalties(self, d: int) -> Array:
        """Return mu of each iteration, for faces of d features."""
        return self.start * self.lam * np.sqrt(d) * self.rho ** np.arange(self.iterations)


def code_sparsely(
    D: Array,
    X: Array,
    coding: SparseCoding,
    callback: Callback | None = None,
    *,
    constants: tuple[Array, Array] | None = None,
    R: Array | float = 1.0,
    error: str = "l1",
) -> Array:
    """Return z (m,n) of X (d,n), face by face: ADMM on  min |j|_2 + beta |R o j|_1 + lam |e|_1  s.t.  x = Dz + e, z = j.

    LCLRR uses R (m,n) and the l21 error.

    The proximal operator of |.|_2 + beta |R o .|_1 is a soft threshold followed by a column shrink, so one copy of z is enough
    for both norms. y1, y2 are the multipliers divided by their penalties mu and kappa mu; a is the relaxation:

        z = PD'(x - e + y1) + kappa P (j - y2)
        f = a (x - Dz) + (1 - a) e + y1;   e = S_{lam/mu}(f);                           y1 = (f - e)/rho
        g = a z + (1 - a) j + y2;          j = B_{1/(kappa mu)}(S_{beta/(kappa mu)}(g));   y2 = (g - j)/rho
    """
    a, ratio = coding.relaxation, 1 / coding.rho
    PD, kP = constants or ridge_constants(D, coding.kappa)
    z = np.zeros((D.shape[1], X.shape[1]), X.dtype)
    j, y2, e, y1 = np.zeros_like(z), np.zeros_like(z), np.zeros_like(X), np.zeros_like(X)
    for k, mu in enumerate(coding.penalties(len(D) if error == "l1" else 1).tolist()):
        t = 1 / (coding.kappa * mu)
        z = PD @ (X - e + y1) + kP @ (j - y2)
        f = a * (X - D @ z) + (1 - a) * e + y1
        e = ERRORS[error](f, coding.lam / mu)
        y1 = ratio * (f - e)
        g = a * z + (1 - a) * j + y2
        j = column_shrink(soft_threshold(g, coding.beta * t * R), t)
        y2 = ratio * (g - j)
        if callback:
            callback(k + 1, z)
    return z


def code_faces(D: Array, X: Array, coding: SparseCoding) -> Array:
    """Return `code_sparsely` of any number of faces, in float32 as on the device."""
    D = D.astype(np.float32)
    constants = ridge_constants(D, coding.kappa)
    return in_chunks(lambda chunk: code_sparsely(D, chunk, coding, constants=constants), X.astype(np.float32))


@dataclass(eq=False, repr=False)
class LRRS(FixedDictionary):
    """Low-rank and sparse codes over random samples."""

    _: KW_ONLY
    beta: float = 0.01
    """Weight of sparsity."""
    error: str = field(default="l1", init=False)  # not a parameter
    together: bool = False
    """Code all faces of a call under one nuclear norm, by the published schedule (as printed): then a face's label depends on
    the other faces. RBDS is trained by this schedule too. For tables only; a device codes one face at a time."""
    scaling: str = "unit"
    """With `together`: faces at unit length ("unit"), or pixels divided by the largest of training, and a lam without unit
    ("maximum", as in the code of RBDS)."""

    def check_parameters(self) -> None:
        super().check_parameters()
        if self.scaling != "unit" and not self.together:
            raise ParameterError("scaling=maximum needs together=True")

    @property
    def coding(self) -> SparseCoding:
        if self.together:
            raise ParameterError("a device codes one face at a time; leave out together")
        return SparseCoding(lam=self._error_weight(), beta=self.beta)

    def code(self, samples: Array) -> Array:
        return self._represent(samples) if self.together else code_faces(self.D_, samples, self.coding)

    def _represent(self, samples: Array) -> Array:
        if not self.together:
            return super()._represent(samples)
        X, D = samples.astype(np.float32), self.D_.astype(np.float32)
        return represent(X, D, lam=self._error_weight(), R=self.beta, **PRINTED_SCHEDULE).Z

    def _error_weight(self) -> float:
        return self.lam if self.scaling == "maximum" else super()._error_weight()

    def _vectors(self, samples: Array, *, training: bool = False) -> Array:
        rows = super()._vectors(samples, training=training)
        if self.scaling == "unit":
            return rows
        rows = samples if self.features is None else pixels(samples, rows, self.features)
        if training or not hasattr(self, "largest_"):
            self.largest_ = float(np.abs(rows).max()) or 1.0
        scaled: Array = rows / self.largest_
        return scaled

    def _code_weights(self, samples: Array) -> Array:
        return np.full((self.D_.shape[1], samples.shape[1]), self.beta)


def pixels(crops: Array, unit: Array, spec: Spec) -> Array:
    """Return the pixels (n, d) of crops, averaged over cells, from the same at unit length: the sum of a row is known."""
    own = spec.own
    if spec.kind != "pixels" or own is None:
        raise ParameterError("scaling=maximum needs the features `pixels`")
    height, width = (side - side % own.cell for side in (own.height, own.width))  # incomplete cells are left out
    total = crops[:, :height, :width].sum(axis=(1, 2), dtype=np.float64) / own.cell**2
    return unit * (total / np.maximum(unit.sum(axis=1, dtype=np.float64), np.finfo(np.float32).tiny))[:, None]


def block_diagonal(
    X: Array,
    D: Array,
    same: Array,
    *,
    alpha: float,
    lam: float,
    beta: float,
    gamma: float,
    mu0: float | None = None,
    rho: float = 1.5,
    tol: float = 1e-4,
    max_iterations: int = 500,
) -> SolverResult:
    """RBDS, starting with the dictionary D. `same` (m,n): whether atom i and sample j have the same class. y = Y/mu.

    PRINTED_SCHEDULE takes 190 iterations, with Z = 0 in many of them. The default, which ends at another point, takes 20.
    """
    mu = mu0 or 0.2 * lam / typical_size(X)
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
        same = self.atom_classes_[:, None] == labels
        weights: dict[str, Any] = {"alpha": self.alpha, "lam": self._error_weight(), "beta": self.beta, "gamma": self.gamma}
        schedule = PRINTED_SCHEDULE if self.together else {}
        self.result_ = block_diagonal(samples, self.D_, same, **weights, **schedule)
        self.D_ = self.result_.D
        self._learn_linear(self.code(samples) if self.classifier_codes == "coder" else self.result_.Z, labels)
