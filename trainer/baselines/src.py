"""SRC, sparse representation for classification: a face is a sparse sum of training faces; the best-fitting class wins.

    min_z   1/2 |x - Dz|_2^2 + lam |z|_1                         label = argmin_c |x - D_c z_c|
    min_z,e 1/2 |x - Dz - e|_2^2 + lam (|z|_1 + |e|_1)           label = argmin_c |x - e - D_c z_c|      (occlusion)

    X (d,n) faces as unit columns     D (d,m) all training faces (SRW), or a few of each class (SRS)

Wright, Yang, Ganesh, Sastry, Ma: Robust face recognition via sparse representation, PAMI 2009. The best e for a z is
S_lam(x - Dz). The rest is Huber's function of x - Dz, so [D, I] is never formed. ADMM needs far fewer iterations than the
usual FISTA (figures: docs/research/results.md).
"""

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
from scipy.linalg import inv

from edge.errors import ParameterError
from trainer.method.base import FaceClassifier, random_atoms
from trainer.method.classifier import one_hot
from trainer.method.coding import Callback, in_chunks
from trainer.method.prox import soft_threshold
from trainer.types import Array

STEP = np.float32(1 / 30)  # lam/mu: about the size of the entries of z, for every lam
ERROR_STEP = np.float32(0.005)  # the same for x - Dz
RELAXATION = np.float32(1.8)
CHUNK = 256  # faces coded at once: their codes fit into the cache


@dataclass(frozen=True, kw_only=True)
class SRCCoding:
    """Settings of the coder."""

    kind: str = "src"
    lam: float = 1e-3
    """Weight of |z|_1."""
    iterations: int = 100
    """Fixed number of iterations."""
    occlusion: bool = False
    """Whether a part of the face may be covered: the identity block beside D."""

    def __post_init__(self) -> None:
        if not (self.lam > 0 and self.iterations >= 1):
            raise ParameterError("coding needs lam > 0 and iterations >= 1")

    @property
    def ridge(self) -> float:
        """Ridge of the z update, which inverts D'D + ridge I."""
        return float((ERROR_STEP if self.occlusion else self.lam) / STEP)

    def converged(self) -> "SRCCoding":
        """Return settings that solve the same problem to the end: the reference for fixed iterations."""
        return replace(self, iterations=250)


def ridge_constants(D: Array, ridge: float) -> tuple[Array, Array]:
    """Return K = PD' (m,d) and M = ridge P (m,m), P = (D'D + ridge I)^-1, computed in float64, in the dtype of D."""
    wide = D.astype(np.float64, copy=False)
    P = inv(wide.T @ wide + ridge * np.eye(D.shape[1]), check_finite=False)
    return (P @ wide.T).astype(D.dtype), (ridge * P).astype(D.dtype)


def sparse_codes(D: Array, X: Array, coding: SRCCoding) -> Array:
    """Return Z (m,n) of X (d,n), face by face. D and X are float32."""
    K, M = ridge_constants(D, coding.ridge)
    return in_chunks(lambda chunk: code(D, K, M, chunk, coding), X, CHUNK)


def code(D: Array, K: Array, M: Array, X: Array, coding: SRCCoding, callback: Callback | None = None) -> Array:
    """Return Z (m,n) of X (d,n) by ADMM. `callback` receives the number of iterations done, and Z.

    The constraint z = j has the penalty lam/STEP; u is its multiplier divided by it. With occlusion, r = x - Dz has Huber's
    function, the penalty nu = lam/ERROR_STEP and the multiplier y (over nu); else r = y = 0.

        z = K (x - r + y) + M (j - u)
        f = a z + (1 - a) j + u;            u = clip(f, -STEP, STEP);                           j = f - u
        f = a (x - Dz) + (1 - a) r + y;     y = clip(f/(1 + nu), -ERROR_STEP, ERROR_STEP);      r = f - y
    """
    a, share = RELAXATION, np.float32(1 / (1 + coding.lam / ERROR_STEP))
    Kx = K @ X
    j, u, r, y = np.zeros_like(Kx), np.zeros_like(Kx), np.zeros_like(X), np.zeros_like(X)
    for k in range(coding.iterations):
        z = (K @ (X - r + y) if coding.occlusion else Kx) + M @ (j - u)
        f = a * z + (1 - a) * j + u
        u = np.clip(f, -STEP, STEP)
        j = f - u
        if coding.occlusion:
            f = a * (X - D @ z) + (1 - a) * r + y
            y = np.clip(share * f, -ERROR_STEP, ERROR_STEP)
            r = f - y
        if callback:
            callback(k + 1, j)
    return j


def scores(D: Array, X: Array, Z: Array, classes: Array, coding: SRCCoding) -> Array:
    """Return (C,n), the share of each face that the atoms of class c explain; with occlusion, the share of its visible part.

    The share is (|x|^2 - |x - D_c z_c|^2)/|x|^2 = z_c'(2 D_c'x - G_cc z_c)/|x|^2. The largest share has the smallest residual.
    `classes` (m,) are the atoms' classes 0..C-1.
    """
    if coding.occlusion:
        X = X - soft_threshold(X - D @ Z, coding.lam)
    B = D.T @ X
    shares = np.empty((classes.max() + 1, X.shape[1]), B.dtype)
    for c in range(len(shares)):
        own = classes == c
        shares[c] = np.einsum("ij,ij->j", Z[own], 2 * B[own] - (D[:, own].T @ D[:, own]) @ Z[own])
    return shares / np.maximum(np.einsum("ij,ij->j", X, X), np.finfo(X.dtype).tiny)


@dataclass(eq=False, repr=False)
class SRC(FaceClassifier):
    """Sparse representation for classification.

    Learned: D_ (d, m), atom_classes_ (m,), W_ (C, m): the atom classes as one-hot columns.
    """

    atoms_per_class: int | None = None
    """Random samples of each class in D (SRS). None: all (SRW)."""
    _: KW_ONLY
    lam: float = 1e-3
    """Weight of |z|_1."""
    iterations: int = 100
    """Iterations of ADMM."""
    occlusion: bool = False
    """Whether a part of the face may be covered."""

    @property
    def coding(self) -> SRCCoding:
        return SRCCoding(lam=self.lam, iterations=self.iterations, occlusion=self.occlusion)

    def _learn(self, samples: Array, labels: Array) -> None:
        atoms = random_atoms(labels, self.atoms_per_class, self.random_state)
        self.D_, self.atom_classes_ = samples[:, atoms].astype(np.float32), labels[atoms]
        self.W_ = one_hot(self.atom_classes_, len(self.classes_))

    def _scores(self, samples: Array) -> Array:
        samples = samples.astype(np.float32)
        return scores(self.D_, samples, sparse_codes(self.D_, samples, self.coding), self.atom_classes_, self.coding)
