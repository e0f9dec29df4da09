"""Find training photos whose label is probably wrong, because they look like another person.

The dictionary hardly depends on labels (they only choose its first atoms), but the classifier trusts all of them. The scores
that ridge regression would give a sample if it was learned without that sample have a closed form (Z, H, eta as in
trainer.method.classifier):

    s_i = (Wz_i - h_i y_i) / (1 - h_i)     h_i = z_i'(ZZ' + eta I)^-1 z_i     y_i the i-th column of H

A label is suspected if these scores, of the whole face and its parts together, put another class far ahead of its own: further
than the highest of as many random numbers. A covered or badly lit face is not suspected for that reason, because it resembles
no other person either. Wrong labels also distort the scores of other samples, so the clearest cases are removed first and the
rest is scored again without them. If there are no clear cases, all labels are trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from trainer.method.classifier import one_hot
from trainer.method.parts import fuse
from trainer.types import Array

LEADS = (0.5, 0.4, 0.3, 0.2, 0.1, 0.0)  # of another class, from 0 (random scores) to 1; tried in this order
MIN_PHOTOS = 2  # a person keeps at least this many photos; otherwise all are trusted, as there is no majority


@dataclass(frozen=True, eq=False)
class Resemblance:
    """Which classes samples look like, according to the other trusted samples. The scores of a sample have unit length."""

    own: Array
    """(n,) score of the own class."""
    best: Array
    """(n,) highest score of another class."""
    other: Array
    """(n,) the class that has it."""


def apparent_classes(codes: Sequence[Array], labels: Array, classes: int, eta: float, certain: Array | None = None) -> Array:
    """Return the class (n,) that each sample looks like: its own label if that is trusted.

    `codes` (m,n) are those of the whole face and of each part. Samples in `certain` (n,), as bool, are always trusted.
    """
    H, samples = one_hot(labels, classes), np.arange(len(labels))

    def resemblance(trusted: Array) -> Resemblance:
        scores = fuse([leave_one_out_scores(Z, H, eta, trusted) for Z in codes])
        scores /= np.maximum(np.linalg.norm(scores, axis=0), np.finfo(float).tiny)
        own = scores[labels, samples].copy()
        scores[labels, samples] = -np.inf
        return Resemblance(own, scores.max(axis=0), scores.argmax(axis=0))

    return clearest_first(resemblance, labels, classes, certain)


def clearest_first(
    resemblance: Callable[[Array], Resemblance], labels: Array, classes: int, certain: Array | None = None
) -> Array:
    """Return the class (n,) that each sample looks like. `resemblance` gets the trusted samples (n,), as bool."""
    random = np.sqrt(2 * np.log(classes) / classes)  # about the highest entry of a random unit vector
    trusted, answer, found = np.ones(len(labels), bool), labels, None
    for lead in LEADS:
        if found is None:
            found = resemblance(trusted)
        now = found.best - np.maximum(found.own, 0) <= random + lead * (1 - random)
        now |= np.bincount(labels[now], minlength=classes)[labels] < MIN_PHOTOS
        if certain is not None:
            now |= certain
        if (now != trusted).any():
            trusted, answer, found = now, np.where(now, labels, found.other), None
        if trusted.all():
            break
    return answer


def leave_one_out_scores(Z: Array, H: Array, eta: float, trusted: Array) -> Array:
    """Return the scores (C,n) of each sample by a classifier that is learned on the other trusted samples."""
    Z = Z.astype(np.float64, copy=False)
    known = Z[:, trusted]
    gram = known @ known.T
    gram.flat[:: len(gram) + 1] += eta
    half = solve_triangular(cholesky(gram, lower=True, check_finite=False), Z, lower=True, check_finite=False)
    own = trusted * np.minimum(np.einsum("ij,ij->j", half, half), 1 - np.finfo(float).eps)
    return np.asarray(((H[:, trusted] @ half[:, trusted].T) @ half - H * own) / (1 - own))
