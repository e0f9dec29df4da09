"""From what was seen of each visit to one decision on it: no clock, no camera, no file. Whatever is doubtful is no grant.

A person is let in when all of this holds, and otherwise watched until patience or the visit ends:
- the newest frame names the person, was taken at most `max_age_seconds` ago, and is newer than every frame before;
- so do `needed` of the last `window` usable frames, and none of these names anybody else;
- the scores of the whole visit, summed, name the same person with at least the kit's confidence;
- the door's list lets this person pass now;
- where that is looked at, the face does not look like a picture of one (edge/decision/challenge.py);
- where a challenge is asked for, the visitor then moves the head as chosen at random, and all of this holds once more.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Literal

from edge.decision.challenge import FRONTAL, LOST, NOT_MET, PROMPTS, Challenge, LivenessSettings, Look, picture
from edge.decision.track import MIXED
from edge.decision.visit import Sighting, Visit, VisitRules
from edge.errors import ParameterError

if TYPE_CHECKING:  # decisions do not load OpenCV
    from edge.vision.liveness import Relief

UNKNOWN, LOW_QUALITY, STALE = "unknown", "low quality", "stale"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of a visit. There is at most one."""

    outcome: Literal["granted", "denied"]
    reason: str
    """recognised; or unknown, low quality: WHY, stale, what the door's list says, challenge not met: WHY, looks like a
    picture: WHY."""
    label: str | None
    """The person, if recognised, let in or not."""
    confidence: float
    """Of the summed scores of the visit."""
    threshold: float
    """The confidence that a grant takes."""
    margin: float
    """Lead over the second person in the summed scores."""
    frames: int
    """In which the visitor was seen."""
    first_seen: float
    """When the visitor was first seen."""
    captured: float
    """When the frame that decided, or the last one of the visit, was taken."""
    visit: int


