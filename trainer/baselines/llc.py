"""LLC, locality-constrained linear coding: a face is an affine sum of its few nearest atoms. LLC has no device form.

    min_w |x - B_k w|_2^2 + beta tr(C) |w|_2^2   s.t.  1'w = 1         C = (B_k - x1')'(B_k - x1')      label = argmax Wz

    X (d,n) faces as unit columns     D (d,m) atoms     B_k (d,k) the k atoms nearest to x     z (m,) is w, and zero elsewhere

Wang, Yang, Yu, Lv, Huang, Gong: Locality-constrained linear coding for image classification, CVPR 2010. The optimum is
w = (C + beta tr(C) I)^-1 1, scaled to the sum 1.
A training sample that is an atom is coded by itself: without its own copy, faces of other people would code it.
"""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from trainer.method.base import CodeClassifier
from trainer.types import Array

SMALLEST = 1e-12  # smallest tr(C), so that rounding does not matter for a face that is an atom


def local_codes(D: Array, X: Array, neighbours: int = 5, beta: float = 1e-4) -> Array:
    """Return Z (m,n) of X (d,n), face by face. The nearest atoms (of unit length) have the largest D'x.

    C_ij = G_ij - h_i - h_j + |x|^2 with G = D'D and h = D'x is a small difference of large numbers, so float64 is used.
    """
    D, X = D.astype(np.float64, copy=False), X.astype(np.float64, copy=False)
    G, H = D.T @ D, X.T @ D
    k = min(neighbours, len(G))
    nearest = np.argsort(-H, axis=1, kind="stable")[:, :k]
    h = np.take_along_axis(H, nearest, axis=1)
    C = G[nearest[:, :, None], nearest[:, None, :]] - h[:, :, None] - h[:, None, :]
    C += np.einsum("ij,ij->j", X, X)[:, None, None]
    C += np.eye(k) * beta * np.maximum(np.trace(C, axis1=1, axis2=2), SMALLEST)[:, None, None]
    w = np.linalg.solve(C, np.ones((len(C), k, 1)))[..., 0]
    Z = np.zeros((len(G), len(C)))
    Z[nearest.T, np.arange(len(C))] = (w / w.sum(axis=1, keepdims=True)).T
    return Z


@dataclass(eq=False, repr=False)
class LLC(CodeClassifier):
    """Locality-constrained linear coding with its linear classifier."""

    atoms_per_class: int | None = None
    """Random samples of each class in D. None: all."""
    _: KW_ONLY
    neighbours: int = 5
    """Atoms that a face is coded with."""
    beta: float = 1e-4
    """Ridge of the code, relative to tr(C)."""
    eta: float = 1e-2
    """Ridge of the classifier (eq. 8)."""

    def _learn(self, samples: Array, labels: Array) -> None:
        self.D_ = self._choose_atoms(samples, labels)
        self._learn_linear(self.code(samples), labels)

    def code(self, samples: Array) -> Array:
        return local_codes(self.D_, samples, self.neighbours, self.beta)
