"""Faces of single frames become visits: which face is whose from frame to frame, and what was seen of each.

A visit that holds two people is worse than one that is cut in two, so the tracker ends whatever could be a mixture: both
people begin anew, and lose no more than a few frames. Lengths are in face sizes, times in seconds of the camera's clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from edge.errors import ParameterError
from edge.vision.liveness import Relief, Surface

Box = tuple[float, float, float, float]

LEFT = "left"  # not seen any more
MIXED = "mixed"  # could have become somebody else's: its evidence is worth nothing, and who it was goes on as a new visit

JITTER = 0.3  # how far a face that stands still may seem to move
SPEED = 3.0  # face sizes per second beyond that
REACH = 1.0  # and never further than this from one sight to the next
CLEARER = 3.0  # a link this many times longer than another one is no rival to it
GROWTH = 2.0  # a face does not double between two sights
FAR = 1e6  # no box has a corner out here


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
        return max(self.evidence, default=0.0) / (math.hypot(*self.evidence) or 1.0)

    @property
    def margin(self) -> float:
        """Lead of the top of the summed scores over the second, over their norm."""
        first, second, *_ = (*sorted(self.evidence, reverse=True), 0.0, 0.0)
        return (first - second) / (math.hypot(*self.evidence) or 1.0)


@dataclass(frozen=True)
class _Track:
    box: Box
    seen: float
    label: str | None


class Tracker:
    """Gives each face of a frame the number of its visit. Numbers only go up, and none is given twice."""

    def __init__(self, rules: VisitRules | None = None) -> None:
        self._rules = rules or VisitRules()
        self._tracks: dict[int, _Track] = {}
        self._gone: dict[int, str] = {}
        self._captured = -math.inf
        self._last = 0

    def update(self, captured: float, boxes: Sequence[Box], labels: Sequence[str | None] | None = None) -> list[int | None]:
        """The visits of a frame's faces, in order.

        `labels` are the people that the faces were recognised as: a visit never passes from one person to another. A face
        that belongs to no visit gets None: a box that is none, one face too many, a frame that is not newer than the last.
        """
        labels = [None] * len(boxes) if labels is None else labels
        if not self._captured < captured < math.inf:
            return [None] * len(boxes)
        self._captured = captured
        self._end_absent(captured)
        faces = {
            i: _Track(box, captured, label) for i, (box, label) in enumerate(zip(boxes, labels, strict=True)) if _is_box(box)
        }
        links = _links(self._tracks, faces)
        tracks, claimed = Counter(track for track, _ in links), Counter(face for _, face in links)
        visits: list[int | None] = [None] * len(boxes)
        for track, face in links:
            if tracks[track] == claimed[face] == 1:
                visits[face] = track
                self._tracks[track] = replace(faces[face], label=faces[face].label or self._tracks[track].label)
            elif self._tracks.pop(track, None):
                self._gone[track] = MIXED
        for face in faces:
            if visits[face] is None and len(self._tracks) < self._rules.max_visits:
                self._last += 1
                visits[face] = self._last
                self._tracks[self._last] = faces[face]
        return visits

    def restart(self) -> None:
        """Forget who is there: each of them is a new visitor in the next frame."""
        self._tracks, self._gone = {}, {}

    def gone(self, now: float) -> dict[int, str]:
        """The visits that have ended since the last call, and how (LEFT, MIXED).

        `now` is the time of the frame just given to `update`; only where no frame comes at all is it the camera's clock.
        """
        self._end_absent(now)
        gone, self._gone = self._gone, {}
        return gone

    def _end_absent(self, now: float) -> None:
        for number, track in list(self._tracks.items()):
            if now - track.seen > self._rules.leave_seconds:
                del self._tracks[number]
                self._gone[number] = LEFT


def _is_box(box: Box) -> bool:
    return len(box) == 4 and all(abs(corner) < FAR for corner in box) and box[0] < box[2] and box[1] < box[3]


def _links(tracks: Mapping[int, _Track], faces: Mapping[int, _Track]) -> list[tuple[int, int]]:
    """Every (track, face) that could be the same person, without those that one of the two has a far better match for."""
    lengths = {
        (number, i): length
        for number, track in tracks.items()
        for i, face in faces.items()
        if (length := _distance(track, face)) is not None
    }
    return [
        (number, i)
        for (number, i), length in lengths.items()
        if not any(
            length > CLEARER * other + JITTER for (track, face), other in lengths.items() if (track == number) != (face == i)
        )
    ]


def _distance(track: _Track, face: _Track) -> float | None:
    """How far a face moved, in face sizes, or None if it cannot be the same person's."""
    if track.label and face.label and track.label != face.label:
        return None
    before, after = _size(track.box), _size(face.box)
    moved = math.dist(_centre(track.box), _centre(face.box)) / ((before + after) / 2)
    reach = min(REACH, JITTER + SPEED * (face.seen - track.seen))
    return moved if moved <= reach and max(before, after) <= GROWTH * min(before, after) else None


def _size(box: Box) -> float:
    return math.sqrt((box[2] - box[0]) * (box[3] - box[1]))


def _centre(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
