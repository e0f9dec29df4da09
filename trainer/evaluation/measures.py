"""Error rates of identification with strangers among the visitors, in the terms of ISO/IEC 19795.

Every photo is one trial. A trial of an enrolled person is missed (FNIR) unless this person has the highest score and the
confidence reaches the threshold. A trial of a stranger is a false positive (FPIR) if its confidence reaches the threshold.
Rank-1 and CMC use enrolled people only, and no threshold. Photos without a usable face are failures to acquire, and in no
other rate. Intervals are those of Clopper and Pearson at 95 %, as if photos were independent. Photos of one person are not,
so there are also counts per person. 0 of N shows a rate of 3/N at best.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from trainer import thresholds
from trainer.evaluation.trials import NOT_NAMED, Trials
from trainer.types import Array

FPIRS = (0.01, 0.003, 0.001)
DET_POINTS = 500


@dataclass(frozen=True)
class Share:
    """A count out of a total."""

    count: int
    of: int

    @property
    def value(self) -> float | None:
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the true share."""
        return thresholds.interval(self.count, self.of) if self.of else None

    @classmethod
    def among(cls, hits: Array) -> "Share":
        return cls(int(np.sum(hits)), len(hits))


@dataclass(frozen=True, kw_only=True)
class Point:
    """The error rates at one threshold."""

    target: float | None  # the FPIR that the threshold is set for; None for the threshold of the model or kit
    threshold: float
    fpir: Share  # photos of strangers that get a label
    fnir: Share  # photos of enrolled people that do not get the right label
    wrong: int  # the photos of `fnir` that get a wrong label

    @property
    def bound(self) -> float | None:
        """The lowest FPIR that so many photos of strangers can show: 3/N."""
        return min(3 / self.fpir.of, 1.0) if self.fpir.of else None

    @property
    def shown(self) -> bool:
        """Whether there are enough strangers to show the target."""
        return self.target is None or (self.bound is not None and self.bound <= self.target)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rates of one condition or one person."""

    name: str
    failed: Share  # failures to acquire
    rank1: Share
    fnir: Share | None  # at the threshold of the model or kit
    fnir_at: tuple[Share, ...]  # at the thresholds for FPIRS
    fpir: Share | None  # of strangers in this condition, at the threshold of the model or kit
    taken_for: str = ""  # the person most often confused with this one


def operating_point(trials: Trials, threshold: float, target: float | None = None) -> Point:
    enrolled, passed = trials.enrolled, trials.confidence >= threshold
    return Point(
        target=target,
        threshold=threshold,
        fpir=Share.among(passed[~enrolled]),
        fnir=Share.among(trials.genuine[enrolled] < threshold),
        wrong=int(np.sum(passed & enrolled & (trials.rank > 1))),
    )


def points_at_fpirs(trials: Trials) -> tuple[Point, ...]:
    """Return the points with an FPIR of at most FPIRS; empty without strangers."""
    strangers = trials.confidence[~trials.enrolled]
    if not len(strangers):
        return ()
    return tuple(operating_point(trials, thresholds.threshold(strangers, rate).confidence, rate) for rate in FPIRS)


def det(genuine: Array, strangers: Array) -> tuple[tuple[float, float, float], ...]:
    """Return (threshold, FPIR, FNIR) with rising FPIR: the lowest threshold that k strangers pass, for DET_POINTS values of k.

    `genuine` is the confidence of the right label, `strangers` that of any label.
    """
    if not len(strangers):
        return ()
    falling, rising = np.sort(strangers[strangers > NOT_NAMED])[::-1], np.sort(genuine)
    counts = np.unique([0, *np.geomspace(1, max(len(falling), 1), DET_POINTS).astype(int)])
    # Just above the first stranger who must not pass. For the last count, where all pass, the lowest confidence.
    limits = np.append(np.nextafter(falling, np.inf), falling[-1:] if len(falling) else [-1.0, -1.0])[counts]
    passed = np.searchsorted(-falling, -limits, side="right") / len(strangers)
    missed = np.searchsorted(rising, limits, side="left") / max(len(rising), 1)
    return tuple(zip(limits.tolist(), passed.tolist(), missed.tolist(), strict=True))


def splits(trials: Trials, own: Point | None, at: tuple[Point, ...]) -> tuple[tuple[Split, ...], tuple[Split, ...]]:
    """Return the rates of each condition, and those of each enrolled person, the most often missed first."""

    def split(name: str, chosen: Array, failed: int, taken_for: str = "") -> Split:
        strangers, genuine = trials.confidence[chosen & ~trials.enrolled], trials.genuine[chosen & trials.enrolled]
        return Split(
            name=name,
            failed=Share(failed, failed + int(chosen.sum())),
            rank1=Share.among(trials.rank[chosen & trials.enrolled] == 1),
            fnir=None if own is None else Share.among(genuine < own.threshold),
            fnir_at=tuple(Share.among(genuine < point.threshold) for point in at),
            fpir=None if own is None or not len(strangers) else Share.among(strangers >= own.threshold),
            taken_for=taken_for,
        )

    def missed_most(split: Split) -> tuple[float, float, str]:
        return -((split.fnir.value if split.fnir else None) or 0), split.rank1.value or 0, split.name

    failures = Counter(photo.condition for photo in trials.not_acquired)
    conditions = tuple(split(name, trials.conditions == name, failures[name]) for name in trials.condition_names)
    people, failures = [], Counter(photo.person for photo in trials.not_acquired)
    for i, name in enumerate(trials.labels):
        chosen = trials.truth == i
        if chosen.any() or failures[name]:
            confused = Counter(trials.nearest[chosen & (trials.rank > 1)].tolist()).most_common(1)
            people.append(split(name, chosen, failures[name], trials.labels[confused[0][0]] if confused else ""))
    return conditions, tuple(sorted(people, key=missed_most))
