"""A visit: one person in front of the camera, from the first to the last frame, and the rules that decide and end it."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from edge.errors import require
from edge.vision.confidence import RELATIVE, score_confidence, score_margin

if TYPE_CHECKING:  # decisions do not load OpenCV
    from edge.vision.liveness import Relief


@dataclass(frozen=True, kw_only=True)
class VisitRules:
    """When a visit is decided, and when it ends."""

    needed: int = 3
    """Frames that must recognise the same person..."""
    window: int = 5
    """...among this many of the latest usable frames."""
    gap_seconds: float = 0.05
    """Frames closer together count as one frame."""
    max_age_seconds: float = 1.0
    """Older frames are not used. At most 1."""
    patience_seconds: float = 4.0
    """Time from the first usable frame until a face counts as an unknown person."""
    leave_seconds: float = 1.0
    """A visit ends if its face was not found for this time."""
    again_seconds: float = 10.0
    """A person who returns within this time after a decision is still on the same visit."""
    min_sightings: int = 2
    """A visit of fewer frames gets no decision: it is a person passing by, or not a face."""
    max_looks: int = 12
    """Number of times that a visit is recognised, at most. Between two looks the face is only tracked. At least `window`."""
    max_visits: int = 16
    """Maximum number of visits at the same time. Other people wait."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            types = (int,) if type(item.default) is int else (int, float)
            is_number = type(value) in types and 0 <= value < math.inf
            require(is_number, f"{item.name} must be a number of 0 or more, not {value!r}")
        limits = "needed must be between 2 and window, and window at most 100"
        require(2 <= self.needed <= self.window <= 100, f"{limits}, not {self.needed} of {self.window}")
        looks = f"max_looks must be at least window, which is {self.window}, not {self.max_looks}"
        require(self.max_looks >= self.window, looks)
        age = self.max_age_seconds
        require(0 < age <= 1, f"max_age_seconds must be more than 0 and at most 1, not {age:g}")
        require(self.leave_seconds > 0 and self.max_visits > 0, "leave_seconds and max_visits must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """One face of a frame that belongs to a visit."""

    captured: float
    """When the frame was taken."""
    is_look: bool = True
    """Whether the quality of the face was checked and a good face was recognised. Otherwise the face was only tracked."""
    grade: float = 0.0
    """Size, sharpness and direction of the face as one number, to find better frames. See edge.vision.quality."""
    label: str | None = None
    """The person, if this frame alone passed the thresholds of the kit."""
    confidence: float = 0.0
    margin: float = 0.0
    quality: str | None = None
    """Why the image quality is too low, or None."""
    scores: NDArray[np.float64] | None = field(default=None, compare=False)
    """(C,) the scores of all enrolled people at unit length, or None if there are none."""
    score_length: float = 1.0
    """Their norm before that, on the scale of the confidence (edge.vision.confidence)."""
    relief: "Relief | None" = None
    """The position of the head, for a challenge."""
    is_alone: bool = True
    """Whether there is no other face in the frame."""
    live: float | None = None
    """Score of the liveness model, 0 to 1; None if there is none, or the face has no label."""

    @property
    def is_recognised(self) -> bool:
        """Whether the recogniser ran, with or without a result."""
        return self.is_look and self.quality is None

    def is_valid(self, positions: Mapping[str, int], threshold: float) -> bool:
        """Whether the numbers are finite and consistent, as those of every kit are.

        `positions` has the index of each label in the scores.
        """
        scores = self.scores
        if scores is None or scores.shape != (len(positions),):
            return False
        with np.errstate(over="ignore"):  # too large numbers are not valid, and no warning
            length = float(np.linalg.norm(scores))
        if not math.isclose(length, 1, abs_tol=1e-3):
            return False
        if not (math.isfinite(self.confidence) and math.isfinite(self.margin) and 0 < self.score_length < math.inf):
            return False
        if self.live is not None and not 0 <= self.live <= 1:
            return False
        if self.label is None:
            return True
        position = positions.get(self.label)
        return position is not None and bool(scores[position] == scores.max()) and self.confidence >= threshold


@dataclass(frozen=True, kw_only=True)
class Visit:
    """The sightings of one visit so far. Its size is bounded."""

    number: int
    first_seen: float
    last_seen: float
    frames: int = 0
    """Number of sightings, usable or not."""
    looks: int = 0
    """Number of recognitions, usable or not."""
    looked: float = -math.inf
    """Time of the last recognition."""
    grade: float = 0.0
    """The highest grade of the recognised frames."""
    usable: int = 0
    usable_since: float = math.inf
    """Number of usable sightings, and the time of the first one."""
    recent: tuple[Sighting, ...] = ()
    """The last `window` usable sightings, without their scores."""
    evidence: NDArray[np.float64] | None = field(default=None, compare=False)
    """(C,) sum of the scores of all usable sightings, each weighted by its confidence; None before the first one. Many frames
    of an unknown person outweigh a few false matches, and a clear frame counts more than an unclear one."""
    weight: float = 0.0
    """Sum of these weights."""
    live: tuple[float, ...] = ()
    """Liveness scores of all usable sightings with a label; 0 for one that was not scored."""
    kind: str = RELATIVE
    """The kind of confidence that the kit has (edge.vision.confidence)."""
    problems: Counter[str] = field(default_factory=Counter)
    """Number of unusable sightings by reason."""

    def after(self, sighting: Sighting, problem: str | None, rules: VisitRules) -> "Visit":
        """Return the visit after one more sighting. With a `problem` the sighting is not usable."""
        visit = replace(self, last_seen=sighting.captured, frames=self.frames + 1)
        if sighting.is_recognised:
            visit = replace(visit, looks=self.looks + 1, looked=sighting.captured, grade=max(self.grade, sighting.grade))
        if problem is not None:
            return replace(visit, problems=self.problems + Counter([problem]))
        if not sighting.is_look:
            return visit
        if self.recent and sighting.captured - self.recent[-1].captured < rules.gap_seconds:
            return visit
        weight = max(sighting.confidence, 0.0)
        evidence = self.evidence
        if sighting.scores is not None:
            scores = weight * sighting.score_length * sighting.scores
            evidence = scores if evidence is None else evidence + scores
            evidence.setflags(write=False)
        return replace(
            visit,
            usable=self.usable + 1,
            usable_since=min(self.usable_since, sighting.captured),
            recent=(*self.recent, replace(sighting, scores=None))[-rules.window :],
            evidence=evidence,
            weight=self.weight + weight,
            live=self.live if sighting.label is None else (*self.live, sighting.live or 0.0),
        )

    @property
    def confidence(self) -> float:
        """Confidence of the summed scores."""
        return 0.0 if self._scores is None else float(score_confidence(self._scores, self.kind))

    @property
    def margin(self) -> float:
        """Lead of the top of the summed scores over the second, on the scale of the confidence."""
        if self._scores is None or len(self._scores) < 2:
            return self.confidence
        return float(score_margin(self._scores, self.kind))

    @cached_property
    def _scores(self) -> NDArray[np.float64] | None:
        """The scores of the visit. If the confidence is absolute, their size counts: they are a mean, not a sum."""
        if self.kind == RELATIVE or self.weight == 0 or self.evidence is None:
            return self.evidence
        return self.evidence / self.weight
