"""LRRS, low-rank and sparse representation over a fixed dictionary: most likely the method behind the paper's row LRSR.

    min_{Z,E}  |Z|_* + beta |Z|_1 + lam |E|_1     s.t.  X = DZ + E

    X (d,n)  samples, unit columns     D (d,m)  dictionary, random samples     Z (m,n)  codes     E (d,n)  error

The work that the paper cites for that row (Li et al. 2014) has another method: trainer.baselines.rbds. A face x is coded by
itself: the nuclear norm of one column is |z|_2.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np

from edge.errors import ParameterError
from trainer.baselines.lrr import ERRORS, FixedDictionary
from trainer.baselines.src import ridge_constants
from trainer.method.coding import Callback, in_chunks
from trainer.method.prox import column_shrink, soft_threshold
from trainer.types import Array


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

    def converged(self) -> SparseCoding:
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
    """Low-rank and sparse codes over random samples: most likely the method behind the paper's row LRSR."""

    _: KW_ONLY
    beta: float = 0.01
    """Weight of sparsity."""
    error: str = field(default="l1", init=False)  # not a parameter

    @property
    def coding(self) -> SparseCoding:
        return SparseCoding(lam=self._error_weight(), beta=self.beta)

    def code(self, samples: Array) -> Array:
        return code_faces(self.D_, samples, self.coding)

    def _code_weights(self, samples: Array) -> Array:
        return np.full((self.D_.shape[1], samples.shape[1]), self.beta)
