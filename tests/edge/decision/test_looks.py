"""Which frames of a visit are recognised: few, early, spread over the patience, and never after the decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.challenge import Challenge, LivenessSettings
from edge.decision.door import Decision, Door
from edge.decision.looks import wants_look
from edge.decision.track import LEFT
from edge.decision.visit import Sighting, Visit, VisitRules
from edge.vision.liveness import Relief, relief
from tests.fixtures.heads import HEAD, turn, view

WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
SCORES = {"anna": np.array([1.0, 0.0]), "ben": np.array([0.0, 1.0]), None: np.sqrt([0.5, 0.5])}
Name = Callable[[float], str | None]  # who would be recognised at a time


class Watched:
    """A door that sees one face in each frame, and recognises it when it wants a look, as the terminal does."""

    def __init__(self, *, fps: float = 15.0, liveness: LivenessSettings | None = None, **rules: Any) -> None:
        self.rules, self.fps = VisitRules(**rules), fps
        self.door = Door(("anna", "ben"), 0.8, rules=self.rules, liveness=liveness, draw=lambda choices: "left")
        self.frame, self.looks, self.skippable = 0, list[float](), 0
        self.decisions, self.prompts = list[Decision](), 0

    def sees(
        self,
        seconds: float,
        name: Name,
        *,
        grade: Callable[[float], float] = lambda at: 0.5,
        quality: Callable[[float], str | None] = lambda at: None,
        head: Relief | None = None,
        late: float = 0.0,
    ) -> Watched:
        for _ in range(max(1, round(seconds * self.fps))):
            at = self.frame / self.fps
            self.frame += 1
            self.skippable += self.door.can_skip(at)
            sighting = Sighting(captured=at, is_look=False, grade=grade(at), relief=head)
            if self.door.wants_look(1, sighting, now=at + late):
                label, reason = name(at), quality(at)
                sighting = replace(sighting, is_look=True, quality=reason)
                if reason is None:
                    confidence = 0.9 if label else 0.5
                    sighting = replace(sighting, label=label, confidence=confidence, margin=0.3, scores=SCORES[label])
                    self.looks.append(at)
            result = self.door.step(now=at + late, when=WHEN, seen={1: sighting})
            self.decisions += result.decisions
            self.prompts += len(result.prompts)
        return self

    @property
    def outcome(self) -> tuple[str, str | None] | None:
        assert len(self.decisions) <= 1
        return next(((decision.outcome, decision.label) for decision in self.decisions), None)


def anna(at: float) -> str | None:
    return "anna"


def unknown_person(at: float) -> str | None:
    return None


def test_recognised_person_is_granted_on_the_first_frames() -> None:
    visit = Watched().sees(10.0, anna)
    assert visit.outcome == ("granted", "anna")
    assert visit.looks == [0, 1 / 15, 2 / 15], "as early as the rules allow, and never after the decision"
    (grant,) = visit.decisions
    assert (grant.looks, grant.captured) == (3, visit.looks[-1])


def test_unknown_person_is_denied_after_patience_with_looks_spread_over_it() -> None:
    visit = Watched().sees(30.0, unknown_person)
    (denial,) = visit.decisions
    assert (denial.reason, denial.looks) == ("unknown person", len(visit.looks))
    assert denial.captured == pytest.approx(4.0, abs=0.1)
    assert len(visit.looks) == 10, "the last two are kept to confirm"
    pauses = [later - earlier for earlier, later in pairwise(visit.looks)]
    assert max(pauses) < 0.75, "who takes off sunglasses is seen soon"
    assert visit.looks[-1] == pytest.approx(4.0, abs=0.1)


@settings(max_examples=100)
@given(st.floats(0.0, 2.8), st.sampled_from((5.0, 10.0, 15.0, 30.0)))
def test_person_who_takes_off_sunglasses_in_time_is_granted(revealed: float, fps: float) -> None:
    visit = Watched(fps=fps, patience_seconds=4.0)
    visit.sees(6.0, lambda at: "anna" if at >= revealed else None)
    labels = [at for at in visit.looks if at >= revealed]
    assert len(labels) >= 3
    assert labels[2] - revealed < 1.5, "the first look in its turn, the others at once"
    assert len(visit.looks) <= 12


def test_look_that_recognises_a_person_is_confirmed_by_the_next_frame() -> None:
    visit = Watched().sees(10.0, lambda at: "anna" if at > 0.5 else None)
    first = next(at for at in visit.looks if at > 0.5)
    assert [at for at in visit.looks if at > 0.5][:3] == pytest.approx([first, first + 1 / 15, first + 2 / 15])


def test_clearly_better_frame_is_recognised_before_its_turn() -> None:
    visit = Watched().sees(0.3, unknown_person).sees(0.2, unknown_person, grade=lambda at: 0.7)
    assert len(visit.looks) == 3, "a little better is not enough"
    assert len(visit.sees(1 / 15, unknown_person, grade=lambda at: 0.8).looks) == 4
    assert len(visit.sees(1 / 15, unknown_person, grade=lambda at: 0.8).looks) == 4, "the same again is not better"


def test_better_frames_leave_looks_to_confirm() -> None:
    visit = Watched().sees(3.5, unknown_person, grade=lambda at: 2 ** (15 * at))
    assert len(visit.looks) == 10


def test_unusable_looks_do_not_stop_the_others() -> None:
    visit = Visit(number=1, first_seen=0.0, last_seen=1.0, looks=3, looked=1.0)
    assert not wants_look(visit, 1.1, 0.0, VisitRules())
    assert wants_look(visit, 1.6, 0.0, VisitRules())


def test_low_quality_is_no_recognition_and_is_tried_again() -> None:
    visit = Watched().sees(2.0, anna, quality=lambda at: "blurred")
    assert (visit.looks, visit.outcome) == ([], None)
    assert [d.reason for d in visit.door.step(now=9, when=WHEN, seen={}, ended={1: LEFT}).decisions] == [
        "low image quality: blurred"
    ]
    late = Watched().sees(2.0, anna, quality=lambda at: "blurred").sees(0.2, anna)
    assert late.outcome == ("granted", "anna")
    assert len(late.looks) == 3


def test_stale_frames_are_not_recognised() -> None:
    visit = Watched().sees(2.0, anna, late=1.5)
    assert (visit.looks, visit.outcome) == ([], None)
    assert [d.reason for d in visit.door.step(now=9, when=WHEN, seen={}, ended={1: LEFT}).decisions] == ["stale frame"]


def test_frame_without_a_look_is_no_evidence() -> None:
    """Two looks recognise Anna. Frames that are only tracked neither grant nor count as usable."""
    door = Door(("anna", "ben"), 0.8)
    look = Sighting(captured=0.0, label="anna", confidence=0.9, margin=0.3, scores=SCORES["anna"])
    tracked = Sighting(captured=0.0, is_look=False, label="anna", confidence=0.9, margin=0.3, scores=SCORES["anna"])
    for i, sighting in enumerate([look, look, *[tracked] * 200]):
        at = i / 15
        assert door.step(now=at, when=WHEN, seen={1: replace(sighting, captured=at)}).decisions == ()
    visit = door._visits[1]
    assert (visit.frames, visit.usable, visit.looks, visit.problems) == (202, 2, 2, {})
    assert visit.last_seen == 201 / 15


def test_frames_are_skipped_only_while_nothing_is_due() -> None:
    assert not Door(("anna", "ben"), 0.8).can_skip(0.0), "a new person must be found at once"
    granted = Watched().sees(10.0, anna)
    assert granted.skippable == granted.frame - 3, "all frames after the decision"
    unknown = Watched().sees(4.0, unknown_person)
    assert 0.5 * unknown.frame < unknown.skippable < unknown.frame - len(unknown.looks) + 1


# Properties


@settings(max_examples=200)
@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.0, 1.0),
    st.sampled_from((3.0, 15.0, 30.0)),
    st.integers(2, 4),
    st.integers(0, 3),
    st.integers(0, 8),
)
def test_visit_is_decided_in_time_with_few_looks(
    seed: int, named: float, fps: float, needed: int, more: int, spare: int
) -> None:
    """Whatever the looks show: at most max_looks of them, none after the decision, and a decision soon after the patience."""
    rng, window = Random(seed), needed + more
    visit = Watched(fps=fps, needed=needed, window=window, max_looks=window + spare)
    visit.sees(
        12.0,
        lambda at: rng.choice(("anna", "anna", "ben")) if rng.random() < named else None,
        grade=lambda at: rng.random(),
        quality=lambda at: rng.choice((None, None, "blurred")),
    )
    (decision,) = visit.decisions
    assert window <= len(visit.looks) or decision.outcome == "granted"
    assert decision.looks == len(visit.looks) <= window + spare
    assert max(visit.looks) <= decision.captured <= 12.0
    if decision.outcome == "granted":
        assert decision.captured == visit.looks[-1], "a grant is made by a look at the newest frame"
        assert len(visit.looks) >= needed


@settings(max_examples=200)
@given(st.integers(0, 2**32 - 1))
def test_any_state_of_a_visit_has_an_answer(seed: int) -> None:
    rng = Random(seed)
    numbers = (0.0, 1.0, math.inf, -math.inf, math.nan, 1e300, rng.uniform(-5, 5))
    rules = VisitRules(patience_seconds=rng.choice((0.0, 4.0, 1e9)))
    visit = Visit(number=1, first_seen=0.0, last_seen=0.0, looks=rng.randint(0, 20), looked=rng.choice(numbers))
    visit = replace(visit, usable_since=rng.choice(numbers), grade=rng.choice(numbers))
    answer = wants_look(visit, rng.choice(numbers), rng.choice(numbers), rules)
    assert answer in (True, False)
    assert not answer or visit.looks < rules.max_looks


# Challenges

ONCE = LivenessSettings(challenge=True, turns=1)


def test_challenge_is_recognised_during_and_after_the_movement() -> None:
    visit = Watched(liveness=ONCE).sees(0.2, anna, head=relief(view(HEAD)))
    assert (visit.prompts, len(visit.looks), visit.outcome) == (1, 3, None)
    for points in [point for point in turn(HEAD, "left") for _ in range(2)]:
        visit.sees(1 / 15, anna, head=relief(points))
    moving = len(visit.looks)
    assert 4 <= moving <= 8, "not in every frame"
    visit.sees(1.0, anna, head=relief(view(HEAD)))
    assert visit.outcome == ("granted", "anna")
    assert len(visit.looks) <= moving + 3
    assert visit.decisions[0].captured == visit.looks[-1]


def test_head_is_watched_in_every_frame_of_a_challenge() -> None:
    still = relief(view(HEAD))
    visit = Watched(liveness=ONCE, max_looks=5).sees(0.2, anna, head=still).sees(5.5, anna, head=still)
    assert (len(visit.looks), visit.outcome, visit.skippable) == (5, None, 0), "even after the last look"


def test_prompt_waits_for_a_look() -> None:
    door = Door(("anna", "ben"), 0.8, liveness=ONCE)
    head = relief(view(HEAD))
    look = Sighting(captured=0.0, label="anna", confidence=0.9, scores=SCORES["anna"], relief=head, is_alone=False)
    tracked = Sighting(captured=0.0, is_look=False, relief=head)
    prompts = []
    for i, sighting in enumerate([look, look, look, tracked, tracked, replace(look, is_alone=True)]):
        prompts.append(len(door.step(now=i / 10, when=WHEN, seen={1: replace(sighting, captured=i / 10)}).prompts))
    assert prompts == [0, 0, 0, 0, 0, 1]


def test_end_of_a_challenge_has_looks_of_its_own() -> None:
    """All looks were used for the movement. The person must still be recognised at rest, and only there."""
    still, out = relief(view(HEAD)), relief(view(HEAD, yaw=30))
    challenge = Challenge(label="anna", since=0.0, last_seen=1.0, prompt="left", rest=still, is_out=True)
    challenge = replace(challenge, is_recognised=True, looks=12, looked=1.0)
    tracked = Sighting(captured=1.1, is_look=False, relief=still)
    assert not challenge.wants_look(tracked, ONCE, VisitRules())
    after = challenge.after(tracked, ONCE)
    assert (after.done, after.failure) == (1, None)
    assert after.wants_look(replace(tracked, captured=1.2), ONCE, VisitRules())
    assert not after.wants_look(replace(tracked, captured=1.2, relief=out), ONCE, VisitRules())


def test_challenge_is_not_met_by_a_face_that_is_not_recognised_while_it_moves() -> None:
    visit = Watched(liveness=ONCE).sees(0.2, anna, head=relief(view(HEAD)))
    for points in [point for point in turn(HEAD, "left") for _ in range(2)]:
        visit.sees(1 / 15, unknown_person, head=relief(points))
    visit.sees(10.0, anna, head=relief(view(HEAD)))
    assert [d.reason for d in visit.decisions] == ["challenge failed: timeout"]


def test_looks_of_a_challenge_are_limited_and_notice_another_person() -> None:
    still = relief(view(HEAD))
    visit = Watched(liveness=ONCE).sees(0.2, anna, head=still).sees(20.0, anna, head=still)
    assert [d.reason for d in visit.decisions] == ["challenge failed: timeout"]
    assert len(visit.looks) <= 3 + 12
    other = Watched(liveness=ONCE).sees(0.2, anna, head=still).sees(2.0, lambda at: "ben", head=still)
    assert [d.reason for d in other.decisions] == ["challenge failed: another person"]
    out = relief(view(HEAD, yaw=30))
    turned = Watched(liveness=ONCE).sees(0.2, anna, head=still).sees(20.0, unknown_person, head=out)
    assert [d.reason for d in turned.decisions] == ["challenge failed: timeout"]
    assert len(turned.looks) <= 3 + 12
