"""Decide about the visits at one door. No clock, no camera, no file. Every doubt means no grant.

A visit is granted if all of this holds. Otherwise the door keeps watching until the patience or the visit ends:
- the newest frame recognises the person, is at most `max_age_seconds` old, and is newer than every frame before;
- `needed` of the last `window` usable frames recognise the same person, and none recognises another person;
- the summed scores of the whole visit are highest for the same person, with at least the kit's confidence;
- the door list allows this person to pass now;
- the liveness model of the kit, if there is one, takes the face for live: the median score of the frames that recognised it;
- if enabled, the visitor then moves the head as asked, chosen at random, and all of the above holds again.
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Literal, Protocol

from edge.decision import reasons
from edge.decision.challenge import FRONTAL, PROMPTS, Challenge, LivenessSettings
from edge.decision.looks import wants_look
from edge.decision.track import AMBIGUOUS
from edge.decision.visit import Sighting, Visit, VisitRules
from edge.errors import ParameterError
from edge.vision.confidence import RELATIVE


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about a visit. There is at most one per visit."""

    outcome: Literal["granted", "denied"]
    reason: str
    """One of edge.decision.reasons."""
    label: str | None
    """The recognised person, granted or denied."""
    confidence: float
    margin: float
    """Confidence and margin are those of the summed scores of the visit."""
    threshold: float
    """The confidence that a grant needs."""
    frames: int
    looks: int
    """Number of frames of the visit, and how many of them were recognised."""
    first_seen: float
    captured: float
    """When the deciding frame, or the last frame of the visit, was taken."""
    visit: int


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The results of one step."""

    decisions: tuple[Decision, ...] = ()
    prompts: tuple[tuple[int, str], ...] = ()
    """New prompts: the visit, and a key of edge.decision.challenge.PROMPTS."""
    errors: tuple[Exception, ...] = ()
    """Errors of the door list and of the count of entries. Each caused a denial."""


class AccessRules(Protocol):
    """Who may pass and when, for example a `DoorList`."""

    def refusal(self, label: str, when: datetime) -> str | None:
        """Say why the person may not pass at this time, or return None."""


class Door:
    """The current visits at one door. The same steps always give the same decisions, except for random prompts."""

    def __init__(
        self,
        labels: Sequence[str],
        threshold: float,
        kind: str = RELATIVE,
        *,
        live_threshold: float | None = None,
        rules: VisitRules | None = None,
        door_list: AccessRules | None = None,
        admit: Callable[[str, datetime], str | None] = lambda label, when: None,
        liveness: LivenessSettings | None = None,
        draw: Callable[[Sequence[str]], str] = secrets.choice,
    ) -> None:
        """`labels`, `threshold` and `kind` of the confidence are those of the kit. So is `live_threshold`, the liveness score
        that a grant needs; None: no liveness model is used.

        Without a `door_list`, every enrolled person may pass. `admit` is called just before a grant, to count it, and may
        return a reason to deny instead. `draw` chooses the prompt of a challenge.
        """
        self._rules, self._door_list, self._admit = rules or VisitRules(), door_list, admit
        self._liveness, self._draw = liveness or LivenessSettings(), draw
        self._last_met: dict[str, tuple[Decision, float]] = {}  # by person: last decision, last seen on that visit
        self._newest_visit, self._captured = 0, -math.inf
        self._prompts: list[tuple[int, str]] = []
        self._errors: list[Exception] = []
        self.restart(labels, threshold, kind, live_threshold=live_threshold)

    def restart(
        self, labels: Sequence[str], threshold: float, kind: str = RELATIVE, *, live_threshold: float | None = None
    ) -> None:
        """Continue with another kit. No decision uses scores of two kits, but the people met before stay known."""
        if not 0 < threshold < math.inf:
            raise ParameterError(f"the threshold must be a number of more than 0, not {threshold!r}")
        self._positions = {label: position for position, label in enumerate(labels)}  # of each label in the scores
        self._threshold, self._kind, self._live_threshold = threshold, kind, live_threshold
        self._visits: dict[int, Visit] = {}
        self._decided: dict[int, Decision] = {}
        self._challenges: dict[int, Challenge] = {}

    def step(
        self, *, now: float, when: datetime, seen: Mapping[int, Sighting], ended: Mapping[int, str] | None = None
    ) -> StepResult:
        """Process the sightings of one frame by visit, and the visits that ended (`Tracker.ended`).

        `now` is the time of the camera's clock, `when` the time of day with its zone. A sighting from the future, or one that
        is not newer than the previous frame, changes nothing.
        """
        self._prompts, self._errors = [], []
        decisions = [self._end(number, how) for number, how in (ended or {}).items()]
        previous = self._captured
        for number, sighting in sorted(seen.items()):
            if not previous < sighting.captured <= now < math.inf:
                continue
            self._captured = max(self._captured, sighting.captured)
            is_new = number > self._newest_visit and len(self._visits) < self._rules.max_visits
            if is_new or number in self._visits:  # an ended visit cannot come back: numbers increase
                self._newest_visit = max(self._newest_visit, number)
                decisions.append(self._add(number, sighting, now, when))
        return StepResult(
            decisions=tuple(decision for decision in decisions if decision),
            prompts=tuple(self._prompts),
            errors=tuple(self._errors),
        )

    def prompt(self, number: int) -> str | None:
        """Return the current prompt of a visit."""
        return challenge.prompt if (challenge := self._challenges.get(number)) else None

    def decision(self, number: int) -> Decision | None:
        """Return the decision about a current visit. If it continues an earlier visit, it is the decision about that one."""
        return self._decided.get(number)

    def wants_look(self, number: int, sighting: Sighting, *, now: float) -> bool:
        """Whether the face of a visit should be recognised in this frame. The sighting is the frame without a look."""
        if number in self._decided or self._problem(sighting, now) is not None:
            return False
        if (challenge := self._challenges.get(number)) is not None:
            return challenge.wants_look(sighting, self._liveness, self._rules)
        visit = self._visits.get(number)
        return visit is None or wants_look(visit, sighting.captured, sighting.grade, self._rules)

    def wants_relief(self, number: int) -> bool:
        """Whether the position of the head is needed in every frame of a visit, for its challenge."""
        return number in self._challenges

    def can_skip(self, captured: float) -> bool:
        """Whether no visit needs the frame of this time: a person is there, and every visit is decided or waits for a look."""
        waiting, soon = self._visits.keys() - self._decided.keys(), captured + self._rules.gap_seconds
        is_due = any(wants_look(self._visits[number], soon, 0.0, self._rules) for number in waiting)
        return bool(self._visits) and not self._challenges and not is_due

    @property
    def decided(self) -> Mapping[int, Decision]:
        """The current visits that are decided."""
        return self._decided

    def _add(self, number: int, sighting: Sighting, now: float, when: datetime) -> Decision | None:
        problem = self._problem(sighting, now)
        start = Visit(number=number, first_seen=sighting.captured, last_seen=sighting.captured, kind=self._kind)
        visit = self._visits[number] = self._visits.get(number, start).after(sighting, problem, self._rules)
        decision = None
        if number not in self._decided:
            if problem not in (None, sighting.quality):  # a turned head may have low quality, but must be fresh and valid
                sighting = replace(sighting, relief=None)
            decision = self._decide(visit, sighting, when)
        if (decided := self._decided.get(number)) and decided.label:
            self._last_met[decided.label] = decided, sighting.captured
        return decision

    def _problem(self, sighting: Sighting, now: float) -> str | None:
        """Say why a sighting is not usable."""
        if now - sighting.captured > self._rules.max_age_seconds:
            return reasons.STALE_FRAME
        if sighting.is_recognised and not sighting.is_valid(self._positions, self._threshold):
            return reasons.INVALID_SCORES
        return sighting.quality

    def _decide(self, visit: Visit, sighting: Sighting, when: datetime) -> Decision | None:
        """Decide, or return None to keep watching. The sighting is already part of the visit."""
        label = self._recognised_label(visit)
        if (challenge := self._challenges.get(visit.number)) is not None:
            return self._continue_challenge(visit, challenge, sighting, label, when)
        if label is None:
            is_patient = visit.last_seen - visit.usable_since < self._rules.patience_seconds
            return None if visit.usable < self._rules.window or is_patient else self._settle(visit, reasons.UNKNOWN_PERSON)
        earlier, last_seen = self._last_met.get(label, (None, -math.inf))
        if earlier and visit.last_seen - last_seen <= self._rules.again_seconds:
            self._decided[visit.number] = earlier  # the same visit continues: no new decision
            return None
        refusal = self._refusal(visit, label, when)
        if refusal is None and self._liveness.challenge:
            now = sighting.captured
            self._ask(visit, Challenge(label=label, since=now, last_seen=now, looked=now), sighting)
            return None
        return self._settle(visit, self._admission(refusal, label, when), label)

    def _answer(self, ask: Callable[[str, datetime], str | None], label: str, when: datetime) -> str | None:
        """Return the answer of the door list, or of the count of entries. If it fails, that denies."""
        try:
            return ask(label, when)
        except Exception as error:
            self._errors.append(error)
            return reasons.DOOR_LIST_FAILED

    def _refusal(self, visit: Visit, label: str, when: datetime) -> str | None:
        """Say why a recognised person is denied, or return None."""
        refusal = None if self._door_list is None else self._answer(self._door_list.refusal, label, when)
        if refusal is None and self._live_threshold is not None and not median(visit.live) >= self._live_threshold:
            return reasons.PRESENTATION_ATTACK
        return refusal

    def _admission(self, refusal: str | None, label: str, when: datetime) -> str | None:
        """Count a grant, unless the person is refused. Say why the person is denied after all, or return None."""
        return self._answer(self._admit, label, when) if refusal is None else refusal

    def _continue_challenge(
        self, visit: Visit, challenge: Challenge, sighting: Sighting, label: str | None, when: datetime
    ) -> Decision | None:
        """Continue a challenge. `label` is the person that the visit would be granted to after this frame."""
        after = self._challenges[visit.number] = challenge.after(sighting, self._liveness)
        if after.failure is not None:
            return self._settle(visit, f"{reasons.CHALLENGE_FAILED}: {after.failure}", challenge.label)
        if after.done == self._liveness.turns:
            if label == after.label and after.is_at_rest(sighting, self._liveness):
                return self._settle(visit, self._admission(self._refusal(visit, label, when), label, when), label)
        elif after.prompt is None or after.done > challenge.done:
            self._ask(visit, after, sighting)
        return None

    def _ask(self, visit: Visit, challenge: Challenge, sighting: Sighting) -> None:
        """Ask for the next movement. The first prompt waits for a frontal face without other faces."""
        rest = challenge.rest
        reliefs = [sighting.relief for sighting in visit.recent if sighting.relief is not None]
        if rest is None and sighting.is_look and sighting.is_alone and len(reliefs) >= self._rules.needed:
            middle = type(reliefs[0])(*map(median, zip(*reliefs, strict=True)))
            rest = middle if abs(middle.x) <= FRONTAL else None
        if rest is not None:
            prompt, start = self._draw(tuple(PROMPTS)), sighting.captured
            challenge = replace(challenge, prompt=prompt, rest=rest, since=start, held=0, is_out=False)
            challenge = replace(challenge, is_recognised=False, looks=0)
            self._prompts.append((visit.number, prompt))
        self._challenges[visit.number] = challenge

    def _recognised_label(self, visit: Visit) -> str | None:
        """Return the person that the newest frame, the recent frames and the whole visit agree on."""
        newest = visit.recent[-1] if visit.recent else None
        if newest is None or newest.label is None or newest.captured != visit.last_seen or visit.evidence is None:
            return None
        labels = [sighting.label for sighting in visit.recent if sighting.label is not None]
        if len(labels) < self._rules.needed or set(labels) != {newest.label}:
            return None
        is_highest = visit.evidence[self._positions[newest.label]] == visit.evidence.max()
        return newest.label if is_highest and visit.confidence >= self._threshold else None

    def _end(self, number: int, how: str) -> Decision | None:
        """Decide about a visit that ended undecided. After an ambiguous end the person is still there, in a new visit."""
        visit, decided = self._visits.pop(number, None), self._decided.pop(number, None)
        challenge = self._challenges.pop(number, None)
        if visit is not None and challenge is not None:  # coming back at once must not give another prompt
            decision = self._decision(visit, f"{reasons.CHALLENGE_FAILED}: {reasons.FACE_LOST}", challenge.label)
            self._last_met[challenge.label] = decision, visit.last_seen
            return decision
        if visit is None or decided or how == AMBIGUOUS or visit.frames < self._rules.min_sightings:
            return None
        if visit.usable >= self._rules.needed:
            return self._decision(visit, reasons.UNKNOWN_PERSON)
        problem = max(visit.problems, key=visit.problems.__getitem__, default=reasons.VISIT_TOO_SHORT)
        is_quality = problem not in (reasons.STALE_FRAME, reasons.INVALID_SCORES, reasons.VISIT_TOO_SHORT)
        return self._decision(visit, f"{reasons.LOW_QUALITY}: {problem}" if is_quality else problem)

    def _settle(self, visit: Visit, refusal: str | None, label: str | None = None) -> Decision:
        self._challenges.pop(visit.number, None)
        self._decided[visit.number] = self._decision(visit, refusal, label)
        return self._decided[visit.number]

    def _decision(self, visit: Visit, refusal: str | None, label: str | None = None) -> Decision:
        return Decision(
            outcome="denied" if refusal is not None or label is None else "granted",
            reason=reasons.RECOGNISED if refusal is None else refusal,
            label=label,
            confidence=visit.confidence,
            threshold=self._threshold,
            margin=visit.margin,
            frames=visit.frames,
            looks=visit.looks,
            first_seen=visit.first_seen,
            captured=visit.last_seen,
            visit=visit.number,
        )
