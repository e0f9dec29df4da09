"""K-SVD of each class (Aharon, Elad and Bruckstein 2006) as the dictionary of problem 2.

min_{D,Z} |X - DZ|_F^2, class by class: each atom in turn is the leading singular vector of what the others leave

X (d,n)  samples, unit columns     D (d,m)  dictionary, unit columns     Z (m,n)  codes
"""

from dataclasses import dataclass

import numpy as np

from trainer.baselines.lrr import LRR
from trainer.method.prox import column_norms
from trainer.types import Array

SWEEPS = 20  # as in the code of LC-KSVD


def k_svd(X: Array, labels: Array, D: Array, classes: Array) -> Array:
    """Return K-SVD's dictionary of each class, from the samples D (d,m) of `classes` (m,), with unit columns.

    Without a limit of sparsity: LC-KSVD's code allows 30 atoms per sample, more than a class has. So codes are least squares.
    Atoms are in the span of their class, and its samples are rotated into it, which changes nothing.
    """
    D = D.copy()
    for c in np.unique(classes):
        Q, samples = np.linalg.qr(X[:, labels == c].astype(np.float64))
        atoms = Q.T @ D[:, classes == c]
        for _ in range(SWEEPS):
            Z = np.linalg.lstsq(atoms, samples, rcond=None)[0]
            for k in range(atoms.shape[1]):
                left, s, right = np.linalg.svd(samples - atoms @ Z + np.outer(atoms[:, k], Z[k]), full_matrices=False)
                sign = 1 if left[:, 0] @ atoms[:, k] >= 0 else -1
                atoms[:, k], Z[k] = sign * left[:, 0], sign * s[0] * right[0]
        D[:, classes == c] = Q @ atoms
    return D / np.maximum(column_norms(D), np.finfo(D.dtype).tiny)


@dataclass(eq=False, repr=False)
class KSVD(LRR):
    """LRR with K-SVD of each class as dictionary, from random samples. Faces are coded as by LRR."""

    def _choose_atoms(self, samples: Array, labels: Array) -> Array:
        return k_svd(samples, labels, super()._choose_atoms(samples, labels), self.atom_classes_)
