"""Track faces from frame to frame: which face of a new frame belongs to which visit.

A visit with two people is worse than a visit cut in two. So the tracker ends every visit that could contain two people. Both
people then start a new visit and lose only a few frames. Lengths are in face sizes, times in seconds of the camera's clock.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from edge.decision.visit import VisitRules

Box = tuple[float, float, float, float]

LEFT = "left"  # the face was not seen any more
AMBIGUOUS = "ambiguous"  # the visit could contain two people: its scores are not used, and the person gets a new visit

JITTER = 0.3  # apparent movement of a face that stands still
SPEED = 3.0  # additional movement per second
MAX_MOVE = 1.0  # maximum movement between two frames
MAX_SURE_MOVE = 1 / 3  # after a longer movement it may be another face that stands beside the place
CLEARER = 3.0  # a distance this many times longer than another one is not a rival match
MAX_GROWTH = 2.0  # maximum change of the size of a face between two frames
GAP_SECONDS = 0.3  # after a longer gap it may be another face
MAX_COORDINATE = 1e6


@dataclass(frozen=True)
class _Track:
    centre: tuple[float, float]
    size: float
    seen: float
    label: str | None = None


class Tracker:
    """Gives each face of a frame the number of its visit. Numbers increase and are never used twice."""

    def __init__(self, rules: VisitRules | None = None) -> None:
        self._rules = rules or VisitRules()
        self._tracks: dict[int, _Track] = {}
        self._ended: dict[int, str] = {}
        self._captured = -math.inf
        self._newest_visit = 0

    def update(self, captured: float, boxes: Sequence[Box], decided: Container[int] = ()) -> list[int | None]:
        """Return the visit of each face of a frame.

        After a gap or a jump, the face of an undecided visit starts a new visit, and the scores of the old one are not used:
        it may be the next person. `decided` visits are not recognised again: after a gap their face starts a new visit too,
        but a jump does not give a second decision about one person. A face gets None if its box is invalid, if there are too
        many visits, or if the frame is not newer than the last one.
        """
        if not self._captured < captured < math.inf:
            return [None] * len(boxes)
        self._captured = captured
        self._end_absent(captured)
        found = [_face(box, captured) for box in boxes]
        faces = {i: face for i, face in enumerate(found) if face is not None}
        is_lost = {n: n in decided and captured - track.seen > GAP_SECONDS for n, track in self._tracks.items()}
        links = _links({number: track for number, track in self._tracks.items() if not is_lost[number]}, faces)
        per_track, per_face = Counter(track for track, _ in links), Counter(face for _, face in links)
        visits: list[int | None] = [None] * len(boxes)
        for track, face in links:
            is_only = per_track[track] == per_face[face] == 1
            if is_only and (track in decided or _is_sure(self._tracks[track], faces[face])):
                visits[face] = track
                self._tracks[track] = replace(faces[face], label=self._tracks[track].label)
            elif self._tracks.pop(track, None):
                self._ended[track] = AMBIGUOUS
        for face in faces:
            if visits[face] is None and len(self._tracks) < self._rules.max_visits:
                self._newest_visit += 1
                visits[face] = self._newest_visit
                self._tracks[self._newest_visit] = faces[face]
        return visits

    def name(self, visit: int, label: str) -> int:
        """Record who was recognised in a visit of the newest frame, and return the visit of this face.

        A visit never passes from one person to another: with another label it ends, and the face starts a new visit.
        """
        track = self._tracks[visit]
        if track.label not in (None, label):
            del self._tracks[visit]
            self._ended[visit] = AMBIGUOUS
            visit = self._newest_visit = self._newest_visit + 1
        self._tracks[visit] = replace(track, label=label)
        return visit

    def restart(self) -> None:
        """Forget all visits: each face of the next frame starts a new one."""
        self._tracks, self._ended = {}, {}

    def ended(self, now: float) -> dict[int, str]:
        """Return the visits that ended since the last call, and how (LEFT, AMBIGUOUS).

        `now` is the time of the frame just given to `update`. If no frames arrive, it is the time of the camera's clock.
        """
        self._end_absent(now)
        ended, self._ended = self._ended, {}
        return ended

    def _end_absent(self, now: float) -> None:
        for number, track in list(self._tracks.items()):
            if now - track.seen > self._rules.leave_seconds:
                del self._tracks[number]
                self._ended[number] = LEFT


def _face(box: Box, seen: float) -> _Track | None:
    if len(box) != 4 or not all(abs(corner) < MAX_COORDINATE for corner in box) or box[0] >= box[2] or box[1] >= box[3]:
        return None  # not a box
    left, top, right, bottom = box
    return _Track(((left + right) / 2, (top + bottom) / 2), math.sqrt((right - left) * (bottom - top)), seen)


def _links(tracks: Mapping[int, _Track], faces: Mapping[int, _Track]) -> list[tuple[int, int]]:
    """Return each (track, face) that may be the same person, unless one of the two has a much better match."""
    distances = {
        (number, i): distance
        for number, track in tracks.items()
        for i, face in faces.items()
        if (distance := _distance(track, face)) is not None
    }
    return [
        (number, i)
        for (number, i), distance in distances.items()
        if not any(
            distance > CLEARER * other + JITTER
            for (track, face), other in distances.items()
            if (track == number) != (face == i)
        )
    ]


def _distance(track: _Track, face: _Track) -> float | None:
    """Return how far a face moved, in face sizes, or None if it cannot be the same person."""
    sizes, moved = (track.size, face.size), _moved(track, face)
    limit = min(MAX_MOVE, JITTER + SPEED * (face.seen - track.seen))
    return moved if moved <= limit and max(sizes) <= MAX_GROWTH * min(sizes) else None


def _is_sure(track: _Track, face: _Track) -> bool:
    """Whether there was no gap and no jump in which another person could have taken the place."""
    return face.seen - track.seen <= GAP_SECONDS and _moved(track, face) <= MAX_SURE_MOVE


def _moved(track: _Track, face: _Track) -> float:
    return math.dist(track.centre, face.centre) / ((track.size + face.size) / 2)
