"""Experts: what a network's vector, our own features and a mean face say about a face, added up.

    scores = T x + W c(x) + W' c'(x')

x   vector of the network     T  (C,d) cosine to the mean of each person's photos: hard to beat on clean photographs
x'  our own features          W, W' (C,m) classifiers on the codes c, c' of LCLRRDL: ahead where faces are covered or badly lit

Each expert has its own rows of D, learned by itself, and its own ridge. The rows of W have unit length in the metric of the
ridge, so that many people do not drown each other. Each expert is scaled so that training photos score 1 on average for their
own person, and weighted by WEIGHTS. The sum is scaled in the same way, so its top is a confidence that does not depend on the
number of people.
"""

from collections.abc import Sequence

import numpy as np

from edge.errors import ParameterError
from trainer.features.spec import Spec
from trainer.method.classifier import ridge
from trainer.types import Array

WEIGHTS = (1.0, 0.5, 0.7)  # of the cosine, the network's codes, our own features
OWN_ETA = 0.01  # ridge of our own features
DOUBT_ETA = 0.1  # ridge of the search for wrong names


def expert_rows(spec: Spec | None) -> list[Array]:
    """Return the feature rows of the network and, if the spec has them, of our own features."""
    if spec is None or spec.network is None:
        raise ParameterError("experts need the features of a network")
    ours = 0 if spec.own is None else spec.own.length
    rows = np.arange(spec.length)
    return [rows[: spec.length - ours], rows[spec.length - ours :]][: 2 if ours else 1]


def unit_ridge(Z: Array, H: Array, eta: float) -> Array:
    """Return W (C,m) of eq. 9 for codes Z (m,n) with rows of unit length in the metric of the ridge.

    H (C,n) holds the weight of each sample in the row of its person, and 0 elsewhere. With A = sum of weight z z':
    w (A + eta I) w' = w Zh', h the row of the person, because w = h Z'(A + eta I)^-1.
    """
    weights = H.sum(axis=0)
    W = ridge(Z, H > 0, eta, weights)
    length = np.einsum("cm,cm->c", W, H @ Z.T)
    return np.asarray(W / np.sqrt(np.maximum(length, np.finfo(float).tiny))[:, None])


def person_means(X: Array, H: Array) -> Array:
    """Return the mean (C,d) of each person's unit vectors X (d,n), at unit length. H (C,n) holds their weights."""
    means = H @ X.T
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def scaled(experts: Sequence[Array], inputs: Sequence[Array], H: Array) -> list[Array]:
    """Scale linear experts (C,k) so that training photos score 1 on average for their own person, all experts together.

    `inputs` (k,n) are the vectors or codes of the photos, H (C,n) holds their weights.
    """
    shares = np.array(WEIGHTS[: len(experts)]) / sum(WEIGHTS[: len(experts)])
    own = [np.sum(H * (expert @ X)) / H.sum() for expert, X in zip(experts, inputs, strict=True)]
    return [share / mean * expert for share, mean, expert in zip(shares, own, experts, strict=True)]
