"""RPCA and LRSI, low-rank cleaning of the training faces, then SRC: errors that few faces share are removed first.

    RPCA    min_{A,E}  |A|_* + lam |E|_1                                                               s.t.  X = A + E
    LRSI    min_{A,E}  sum_i |A_i|_* + lam |E_i|_1  +  eta sum_{i<j} |A_j'A_i|_F^2    (class i, j)     s.t.  X_i = A_i + E_i

    X (d,n)  training samples, unit columns     A (d,n)  low rank     E (d,n)  sparse
    Y (d,n)  multiplier                         mu  penalty; rho: its growth

RPCA: Candes, Li, Ma, Wright: Robust principal component analysis?, JACM 2011; solved by the inexact augmented Lagrangian of
Lin, Chen and Ma (2010) with their penalties. SRC's dictionary is A with unit columns. Test faces are not changed.

LRSI: Chen, Wei, Wang: Low-rank matrix recovery with structural incoherence for robust face recognition, CVPR 2012. As there,
the bound |A_j'A_i|_F <= |A_j|_F |A_i|_F replaces the last term, and one class is solved at a time: RPCA with a term
eta' |A_i|_F^2, eta' = eta sum_{j != i} |A_j|_F^2, convex and exact. It starts from RPCA of each class. PCA does not subtract
the mean, because SRC compares directions.
"""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from edge.errors import TrainingError
from edge.vision.preprocess import unit_rows
from trainer.baselines.src import SRCCoding, scores, sparse_codes
from trainer.method.base import FaceClassifier
from trainer.method.coding import l1_weight
from trainer.method.prox import column_norms, soft_threshold, svt
from trainer.types import Array

MAX_ITERATIONS = 500


def rpca(X: Array, lam: float, *, ridge: float = 0.0, rho: float = 1.5, tol: float = 1e-7) -> tuple[Array, int]:
    """Return A and the number of iterations. The usual `lam` is 1/sqrt(max(d, n)). LRSI adds a term ridge |A|_F^2."""
    largest, size = float(np.linalg.norm(X, 2)), float(np.linalg.norm(X))
    mu = 1.25 / largest
    mu_max = 1e7 * mu
    y = X / max(largest, np.abs(X).max() / lam) / mu  # Y/mu
    A = np.zeros_like(X)
    rank = iterations = 0
    error = 1.0
    while error >= tol and iterations < MAX_ITERATIONS:
        # E = S_{lam/mu}(X - A + Y/mu);  A = SVT_eps(eps mu (X - E + Y/mu)), eps = 1/(2 ridge + mu);  Y += mu (X - A - E)
        eps = 1 / (2 * ridge + mu)
        E = soft_threshold(X - A + y, lam / mu)
        A, rank = svt(eps * mu * (X - E + y), eps, rank)
        residual = X - A - E
        next_mu = min(mu_max, rho * mu)
        y = (y + residual) * (mu / next_mu)
        mu = next_mu
        error = float(np.linalg.norm(residual) / size)
        iterations += 1
    return A, iterations


def unit_atoms(A: Array) -> Array:
    """Scale the columns to unit length, in SRC's float32. Zero columns (samples that are all error) stay zero."""
    norms = column_norms(A)
    if norms.max() < 1e-6:
        raise TrainingError("Every training image is all error: no dictionary is left.", "Use a larger lam.")
    return (A / np.maximum(norms, 1e-6)).astype(np.float32)


@dataclass(eq=False, repr=False)
class CleanedSRC(FaceClassifier):
    """Base of RPCA and LRSI: SRC with cleaned training samples as dictionary. Learned: D_ (d, n), atom_classes_ (n,)."""

    _: KW_ONLY
    lam: float
    src_lam: float = 1e-3
    """lam of SRC."""
    iterations: int = 100
    """Iterations of SRC."""

    def _scores(self, samples: Array) -> Array:
        samples, coding = samples.astype(np.float32), SRCCoding(lam=self.src_lam, iterations=self.iterations)
        return scores(self.D_, samples, sparse_codes(self.D_, samples, coding), self.atom_classes_, coding)


@dataclass(eq=False, repr=False)
class RPCA(CleanedSRC):
    """Robust principal component analysis of all training samples, then SRC. Learned beside D_: n_iter_."""

    _: KW_ONLY
    lam: float = 1.5
    """Weight of |E|_1, in units of 1/sqrt(max(d, n)), so one value fits all sizes. 1 is too small: E takes too much of a face,
    and the accuracy was 73 % instead of 81 % (cross-validation inside training images of Yale B, 8 each, 1/8)."""

    def _learn(self, samples: Array, labels: Array) -> None:
        # 1e-5 instead of 1e-7 saves a third of the iterations and changes no entry of A by more than 1e-5.
        A, self.n_iter_ = rpca(samples, self.lam * (1 / np.sqrt(max(samples.shape))), tol=1e-5)
        self.D_, self.atom_classes_ = unit_atoms(A), labels


def lrsi(X: Array, labels: Array, *, lam: float, eta: float, rounds: int = 1, tol: float = 1e-5) -> Array:
    """Return A of samples (d,n) of classes 0..C-1: RPCA of each class, then `rounds` passes over the classes."""
    A, sizes = np.zeros_like(X), np.zeros(labels.max() + 1)  # sizes: |A_i|_F^2
    for ridge in [0.0] + [eta] * rounds:
        for i in range(len(sizes)):
            own = labels == i
            A_i, _ = rpca(X[:, own], lam, ridge=ridge * (sizes.sum() - sizes[i]), tol=tol)
            A[:, own], sizes[i] = A_i, np.square(A_i).sum()
    return A


@dataclass(eq=False, repr=False)
class LRSI(CleanedSRC):
    """Low-rank approximation A of each class, then SRC in the subspace of A. Learned beside D_ (k, n): projection_ (d, k)."""

    _: KW_ONLY
    lam: float = 3.0
    """Weight of |E|_1, in units of 1/sqrt(d), so one value fits all sizes."""
    incoherence: float = 3e-4
    """eta."""
    components: int | None = None
    """Dimensions of the subspace, the leading ones of A. None: all."""
    rounds: int = 1
    """Passes over the classes after the first."""

    def _learn(self, samples: Array, labels: Array) -> None:
        lam = l1_weight(self.lam, len(samples))
        A = lrsi(samples, labels, lam=lam, eta=self.incoherence, rounds=self.rounds)
        U, s, _ = np.linalg.svd(A, full_matrices=False)
        self.projection_ = U[:, s > 1e-6 * s[0]][:, : self.components]
        self.D_, self.atom_classes_ = unit_atoms(self.projection_.T @ A), labels

    def _scores(self, samples: Array) -> Array:
        return super()._scores(unit_rows(samples.T @ self.projection_).T)
