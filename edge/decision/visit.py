"""A visit: one person in front of the camera, from the first to the last frame, and the rules that decide and end it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from edge.errors import ParameterError
from edge.vision.confidence import score_confidence, score_margin

if TYPE_CHECKING:  # decisions do not load OpenCV
    from edge.vision.liveness import Relief, Surface


@dataclass(frozen=True, kw_only=True)
class VisitRules:
    """When a visit is decided, and when it is over."""

    needed: int = 3
    """Frames that must show the same person, each one sure by itself..."""
    window: int = 5
    """...among this many of the latest usable ones."""
    gap_seconds: float = 0.05
    """Frames closer together count as one: a burst is one look, not many."""
    max_age_seconds: float = 1.0
    """An older frame counts for nothing. At most 1."""
    patience_seconds: float = 4.0
    """How long a face is looked at, from its first usable frame, before it is called unknown."""
    leave_seconds: float = 1.0
    """A visit is over when its face was not found for so long."""
    again_seconds: float = 10.0
    """A person decided upon who is back within this time is still on the same visit."""
    min_sightings: int = 2
    """A visit of fewer frames is a passer-by, or no face at all, and goes without a decision."""
    max_visits: int = 16
    """People looked at at once; further ones wait."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            wanted = (int,) if item.type == "int" else (int, float)
            if type(value) not in wanted or not 0 <= value < math.inf:
                raise ParameterError(f"{item.name} must be a number of 0 or more, not {value!r}")
        if not 2 <= self.needed <= self.window <= 100:
            raise ParameterError(
                f"needed must be 2 or more and at most window, which ends at 100, not {self.needed} of {self.window}"
            )
        if not 0 < self.max_age_seconds <= 1:
            raise ParameterError(f"max_age_seconds must be more than 0 and at most 1, not {self.max_age_seconds}")
        if self.leave_seconds <= 0 or self.max_visits < 1:
            raise ParameterError("leave_seconds and max_visits must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """What one frame shows of one visitor."""

    captured: float
    """When the frame was taken."""
    label: str | None = None
    """The person, only if this frame alone passed the kit's thresholds."""
    confidence: float = 0.0
    """Top score over the norm of all scores."""
    margin: float = 0.0
    """Lead of the top score over the second, over the norm."""
    quality: str | None = None
    """Why the face is not good enough to be looked at, or None."""
    scores: tuple[float, ...] | None = None
    """The scores of all people in the kit, at unit length, or None where there are none."""
    relief: Relief | None = None
    """How the face stands out, for a challenge."""
    is_alone: bool = True
    """Whether there is no other face in the frame."""
    surface: Surface | None = None
    """What the face may be on, where that is looked at."""

    def is_sound(self, labels: Sequence[str], threshold: float) -> bool:
        """Whether the numbers are numbers and fit together. A kit's own output does; anything else is no evidence."""
        scores = self.scores
        if scores is None or len(scores) != len(labels) or not math.isclose(math.hypot(*scores), 1, abs_tol=1e-3):
            return False
        if not (math.isfinite(self.confidence) and math.isfinite(self.margin)):
            return False
        top = max(scores)
        named = (label for label, score in zip(labels, scores, strict=True) if score == top)
        return self.label is None or (self.label in named and self.confidence >= threshold)


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What was seen of one visitor so far. Its size does not grow with its length."""

    number: int
    first_seen: float
    last_seen: float
    frames: int = 0
    """Sightings, usable or not."""
    usable: int = 0
    """Sightings that counted."""
    usable_since: float = math.inf
    """The first of those."""
    recent: tuple[Sighting, ...] = ()
    """The last `window` of those."""
    evidence: tuple[float, ...] = ()
    """The sum of the scores of all of those, each weighted by its own confidence: a stranger's many faces of nobody outweigh a
    few lucky ones, and a clear look counts for more than a doubtful one."""
    refused: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """How often a sighting was of no use, by reason."""

    def seen(self, sighting: Sighting, refusal: str | None, rules: VisitRules) -> Visit:
        """The visit after one more sighting, which counts unless there is a reason to refuse it."""
        visit = replace(self, last_seen=sighting.captured, frames=self.frames + 1)
        if refusal is not None:
            return replace(visit, refused=Counter(self.refused) + Counter([refusal]))
        weight = max(sighting.confidence, 0.0)
        scores = tuple(weight * score for score in sighting.scores or ())
        if self.recent and sighting.captured - self.recent[-1].captured < rules.gap_seconds:
            return visit
        return replace(
            visit,
            usable=self.usable + 1,
            usable_since=min(self.usable_since, sighting.captured),
            recent=(*self.recent, sighting)[-rules.window :],
            evidence=tuple(map(sum, zip(self.evidence, scores, strict=True))) if self.evidence else scores,
        )

    @property
    def confidence(self) -> float:
        """Top of the summed scores over their norm."""
        return float(score_confidence(self.evidence)) if self.evidence else 0.0

    @property
    def margin(self) -> float:
        """Lead of the top of the summed scores over the second, over their norm."""
        return float(score_margin(self.evidence)) if len(self.evidence) > 1 else self.confidence
