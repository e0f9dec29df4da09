"""Decide whether pixels help: if the light differs much between photos of a person, pixels mislead and gradients do not.

Pixels beside gradients help to reject strangers (AR), but hurt in hard light (Extended Yale B). The training photos show which
case applies. Each photo is scored by ridge regression on the features of the others, in closed form:

    S = H - (G H)/diag G     G = (XX' + RIDGE I)^-1     X (n,d) unit rows, H (n,C) one-hot labels

The measure is the lead of the own class over the best other class, relative to the norm of the scores.
"""

from dataclasses import replace

import numpy as np
from scipy.linalg import inv

from trainer.features.spec import Spec
from trainer.method.classifier import one_hot
from trainer.types import Array

RIDGE = 0.03
MIN_GAIN = 0.02  # in the mean lead, to give up pixels
STANDARD_ERRORS = 3  # that the gain must exceed


def without_misleading_pixels(images: Array, labels: Array, spec: Spec) -> Spec:
    """Return the spec; if it is `both` and pixels mislead on these photos (n,H,W) of people (n,), the one with `gradient`."""
    own = spec.own
    if own is None or spec.kind != "both":
        return spec
    _, classes, photos = np.unique(labels, return_inverse=True, return_counts=True)
    repeated = photos[classes] > 1  # a person's only photo has nothing to compare with
    gradient = replace(own, kind="gradient")
    gain = (own_class_leads(gradient.vectors(images), classes) - own_class_leads(spec.vectors(images), classes))[repeated]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return gradient if len(gain) and gain.mean() > max(MIN_GAIN, STANDARD_ERRORS * error) else spec


def own_class_leads(X: Array, classes: Array) -> Array:
    """Return for each photo (n,) the lead of its own class over the best other class, scored without the photo."""
    H, photos = one_hot(classes, classes.max() + 1).T, np.arange(len(X))
    gram = X @ X.T.astype(np.float64)
    gram.flat[:: len(gram) + 1] += RIDGE
    G = inv(gram, overwrite_a=True, check_finite=False)
    S = H - (G @ H) / np.diag(G)[:, None]
    own, length = S[photos, classes], np.linalg.norm(S, axis=1)
    S[photos, classes] = -np.inf
    return (own - S.max(axis=1)) / length
