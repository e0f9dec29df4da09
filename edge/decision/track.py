"""Faces of single frames become visits: which face is whose from frame to frame, and what was seen of each.

A visit that holds two people is worse than one that is cut in two, so the tracker ends whatever could be a mixture: both
people begin anew, and lose no more than a few frames. Lengths are in face sizes, times in seconds of the camera's clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from edge.decision.visit import VisitRules

Box = tuple[float, float, float, float]

LEFT = "left"  # not seen any more
MIXED = "mixed"  # could have become somebody else's: its evidence is worth nothing, and who it was goes on as a new visit

JITTER = 0.3  # how far a face that stands still may seem to move
SPEED = 3.0  # face sizes per second beyond that
REACH = 1.0  # and never further than this from one sight to the next
CLEARER = 3.0  # a link this many times longer than another one is no rival to it
GROWTH = 2.0  # a face does not double between two sights
FAR = 1e6  # no box has a corner out here


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
