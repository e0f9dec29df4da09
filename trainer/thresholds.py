"""The confidence threshold that rejects strangers, measured on people that the model was not trained on.

The people are split into folds. For each fold a model is trained without its people, and their photos are scored: for that
model they are strangers. So every photo is a stranger's photo once. The threshold is the lowest one that at most the wanted
share of these photos passes, by count and after smoothing:

    mean over photos i of Q((t - c_i)/h) <= fpir     h = (4/N)^(1/3) s

c_i (N,) confidences, s their standard deviation, Q the upper tail of the normal distribution, h the best width for a normal
distribution function. A count alone depends on one or two photos if N is small, and promises too much on average: of 60
photos it takes the highest, which 1.6 % of others exceed. Smoothing raises the threshold at most halfway to 1, the maximum.
Zero errors in N trials support a rate of 3/N at best, so no lower rate is stated.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binomtest, norm

from edge.errors import ParameterError
from edge.text import percent
from edge.vision.confidence import BLANK, score_confidence
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec
from trainer.method.base import FaceClassifier
from trainer.method.estimator import LCLRRDL
from trainer.types import Array, Progress, silent

FOLDS = 5
FPIR = 0.01
MIN_PEOPLE = 6  # so that each fold trains on at least four people
_KINDS = ("people who were left out of training", "the given strangers")


@dataclass(frozen=True, kw_only=True)
class StrangerCalibration:
    """A confidence threshold, and how many strangers' photos pass it. Model files store the fields by name."""

    confidence: float
    """The lowest confidence that is accepted."""
    target: float
    """The share of strangers' photos that may pass."""
    passed: int
    """Strangers' photos that pass."""
    trials: int
    """Strangers' photos that were scored."""
    public: bool = False
    """True: these photos were given (`--strangers`). False: they show people who were left out of training."""
    others_passed: int = 0
    """If there were both kinds: photos of the other kind that pass."""
    others_trials: int = 0
    """If there were both kinds: photos of the other kind."""
    searched: float = 1.0
    """The share of the enrolled people that the photos were compared with, if the rates are corrected for that."""

    @property
    def rate(self) -> float:
        """The share of strangers' photos that pass if all enrolled people are searched."""
        return min(self.passed / self.trials / self.searched, 1.0)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the rate."""
        low, high = interval(self.passed, self.trials)
        return low / self.searched, min(high / self.searched, 1.0)

    @property
    def stated_rate(self) -> float:
        """The rate that may be stated: the target, but at least 3/N."""
        return max(self.target, 3 / self.trials / self.searched)

    def summary(self) -> str:
        """Return the result in sentences."""
        share, (low, high) = percent(self.rate), map(percent, self.interval)
        among = f" among {percent(self.searched, 0)} of the people" if self.searched < 1 else ""
        result = f"{share} among all people" if among else share
        text = (
            f"Strangers: at a confidence of {self.confidence:g}, {self.passed} of {self.trials} photos of "
            f"{_KINDS[self.public]} get a name{among} ({result}; 95 % interval {low} to {high})."
        )
        if self.others_trials:
            others = f"{self.others_passed} of {self.others_trials} photos of {_KINDS[not self.public]}"
            text += f" The rate does not include {others} that get a name: they are easier to reject."
        if self.confidence > 1:
            text += " No face can reach this confidence. Use `trainer tune`, more photos or another method."
        if self.stated_rate > self.target:
            text += f" With so few photos, {percent(self.stated_rate)} is the lowest rate that can be stated."
        return text


def interval(count: int, trials: int) -> tuple[float, float]:
    """Return the Clopper-Pearson interval (95 %) of the true rate, if `count` of `trials` were counted."""
    low, high = binomtest(count, trials).proportion_ci(0.95)
    return float(low), float(high)


def stranger_confidences(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    *,
    method: type[FaceClassifier] = LCLRRDL,
    folds: int = FOLDS,
    progress: Progress = silent,
) -> Array:
    """Return the confidence of each photo in a model that was trained without its person.

    Photos with a suspected wrong label (trainer.method.label_noise) are left out: they may show an enrolled person.
    """
    order = np.random.default_rng(0).permutation(len(gallery.people))
    fold_of = dict(zip(np.array(gallery.people)[order], np.arange(len(order)) % folds, strict=True))
    fold = np.array([fold_of[label] for label in gallery.labels])
    confidence, trusted = np.zeros(len(fold)), np.ones(len(fold), bool)
    for k in range(folds):
        progress(k, folds)
        known, strange = fold != k, fold == k
        estimator: Any = method(features=spec, **parameters)
        certain = gallery.certain(known)
        estimator.fit(gallery.images[known], gallery.labels[known], **({} if certain is None else {"certain": certain}))
        confidence[strange] = score_confidence(estimator.decision_function(gallery.images[strange]), estimator.confidence)
        trusted[known] &= getattr(estimator, "looks_like_", gallery.labels[known]) == gallery.labels[known]
    return confidence[trusted]


def threshold(strangers: Array, fpir: float = FPIR, searched: float = 1.0) -> StrangerCalibration:
    """Return the lowest confidence that at most `fpir` of the strangers' photos reach, by count and after smoothing.

    `searched` is the share of the people that they were compared with. Among more people, a stranger resembles someone more
    often: the rate grows in proportion as long as it is small.
    """
    if not 0 < fpir < 1:
        raise ParameterError(f"a false positive rate must be between 0 and 1, not {fpir}")
    target, fpir = fpir, fpir * searched
    falling = np.sort(strangers)[::-1]
    counted = falling[int(fpir * len(falling))]
    # No confidence is above 1, but the smoothed distribution is: with few people a threshold above 1 would refuse everyone.
    bound = max(counted, min(smoothed_quantile(falling, fpir), (counted + 1) / 2))
    least = np.ceil(1e4 * bound + 1e-6) / 1e4  # four digits, above the first photo that must not pass
    passed = int(np.sum(falling >= least))
    found = StrangerCalibration(confidence=float(least), target=target, passed=passed, trials=len(falling))
    return replace(found, searched=searched)


def smoothed_quantile(confidence: Array, share: float) -> float:
    """Return the value that a smoothed `share` of confidences (N,) exceeds."""
    width = max(np.cbrt(4 / len(confidence)) * np.std(confidence), BLANK)
    low, high = np.array([confidence.min() - width, confidence.max() + width]) + width * norm.isf(share)
    return float(brentq(lambda value: np.mean(norm.sf((value - confidence) / width)) - share, low, high))


def stricter_threshold(left_out: Array, given: Array, fpir: float = FPIR, searched: float = 1.0) -> StrangerCalibration | None:
    """Return the higher of the thresholds of two kinds of strangers; one may be empty. None if both are empty.

    `searched` is the share of the people that those who were left out were compared with (`threshold`).

    The rate holds for each kind alone. In a common pool, many easy photos (for example from another camera) would let more of
    the hard ones pass. For the same reason only the kind that sets the threshold counts in rate and interval.
    """
    kinds = {False: left_out, True: given}
    shares = {False: searched, True: 1.0}
    found = {kind: threshold(own, fpir, shares[kind]) for kind, own in kinds.items() if len(own)}
    if not found:
        return None
    public = max(found, key=lambda kind: found[kind].confidence)
    others = kinds[not public]
    passed = int(np.sum(others >= found[public].confidence))
    return replace(found[public], public=public, others_passed=passed, others_trials=len(others))
