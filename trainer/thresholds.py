"""The confidence that keeps strangers out, measured on people whom the model has not seen.

A fold of the people is left out, a model is trained without them, and their photos are scored: to that model they are
strangers. Over all folds every photo has been a stranger's once. The threshold is the lowest that no more than the wanted
share of them passes. Zero errors in N trials promise no less than 3/N, so the promise says how many there were.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import beta

from edge.errors import ParameterError
from edge.vision.confidence import score_confidence
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec
from trainer.method.base import FaceClassifier
from trainer.method.estimator import LCLRRDL
from trainer.types import Array

FOLDS = 5
FPIR = 0.01
FEWEST_PEOPLE = 6  # of whom at least four train in every fold
LEVEL = 0.95  # of the interval


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A threshold of the confidence, and what it was found to do."""

    confidence: float
    """A face needs at least this."""
    target: float
    """The share of strangers' photos that was allowed to pass."""
    passed: int
    """Strangers' photos that pass, of..."""
    trials: int
    """...so many."""
    public: bool = False
    """Whether these were handed in (`--strangers`); otherwise they are people who were left out."""
    others_passed: int = 0
    """Where there were both, those of the other kind that pass, of..."""
    others_trials: int = 0
    """...so many."""

    @property
    def rate(self) -> float:
        return self.passed / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.passed, self.trials)

    @property
    def promise(self) -> float:
        """The rate that may be stated: the target, but never less than 3/N."""
        return max(self.target, 3 / self.trials)


def interval(count: int, trials: int) -> tuple[float, float]:
    """Clopper and Pearson's, at 95 %: where the true rate lies if `count` of `trials` were counted."""
    below, above = (1 - LEVEL) / 2, (1 + LEVEL) / 2
    others = trials - count
    low = float(beta.ppf(below, count, others + 1)) if count else 0.0
    return low, float(beta.ppf(above, count + 1, others)) if others else 1.0


def strangers_confidence(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    *,
    method: type[FaceClassifier] = LCLRRDL,
    folds: int = FOLDS,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Array:
    """(N,) confidence of each photo in a model that was trained without its person.

    But for those that another of these models doubted (trainer.data.label_noise): they are probably no strangers.
    """
    order = np.random.default_rng(seed).permutation(len(gallery.people))
    fold_of = dict(zip(np.array(gallery.people)[order], np.arange(len(order)) % folds, strict=True))
    fold = np.array([fold_of[label] for label in gallery.labels])
    confidence, believed = np.zeros(len(fold)), np.ones(len(fold), bool)
    for k in range(folds):
        if progress is not None:
            progress(k, folds)
        known, strange = fold != k, fold == k
        estimator: Any = method(features=spec, **parameters)
        estimator.fit(gallery.images[known], gallery.labels[known])
        confidence[strange] = score_confidence(estimator.decision_function(gallery.images[strange]))
        believed[known] &= getattr(estimator, "looks_like_", gallery.labels[known]) == gallery.labels[known]
    return confidence[believed]


def threshold(strangers: Array, fpir: float = FPIR) -> Rejection:
    """The lowest confidence that at most `fpir` of the strangers reach."""
    if not 0 < fpir < 1:
        raise ParameterError(f"a rate of false positives lies between 0 and 1, not {fpir}")
    falling = np.sort(strangers)[::-1]
    allowed = int(fpir * len(falling))
    least = np.ceil(1e4 * falling[allowed] + 1e-6) / 1e4  # above the first that must not pass, in four digits
    return Rejection(confidence=float(least), target=fpir, passed=int(np.sum(falling >= least)), trials=len(falling))


def stricter(left_out: Array, public: Array, fpir: float = FPIR) -> Rejection | None:
    """The higher of the thresholds of two kinds of strangers, either of which may be empty; None where both are.

    The rate holds for each kind by itself. Pooled, many photos that are easy to refuse, as those of another camera may be,
    would let more of the harder ones pass and make the promise look better. For the same reason only those who decide are
    counted in rate, interval and promise: that the others pass less often is no evidence about them.
    """
    kinds = {False: left_out, True: public}
    found = {kind: threshold(confidence, fpir) for kind, confidence in kinds.items() if len(confidence)}
    if not found:
        return None
    decides = max(found, key=lambda kind: found[kind].confidence)
    others = kinds[not decides]
    passed = int(np.sum(others >= found[decides].confidence))
    return replace(found[decides], public=decides, others_passed=passed, others_trials=len(others))
