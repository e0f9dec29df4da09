"""Which features suit the photos: where light differs much between photos of a person, pixels mislead, and slopes do not.

Pixels beside slopes help to tell strangers (AR), but hurt in hard light (Extended Yale B). The photos themselves tell which it
is: each is scored by ridge regression on the features of all others, which is known in closed form,

    S = H - (G H)/diag G     G = (XX' + eta I)^-1     X (n,d) unit rows, H (n,C) one-hot labels,

and the lead of its own class over the best other, as a part of the length of its scores, is averaged over the photos.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.linalg import inv

from trainer.features.spec import Spec
from trainer.method.classifier import one_hot
from trainer.types import Array

ETA = 0.03
GAIN = 0.02  # of the lead without pixels, for which they are given up
SURE = 3  # standard errors that the gain must exceed


def suited(images: Array, labels: Array, spec: Spec) -> Spec:
    """The spec; but one of `both` without pixels, where these photos (n,H,W) of people (n,) are told apart better without."""
    own = spec.own
    if own is None or spec.kind != "both":
        return spec
    _, classes, photos = np.unique(labels, return_inverse=True, return_counts=True)
    repeated = photos[classes] > 1  # of the others, nothing is left to compare with
    slopes = replace(own, kind="gradient")
    gain = (_leads(slopes.vectors(images), classes) - _leads(spec.vectors(images), classes))[repeated]
    sure = len(gain) > 1 and gain.mean() > max(GAIN, SURE * gain.std(ddof=1) / np.sqrt(len(gain)))
    return slopes if sure else spec


def _leads(X: Array, classes: Array) -> Array:
    """(n,) lead of each photo's own class over the best other, without the photo."""
    H, photos = one_hot(classes, classes.max() + 1).T, np.arange(len(X))
    gram = X @ X.T.astype(np.float64)
    gram.flat[:: len(gram) + 1] += ETA
    G = inv(gram, overwrite_a=True, check_finite=False)
    S = H - (G @ H) / np.diag(G)[:, None]
    own, length = S[photos, classes], np.linalg.norm(S, axis=1)
    S[photos, classes] = -np.inf
    return (own - S.max(axis=1)) / length
