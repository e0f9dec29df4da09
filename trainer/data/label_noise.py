"""Whom a photo looks like to all others: one that they call somebody else was probably given a wrong name.

The dictionary hardly sees names, which only choose its first atoms; the classifier believes every one of them. What ridge
regression would say of a sample, had it been learned without it, is known in closed form (Z, H, eta as in trainer.method.classifier):

    s_i = (Wz_i - h_i y_i) / (1 - h_i)     h_i = z_i'(ZZ' + eta I)^-1 z_i     y_i the i-th column of H

A sample is doubted if these scores, of the whole face and its parts together, put another class far before its own: farther
than the highest of as many random numbers lies. A face that is covered, or badly lit, is not doubted for that: little speaks
for it, and as little for anybody else. A wrong name spoils what is said of others too, so the plainest cases go first, the
rest is judged without them, and where there are no plain cases nothing is doubted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from trainer.features.parts import fuse
from trainer.method.classifier import one_hot
from trainer.types import Array

LEADS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of another class, from 0 (that of random scores) to 1; one after the other
FEWEST = 2  # photos that a person keeps: where fewer are believed, all are, for nothing tells which are wrong


def looks_like(codes: Sequence[Array], labels: Array, classes: int, eta: float) -> Array:
    """(n,) the class of each sample by the others: its own label where it is believed.

    `codes` (m,n) are those of the whole face, and of each part.
    """
    H, samples = one_hot(labels, classes), np.arange(len(labels))
    random = np.sqrt(2 * np.log(classes) / classes)  # about the highest of a random unit vector
    believed, answer, scores = np.ones(len(labels), bool), labels, None
    for lead in LEADS:
        if scores is None:
            scores = fuse([left_out(Z, H, eta, believed) for Z in codes])
            scores /= np.maximum(np.linalg.norm(scores, axis=0), np.finfo(float).tiny)
            own = np.maximum(scores[labels, samples], 0)
            scores[labels, samples] = -np.inf
        now = scores.max(axis=0) - own <= random + lead * (1 - random)
        now |= np.bincount(labels[now], minlength=classes)[labels] < FEWEST
        if (now != believed).any():
            believed, answer, scores = now, np.where(now, labels, scores.argmax(axis=0)), None
        if believed.all():
            break
    return answer


def left_out(Z: Array, H: Array, eta: float, believed: Array) -> Array:
    """(C,n) scores of each sample, by the classifier that is learned on the believed ones but itself."""
    Z = Z.astype(np.float64, copy=False)
    known = Z[:, believed]
    gram = known @ known.T
    gram.flat[:: len(gram) + 1] += eta
    half = solve_triangular(cholesky(gram, lower=True, check_finite=False), Z, lower=True, check_finite=False)
    own = believed * np.minimum(np.einsum("ij,ij->j", half, half), 1 - np.finfo(float).eps)
    return ((H[:, believed] @ half[:, believed].T) @ half - H * own) / (1 - own)