class Door:
    """The visits under way at one door. The same steps give the same decisions, whatever the clock says elsewhere."""

    def __init__(
        self,
        labels: Sequence[str],
        threshold: float,
        *,
        rules: VisitRules | None = None,
        allows: Callable[[str, datetime], str | None] | None = None,
        liveness: LivenessSettings | None = None,
        draw: Callable[[Sequence[str]], str] = secrets.choice,
    ) -> None:
        """`allows` says why a person may not pass at a time, or None (`DoorList.allows`). Without it, whoever is known may.

        `draw` chooses what a challenge asks for.
        """
        _check(threshold)
        self._labels, self._threshold = tuple(labels), threshold
        self._rules = rules or VisitRules()
        self._allows = allows or (lambda label, when: None)
        self._liveness, self._draw = liveness or LivenessSettings(), draw
        self._challenges: dict[int, Challenge] = {}
        self._asked: list[tuple[int, str]] = []
        self._visits: dict[int, Visit] = {}
        self._decided: dict[int, Decision] = {}
        self._met: dict[str, tuple[Decision, float]] = {}  # by person: the last decision, and when last seen on that visit
        self._newest = 0
        self._captured = -math.inf

    def step(
        self, *, now: float, when: datetime, seen: Mapping[int, Sighting], gone: Mapping[int, str] | None = None
    ) -> list[Decision]:
        """One frame's sightings by visit, and the visits that ended (`Tracker.gone`), to the decisions that are due.

        `now` is of the camera's clock, `when` the time of day with its zone. A sighting from the future, or one not newer than
        the frame before, changes nothing.
        """
        decisions = [self._end(number, how) for number, how in (gone or {}).items()]
        earlier = self._captured
        for number, sighting in sorted(seen.items()):
            if not earlier < sighting.captured <= now < math.inf:
                continue
            self._captured = max(self._captured, sighting.captured)
            if not self._has_place(number):
                continue
            start = Visit(number=number, first_seen=sighting.captured, last_seen=sighting.captured)
            refusal = self._refusal(sighting, now)
            visit = self._visits.get(number, start).seen(sighting, refusal, self._rules)
            self._visits[number] = visit
            if number not in self._decided:
                seen_well = refusal is None or refusal == sighting.quality
                look = Look(
                    captured=sighting.captured,
                    label=sighting.label,
                    relief=sighting.relief if seen_well else None,
                    is_alone=sighting.is_alone,
                )
                decisions.append(self._decide(visit, look, when))
            if (decided := self._decided.get(number)) and decided.label:
                self._met[decided.label] = decided, sighting.captured
        return [decision for decision in decisions if decision]

    def restart(self, labels: Sequence[str], threshold: float) -> None:
        """With another kit: no decision rests on the scores of two. Who was met lately is still known by name."""
        _check(threshold)
        self._labels, self._threshold = tuple(labels), threshold
        self._visits, self._decided, self._challenges = {}, {}, {}

    def asked(self) -> list[tuple[int, str]]:
        """What visitors were asked to do since the last call: the visit, and one of edge.decision.challenge.PROMPTS."""
        asked, self._asked = self._asked, []
        return asked

    def prompt(self, number: int) -> str | None:
        """What the visitor is being asked to do."""
        return challenge.prompt if (challenge := self._challenges.get(number)) else None

    def decision(self, number: int) -> Decision | None:
        """What was decided on a visit under way. For one that continues an earlier one, the decision on that."""
        return self._decided.get(number)

    def _has_place(self, number: int) -> bool:
        """An ended visit does not come back: new ones have higher numbers."""
        if number not in self._visits and (number <= self._newest or len(self._visits) >= self._rules.max_visits):
            return False
        self._newest = max(self._newest, number)
        return True

    def _refusal(self, sighting: Sighting, now: float) -> str | None:
        """Why a sighting is no evidence."""
        if now - sighting.captured > self._rules.max_age_seconds:
            return STALE
        if sighting.quality is None and not sighting.is_sound(self._labels, self._threshold):
            return "unreadable"
        return sighting.quality

    def _decide(self, visit: Visit, look: Look, when: datetime) -> Decision | None:
        """One decision, or None to go on watching. The newest sighting is part of the visit."""
        label = self._recognised(visit)
        if (challenge := self._challenges.get(visit.number)) is not None:
            return self._challenged(visit, challenge, look, label, when)
        if label is None:
            patient = visit.last_seen - visit.usable_since < self._rules.patience_seconds
            return None if visit.usable < self._rules.window or patient else self._settle(visit, UNKNOWN)
        earlier, last_seen = self._met.get(label, (None, -math.inf))
        if earlier and visit.last_seen - last_seen <= self._rules.again_seconds:
            self._decided[visit.number] = earlier  # the same visit goes on: nothing new to tell
            return None
        refusal = self._objection(visit, label, when)
        if refusal is None and self._liveness.challenge:
            self._ask(visit, Challenge(label=label, since=look.captured, last=look.captured), look)
            return None
        return self._settle(visit, refusal, label)

    def _objection(self, visit: Visit, label: str, when: datetime) -> str | None:
        """Why somebody who is recognised is not let in."""
        refusal = self._allows(label, when)
        surfaces = [sighting.surface for sighting in visit.recent if sighting.surface is not None]
        return picture(surfaces) if refusal is None else refusal

    def _challenged(
        self, visit: Visit, challenge: Challenge, look: Look, label: str | None, when: datetime
    ) -> Decision | None:
        """`label` is the person whom this frame, too, would let in."""
        after = challenge.seen(look, self._liveness)
        if isinstance(after, str):
            return self._settle(visit, f"{NOT_MET}: {after}", challenge.label)
        if after.done == self._liveness.turns:
            if label == after.label and after.faces(look, self._liveness):
                return self._settle(visit, self._objection(visit, label, when), label)
            self._challenges[visit.number] = after
        elif after.prompt is None or after.done > challenge.done:
            self._ask(visit, after, look)
        else:
            self._challenges[visit.number] = after
        return None

    def _ask(self, visit: Visit, challenge: Challenge, look: Look) -> None:
        """For the next movement; for the first one as soon as the visitor is alone and looks into the camera."""
        rest = challenge.rest or (self._at_rest(visit) if look.is_alone else None)
        if rest is not None:
            prompt = self._draw(tuple(PROMPTS))
            challenge = challenge.asked(prompt, rest, look.captured)
            self._asked.append((visit.number, prompt))
        self._challenges[visit.number] = challenge

    def _at_rest(self, visit: Visit) -> Relief | None:
        """How a face that looks into the camera stands out; None where it does not look there."""
        reliefs = [sighting.relief for sighting in visit.recent if sighting.relief is not None]
        if len(reliefs) < self._rules.needed:
            return None
        middle = type(reliefs[0])(*map(median, zip(*reliefs, strict=True)))
        return middle if abs(middle.x) <= FRONTAL else None

    def _recognised(self, visit: Visit) -> str | None:
        """The person whom the newest frame, the latest frames and the whole visit agree on."""
        newest = visit.recent[-1] if visit.recent else None
        if newest is None or newest.label is None or newest.captured != visit.last_seen:
            return None
        named = [sighting.label for sighting in visit.recent if sighting.label is not None]
        summed = visit.evidence[self._labels.index(newest.label)]
        agreed = len(named) >= self._rules.needed and set(named) == {newest.label} and summed == max(visit.evidence)
        return newest.label if agreed and visit.confidence >= self._threshold else None

    def _end(self, number: int, how: str) -> Decision | None:
        """Of a visitor who left undecided. One who got mixed up is still here, and decided on in the next visit."""
        visit, decided = self._visits.pop(number, None), self._decided.pop(number, None)
        challenge = self._challenges.pop(number, None)
        if visit is not None and challenge is not None:  # whoever comes back at once is not asked for something else
            decision = self._decision(visit, f"{NOT_MET}: {LOST}", challenge.label)
            self._met[challenge.label] = decision, visit.last_seen
            return decision
        if visit is None or decided or how == MIXED or visit.frames < self._rules.min_sightings:
            return None
        reason = max(visit.refused, key=lambda word: visit.refused[word], default="seen too briefly")
        if visit.usable >= self._rules.needed:
            reason = UNKNOWN
        elif reason != STALE:
            reason = f"{LOW_QUALITY}: {reason}"
        return self._decision(visit, reason)

    def _settle(self, visit: Visit, refusal: str | None, label: str | None = None) -> Decision:
        self._challenges.pop(visit.number, None)
        self._decided[visit.number] = self._decision(visit, refusal, label)
        return self._decided[visit.number]

    def _decision(self, visit: Visit, refusal: str | None, label: str | None = None) -> Decision:
        return Decision(
            outcome="denied" if refusal is not None or label is None else "granted",
            reason="recognised" if refusal is None else refusal,
            label=label,
            confidence=visit.confidence,
            threshold=self._threshold,
            margin=visit.margin,
            frames=visit.frames,
            first_seen=visit.first_seen,
            captured=visit.last_seen,
            visit=visit.number,
        )


def _check(threshold: float) -> None:
    if not 0 < threshold < math.inf:
        raise ParameterError(f"a threshold is a number of more than 0, not {threshold!r}")
