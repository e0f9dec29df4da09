"""Coding faces with a dictionary (problem 2). Training, evaluation and export all use this one definition.

    l1     min_z |z|_2 + lam |x - Dz|_1     one face at a time; robust to sunglasses and scarves
    l21    min_z |z|_2 + lam |x - Dz|_2     one face at a time; a scalar problem, almost free
    batch  min_Z |Z|_* + lam |X - DZ|_1     all test faces together, as printed (for the paper's tables)

    X (d,n)  faces, unit columns     D = U diag(s) V' (d,m)  thin SVD of rank r     w = V'z (r,n)

These norms do not change under V, and the optimal z is in the range of V. So all coders compute w. They use D only through
U, and V folds into the classifier: scores = (WV) w.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from edge.errors import ParameterError
from trainer.method.prox import column_norms, column_shrink, svt
from trainer.types import Array

Kind = Literal["l1", "l21", "batch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
CHUNK = 512  # faces coded at once: limits memory, changes no result
FIRST_TAU = 1e-2  # of the iteration of l21
SETTLED = 1e-6  # relative change of tau below which more iterations only change rounding errors
ROUNDING = 100  # error of a difference of sums of squares, in units in the last place, with a margin
Callback = Callable[[int, Array], None]


@dataclass(frozen=True, kw_only=True)
class Coding:
    """Settings of a coder. The penalty of `l1` and `batch` is mu0 rho^k for every face, so it folds into the graph."""

    kind: str = "l1"
    """l1, l21 or batch."""
    lam: float = 0.1
    """Weight of the error."""
    iterations: int = 20
    """Fixed number of iterations (l21: of its scalar iteration)."""
    mu0: float = 10.0
    """First penalty (l1, batch)."""
    rho: float = 1.2
    """Growth of the penalty (l1, batch)."""
    relaxation: float = 1.0
    """Over-relaxation of the error's update (l1, batch). 1: none. 1.8: needs about a third fewer iterations."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ParameterError(f"coding must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not (self.lam > 0 and self.iterations >= 1 and self.mu0 > 0 and self.rho >= 1 and 1 <= self.relaxation < 2):
            raise ParameterError("coding needs lam > 0, iterations >= 1, mu0 > 0, rho >= 1 and 1 <= relaxation < 2")

    @classmethod
    def default(cls, kind: str) -> "Coding":
        """Return the default settings of a kind."""
        if kind == "l21":
            return cls(kind="l21", lam=5.0, iterations=10)
        if kind == "batch":
            return cls(kind="batch", iterations=250, mu0=1e-6, rho=1.1)
        # Over-relaxation needs fewer iterations and ends closer to the optimum.
        return cls(kind=kind, iterations=14, relaxation=1.8)

    def weighted(self, lam: float, d: int) -> "Coding":
        """Return the coding for faces of d features with the weight lam, for an l1 error `l1_weight` (lam, d)."""
        if self.kind == "l21":
            return replace(self, lam=lam)
        scaled = replace(self, lam=l1_weight(lam, d))
        # A small lam of `l1` needs a longer schedule.
        return scaled if self.kind == "batch" else replace(scaled, mu0=2 * lam, rho=1.15, iterations=24)

    def converged(self) -> "Coding":
        """Return settings that solve the same problem (l1, l21) almost to the end: the reference for fixed iterations."""
        if self.kind == "l21":
            return replace(self, iterations=500)
        return replace(self, iterations=120, mu0=20.0, rho=1.02, relaxation=1.8)


def l1_weight(lam: float, d: int) -> float:
    """Return lam/sqrt(d), the weight of an l1 error. Entries of unit vectors shrink like that, so one lam fits all sizes."""
    return float(lam / np.sqrt(d))


class Coder:
    """A dictionary, prepared for coding. The dtype of D is the precision of the arithmetic."""

    def __init__(self, D: Array, coding: Coding) -> None:
        self.D, self.coding = D, coding

    @cached_property
    def svd(self) -> tuple[Array, Array, Array]:
        """U (d,r), s (r,), V (m,r), without the directions in which D is zero."""
        U, s, Vt = np.linalg.svd(self.D, full_matrices=False)
        keep = s > s[0] * len(s) * np.finfo(s.dtype).eps
        return U[:, keep], s[keep], Vt[keep].T

    def code(self, X: Array) -> Array:
        """Return Z (m,n) of X (d,n)."""
        U, s, V = self.svd
        X = X.astype(self.D.dtype, copy=False)
        if self.coding.kind == "batch":
            w = _l1(U, s, X, self.coding, together=True)
        else:
            w = in_chunks(lambda chunk: code_by_factors(U, s, chunk, self.coding), X)
        Z: Array = V @ w
        return Z


