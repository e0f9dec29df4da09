"""LRSI, low-rank matrix approximation with structural incoherence, then PCA and SRC.

    min_{A,E}  sum_i |A_i|_* + lam |E_i|_1  +  eta sum_{i<j} |A_j'A_i|_F^2    s.t.  X_i = A_i + E_i

    X_i (d,n_i)  training samples of class i, unit columns     A_i (d,n_i)  low rank     E_i (d,n_i)  sparse

Chen, Wei, Wang: Low-rank matrix recovery with structural incoherence for robust face recognition, CVPR 2012. As there,
the bound |A_j'A_i|_F <= |A_j|_F |A_i|_F replaces the last term, and one class is solved at a time: RPCA with a term
eta' |A_i|_F^2, eta' = eta sum_{j != i} |A_j|_F^2, convex and exact. It starts from RPCA of each class. PCA does not subtract
the mean, because SRC compares directions.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from edge.vision.preprocess import unit_rows
from trainer.baselines.rpca import CleanedSRC, rpca, unit_atoms
from trainer.method.coding import l1_weight
from trainer.types import Array


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
