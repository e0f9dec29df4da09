"""Many people: the dictionaries of all shards, joined through one Gram matrix.

    D = [D_1 ... D_S]     G = DD' = sum of D_g D_g' = U diag(s^2) U'     w = V'z  for D = U diag(s) V'
    A = sum of h w w'     M = sum of h w for each person     B = M (A + eta I)^-1     scores = B w

    D_g (d,m_g)  dictionary of a shard, learned by Algorithm 1 on its own people     G (d,d)     U (d,r)     s (r,)
    w (r,n)  codes, h their weights     A (r,r)     M, B (C,r)

A coder needs D only through U and s (trainer.method.coding), and B is the WV of the plain method, because Z = Vw: with one
shard both give the same scores. A part of the face, or an expert, needs only its own rows and columns of G. Nothing has people
x atoms or photos x photos entries, and A and M are sums over chunks of photos, which any process can compute.

The rows of B have unit length in the metric of the ridge, b_c /= sqrt(b_c (A + eta I) b_c'): with more than about 300 people
a plain ridge no longer separates strangers. b_c (A + eta I) b_c' = b_c m_c'.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import blas, cho_factor, cho_solve, eigh, solve_triangular

from trainer.method.blocks import Block
from trainer.method.coding import Coding
from trainer.method.parts import unit_scores
from trainer.types import Array, release

MAX_RANK = 1024
"""Directions of the whole face that are kept. Parts of the face keep all of theirs: there a limit costs accuracy."""
VECTOR_RIDGE = 5.0  # 3 to 10 hardly differ on LFW, 1 and 30 are worse
SCORES = 1 << 20  # people x faces that are scored at once: limits memory, changes no result


def gram(dictionaries: Iterable[Array]) -> Array:
    """Return G (d,d), the sum of D_g D_g' of dictionaries (d,m_g), added in their order. Only its lower triangle is filled."""
    total: Array | None = None
    for D in dictionaries:
        wide = np.asfortranarray(D, dtype=np.float64)
        release(D)
        total = blas.dsyrk(1.0, wide, lower=1, beta=0.0 if total is None else 1.0, c=total, overwrite_c=1)
    assert total is not None
    return total


def rows_of(G: Array, rows: Array | None) -> Array:
    """Return the rows and columns of a part of G, whose lower triangle is filled. Rows must rise."""
    return G if rows is None else np.asfortranarray(G[np.ix_(rows, rows)])


def factors(own: Array, atoms: int, rank: int | None) -> tuple[Array, Array]:
    """Return U (k,r) and s (r,) of a Gram matrix (k,k): at most `rank` directions, and none in which D is zero.

    It is the sum over so many atoms.
    """
    k = len(own)
    most = min(k, atoms, rank or k)
    squared, U = eigh(own, lower=True, subset_by_index=(k - most, k - 1), driver="evr", check_finite=False)
    s = np.sqrt(np.maximum(squared, 0)).astype(np.float32)
    keep = s > s[-1] * min(k, atoms) * np.finfo(np.float32).eps  # as in trainer.method.coding.Coder.svd
    return np.ascontiguousarray(U[:, keep], np.float32), s[keep]


def sums(w: Array, people: Array, weights: Array) -> tuple[Array, Array]:
    """Return A (r,r) and M (p,r) of codes w (r,n), for the p different people (n,) in rising order."""
    wide = w.astype(np.float64)
    weighted = wide * weights
    order = np.argsort(people, kind="stable")
    starts = np.flatnonzero(np.diff(people[order], prepend=-1))
    return weighted @ wide.T, np.add.reduceat(weighted[:, order], starts, axis=1).T


def classifier(A: Array, M: Array, eta: Array | float, *, unit: bool = True) -> Array:
    """Return B (C,r) of eq. 9, with rows of unit length in the metric of the ridge if `unit`. eta: of all or each (r,)."""
    B = cho_solve(_ridge_factor(A, eta), M.T, check_finite=False).T
    if unit:
        B /= np.sqrt(np.maximum(np.einsum("cr,cr->c", B, M), np.finfo(float).tiny))[:, None]
    return np.asarray(B)


def vector_ridge(A: Array, s: Array) -> Array:
    """Return the ridge (r,) that penalises a row b of B by its length as a function of the face x: eta |b/s|^2.

    With many atoms w is about U'x/s: directions in which people hardly differ, which are noise if there are few photos, count
    as much as the others. A ridge on b itself only makes that worse. eta is such that the penalty weighs VECTOR_RIDGE times
    as much as the photos.
    """
    penalty = 1 / np.square(s.astype(np.float64))
    return np.asarray(VECTOR_RIDGE * np.trace(A) / penalty.sum() * penalty)


def _ridge_factor(A: Array, eta: Array | float) -> tuple[Array, bool]:
    ridged = A + np.diag(np.broadcast_to(eta, len(A)))
    factor: tuple[Array, bool] = cho_factor(ridged, lower=True, check_finite=False)
    return factor


def scores(blocks: Sequence[Block], templates: Array | None, X: Array, coding: Coding) -> Array:
    """Return scores (C,n) of X (d,n): fused from the parts of a face, or with templates (C,k) the sum of the experts."""
    codes = [block.code(X, coding) for block in blocks]
    if templates is not None:
        return np.asarray(templates @ blocks[0].own(X) + sum(block.B @ w for block, w in zip(blocks, codes, strict=True)))
    if len(blocks) == 1:
        return np.asarray(blocks[0].B @ codes[0])
    return fused(block.B @ w for block, w in zip(blocks, codes, strict=True))


def fused(of_parts: Iterable[Array]) -> Array:
    """Return trainer.method.parts.fuse of scores (C,n), with two of them in memory."""
    total: Array | float = 0.0
    number = 0
    for own in of_parts:
        unit = unit_scores(own)
        unit *= unit.max(axis=0)
        total, number = total + unit, number + 1
    return np.asarray(total / number)


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """The scores of each photo by a plain ridge that is learned on the other photos (trainer.method.label_noise).

    s = (M C^-T v - h y)/(1 - h)     A + eta I = CC'     v = C^-1 w     h = |v|^2     y  one-hot label
    """

    factor: Array
    """C (r,r)."""
    people: Array
    """M C^-T (C,r) float32."""

    @classmethod
    def of(cls, A: Array, M: Array, eta: float) -> "LeaveOneOut":
        factor = np.tril(_ridge_factor(A, eta)[0])
        whitened = solve_triangular(factor, M.T, lower=True, check_finite=False).T
        return cls(factor, whitened.astype(np.float32))

    def scores(self, w: Array, people: Array, trusted: Array) -> Array:
        """Return scores (C,n) of codes w (r,n). A photo that is not trusted is not in the sums."""
        v = solve_triangular(self.factor, w.astype(np.float64), lower=True, check_finite=False)
        h = trusted * np.minimum(np.einsum("ij,ij->j", v, v), 1 - np.finfo(float).eps)
        found = self.people @ v.astype(np.float32)
        found[people, np.arange(len(people))] -= h.astype(np.float32)
        found /= (1 - h).astype(np.float32)
        return found


def in_columns(count: int, people: int) -> Iterable[slice]:
    """Yield slices of `count` faces, so that the scores of as many people stay small."""
    step = max(1, SCORES // people)
    return (slice(start, start + step) for start in range(0, count, step))