def in_chunks(code: Callable[[Array], Array], X: Array, size: int | None = None) -> Array:
    """Return code(X), computed for `size` (default CHUNK) columns at a time."""
    size = size or CHUNK
    return np.hstack([code(X[:, i : i + size]) for i in range(0, max(X.shape[1], 1), size)])


def code_by_factors(U: Array, s: Array, X: Array, coding: Coding, callback: Callback | None = None) -> Array:
    """Return w (r,n) of X (d,n), face by face, as on the device. `callback` receives the number of iterations done, and w."""
    return (_l21 if coding.kind == "l21" else _l1)(U, s, X, coding, callback=callback)


def _l1(U: Array, s: Array, X: Array, coding: Coding, callback: Callback | None = None, together: bool = False) -> Array:
    """ADMM on  min |w| + lam |x - U(s w)|_1.  |w| is the l2 norm of each column or, with `together`, the nuclear norm of all.

    With y = Y/mu:  J = prox_{1/mu}(W + y2);  W = (s U'(X - E + y1) + J - y2)/(s^2 + 1);
    E = S_{lam/mu}(F), F = a (X - DZ) + (1 - a) E + y1, a the relaxation.  With q = F - E = clip(F), y1 = q/rho as mu grows.
    E and y1 appear only in g = (1 - a) E + y1 and in U'(X - E + y1). Both follow from F, q, U'F and U'q, so one iteration
    reads U twice.
    """
    a, ratio = coding.relaxation, 1 / coding.rho
    s_, scale = s[:, None], (1 / (s * s + 1))[:, None]
    w = np.zeros((len(s), X.shape[1]), X.dtype)
    y2, g, Ug = np.zeros_like(w), np.zeros_like(X), np.zeros_like(w)
    Ut = np.ascontiguousarray(U.T)
    c = UX = Ut @ X
    rank = 0
    for k in range(coding.iterations):
        mu = coding.mu0 * coding.rho**k
        J, rank = svt(w + y2, 1 / mu, rank) if together else (column_shrink(w + y2, 1 / mu), 0)
        w_next = s_ * c
        w_next += J
        w_next -= y2
        w_next *= scale
        F = a * (X - U @ (s_ * w_next)) + g
        UF = a * (UX - s_ * w_next) + Ug
        q = np.clip(F, -coding.lam / mu, coding.lam / mu)
        Uq = Ut @ q
        c = UX - UF + (1 + ratio) * Uq
        g, Ug = (1 - a) * F + (ratio - 1 + a) * q, (1 - a) * UF + (ratio - 1 + a) * Uq
        y2 += w_next
        y2 -= J
        y2 *= ratio
        w = w_next
        if callback:
            callback(k + 1, w)
    return w


def _l21(U: Array, s: Array, X: Array, coding: Coding, callback: Callback | None = None) -> Array:
    return code_projected(*project(U, s, X), s, coding, callback)


def code_projected(
    c: Array, outside: Array, s: Array, coding: Coding, callback: Callback | None = None, *, settle: bool = False
) -> Array:
    """Return w (r,n) of faces by the coding l21, from `project`. `settle` stops when tau no longer changes.

    The optimum is the ridge solution w = s c/(s^2 + tau) with tau = |x - Dz|/(lam |w|), found by fixed-point iteration.
    """
    tiny, s_ = np.finfo(c.dtype).tiny, s[:, None]
    s_c, s_squared = s_ * c, s_ * s_
    w: Array = s_c / (s_squared + c.dtype.type(FIRST_TAU))
    before = np.zeros_like(outside)
    for k in range(coding.iterations):
        error = c - s_ * w
        tau = np.sqrt(outside + np.einsum("ij,ij->j", error, error))
        tau /= np.maximum(coding.lam * column_norms(w), tiny)
        w = s_c / (s_squared + tau)
        if callback:
            callback(k + 1, w)
        if settle and bool(np.all(np.abs(tau - before) <= SETTLED * tau)):
            break
        before = tau
    return w


def project(U: Array, s: Array, X: Array) -> tuple[Array, Array]:
    """Return c = U'X (r,n) and |x - Uc|^2 of each face (n,): the part of x that no code can explain.

    |x|^2 - |c|^2 is a small difference of large numbers, because all faces share the leading direction. So that direction is
    subtracted before, and added to c again at the end.
    """
    if len(s) == 0:
        return np.zeros((0, X.shape[1]), X.dtype), np.einsum("ij,ij->j", X, X)
    u = U[:, np.argmax(s)]
    share = u @ X
    rest = X - np.outer(u, share)
    c = U.T @ rest
    of_rest, of_part = (np.einsum("ij,ij->j", A, A, dtype=np.float64) for A in (rest, c))
    c += np.outer(U.T @ u, share)
    return c, np.maximum(of_rest - of_part, ROUNDING * np.finfo(X.dtype).eps).astype(X.dtype)
