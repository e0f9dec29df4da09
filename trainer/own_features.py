"""Decide which of our own features help, by the training photos.

If the light differs much between photos of a person, pixels mislead and gradients do not: pixels beside gradients help to
reject strangers (AR), but hurt in hard light (Extended Yale B). Beside a network, our own features help on controlled photos
(AR, Yale B) and hurt on ordinary ones (LFW). Each photo is scored by ridge regression on the features of the others, in closed
form:

    S = H - (G H)/diag G     G = (XX' + RIDGE I)^-1     X (n,d) unit rows, H (n,C) one-hot labels

The measure is the lead of the own class over the best other class, relative to the norm of the scores.
"""

from dataclasses import replace

import numpy as np
from scipy.linalg import inv

from edge.vision.preprocess import FeatureSpec, to_grey
from trainer.features.spec import Spec
from trainer.method.classifier import one_hot
from trainer.types import Array

RIDGE = 0.03
MIN_GAIN = 0.02  # in the mean lead, to give up pixels
STANDARD_ERRORS = 3  # that the gain must exceed
MIN_RECOGNISED = 0.9  # share of photos that our own features alone must recognise, to be used beside a network
MAX_PEOPLE = 200  # whose photos are measured
PIXELS_MISLEAD = "The light differs much between the photos: using gradients without pixels."
NOT_USEFUL = "Our own features recognise too few of these photos: using the network alone."


def chosen_features(images: Array, labels: Array, spec: Spec) -> tuple[Spec, tuple[str, ...]]:
    """Return the spec without own features that hurt on these photos (n, *crop_shape) of people (n,), and notes."""
    network, own = spec.network, spec.own
    if own is None:
        return spec, ()
    images, labels = _of_some_people(images, labels)
    grey = images if network is None else to_grey(images)
    chosen = without_misleading_pixels(grey, labels, own)
    notes = () if chosen == own else (PIXELS_MISLEAD,)
    if network is None:
        return chosen, notes
    if recognised_share(chosen.vectors(grey), labels) < MIN_RECOGNISED:
        return replace(network, own=None), (NOT_USEFUL,)
    return replace(network, own=chosen), notes


def _of_some_people(images: Array, labels: Array) -> tuple[Array, Array]:
    """Return the photos of at most MAX_PEOPLE random people: the measure inverts a matrix of photos x photos."""
    people = np.unique(labels)
    if len(people) <= MAX_PEOPLE:
        return images, labels
    some = np.flatnonzero(np.isin(labels, np.random.default_rng(0).choice(people, MAX_PEOPLE, replace=False)))
    return images[some], labels[some]


def recognised_share(X: Array, labels: Array) -> float:
    """Return the share of photos with features X (n,d) that are recognised by the other photos; 0 if no person has two."""
    _, classes, photos = np.unique(labels, return_inverse=True, return_counts=True)
    leads = own_class_leads(X, classes)[photos[classes] > 1]
    return float(np.mean(leads > 0)) if len(leads) else 0.0


def without_misleading_pixels(images: Array, labels: Array, own: FeatureSpec) -> FeatureSpec:
    """Return the spec; if it is `both` and pixels mislead on these grey crops (n,H,W) of people (n,), that with `gradient`."""
    if own.kind != "both":
        return own
    _, classes, photos = np.unique(labels, return_inverse=True, return_counts=True)
    repeated = photos[classes] > 1  # a person's only photo has nothing to compare with
    gradient = replace(own, kind="gradient")
    gain = (own_class_leads(gradient.vectors(images), classes) - own_class_leads(own.vectors(images), classes))[repeated]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
    return gradient if len(gain) and gain.mean() > max(MIN_GAIN, STANDARD_ERRORS * error) else own


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
