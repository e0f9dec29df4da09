"""The door grants recognised people, gives reasons for denials, and never grants a doubtful visit."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge.decision.door import Decision, Door
from edge.decision.reasons import OUTSIDE_HOURS
from edge.decision.track import AMBIGUOUS, LEFT
from edge.decision.visit import Sighting, Visit, VisitRules
from edge.errors import ParameterError
from edge.kit.manifest import ABSOLUTE, CONFIDENCES, RELATIVE
from edge.vision.confidence import score_confidence, score_length, score_margin, score_norm

LABELS = ("anna", "ben", "cara", "dora")
POSITIONS = {label: position for position, label in enumerate(LABELS)}
THRESHOLD = 0.8
WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
Step = tuple[float, dict[int, Sighting]]  # now, sightings by visit


def scores_of(label: str, confidence: float, second: int = 1) -> NDArray[np.float64]:
    """Return scores of unit length with the top at the label. The rest is at two other people, one of them negative."""
    top = LABELS.index(label)
    scores = [0.0] * len(LABELS)
    scores[top] = confidence
    rest = math.sqrt(max(0.0, 1 - confidence**2) / 2)
    scores[(top + second) % 4], scores[(top + second % 3 + 1) % 4] = rest, -rest
    return np.array(scores)


def sure(label: str, captured: float, confidence: float = 0.9) -> Sighting:
    return Sighting(captured=captured, label=label, confidence=confidence, margin=0.3, scores=scores_of(label, confidence))


def unsure(label: str, captured: float, confidence: float = 0.6, second: int = 1) -> Sighting:
    return Sighting(captured=captured, confidence=confidence, margin=0.1, scores=scores_of(label, confidence, second))


def low_quality(captured: float, reason: str = "blurred") -> Sighting:
    return Sighting(captured=captured, quality=reason)


class AnswerList:
    """A door list that gives these answers in turn, the last one for ever. An exception is raised."""

    def __init__(self, *answers: str | Exception | None) -> None:
        self.answers, self.asked = list(answers), list[tuple[str, datetime]]()

    def refusal(self, label: str, when: datetime) -> str | None:
        self.asked.append((label, when))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def door(door_list: AnswerList | None = None, **changes: Any) -> Door:
    return Door(LABELS, THRESHOLD, rules=VisitRules(**changes), door_list=door_list)


def watch(a_door: Door, *sightings: Sighting, visit: int = 1, late: float = 0.1) -> list[Decision]:
    return [
        decision
        for sighting in sightings
        for decision in a_door.step(now=sighting.captured + late, when=WHEN, seen={visit: sighting}).decisions
    ]


def leave(a_door: Door, visit: int = 1, how: str = LEFT) -> list[Decision]:
    return list(a_door.step(now=math.inf, when=WHEN, seen={}, ended={visit: how}).decisions)


# One visit


def test_three_sure_frames_grant_once() -> None:
    the_door = door()
    assert watch(the_door, sure("anna", 0.0), sure("anna", 0.2)) == []
    (decision,) = watch(the_door, sure("anna", 0.4))
    assert (decision.outcome, decision.reason, decision.label) == ("granted", "recognised", "anna")
    assert (decision.visit, decision.frames, decision.first_seen, decision.captured) == (1, 3, 0.0, 0.4)
    assert decision.threshold == THRESHOLD
    assert decision.confidence == pytest.approx(0.9)
    assert decision.margin == pytest.approx(0.9 - math.sqrt((1 - 0.81) / 2))
    assert the_door.decision(1) == decision
    assert watch(the_door, *(sure("anna", 0.6 + i / 5) for i in range(100))) == []
    assert leave(the_door) == []


def test_unclear_frames_in_between_do_not_prevent_a_grant() -> None:
    frames = [
        sure("anna", 0.0),
        unsure("anna", 0.2),
        low_quality(0.3),
        sure("anna", 0.4),
        unsure("anna", 0.6),
        sure("anna", 0.8),
    ]
    assert [d.outcome for d in watch(door(), *frames)] == ["granted"]


def test_label_of_a_low_quality_frame_is_not_used() -> None:
    the_door = door()
    assert watch(the_door, *(replace(sure("anna", i / 5), quality="blurred") for i in range(40))) == []
    assert [d.reason for d in leave(the_door)] == ["low image quality: blurred"]


def test_sure_frames_outside_the_window_do_not_count() -> None:
    frames = [sure("anna", 0.0), sure("anna", 0.2), *(unsure("anna", 0.4 + i / 5) for i in range(3)), sure("anna", 1.2)]
    assert watch(door(), *frames) == []


def test_deciding_frame_recognises_the_person() -> None:
    """After two sure frames the third is too old. Later frames do not show Anna, so the visit is not granted."""
    the_door = door()
    assert watch(the_door, sure("anna", 0.0), sure("anna", 0.2)) == []
    assert watch(the_door, sure("anna", 0.4), late=1.5) == []
    assert watch(the_door, unsure("ben", 0.6), low_quality(0.8)) == []


def test_burst_of_frames_counts_once() -> None:
    assert watch(door(), *(sure("anna", i / 1000) for i in range(50))) == []
    assert len(watch(door(), *(sure("anna", i / 1000) for i in range(102)))) == 1
    assert len(watch(door(gap_seconds=0), *(sure("anna", i / 1000) for i in range(3)))) == 1
    assert len(watch(door(gap_seconds=0.25), *(sure("anna", i / 4) for i in range(3)))) == 1


def test_two_labels_in_the_window_prevent_a_grant() -> None:
    frames = [sure("ben", 0.0), *(sure("anna", 0.2 * i) for i in range(1, 5))]
    the_door = door()
    assert watch(the_door, *frames) == []
    assert [d.label for d in watch(the_door, sure("anna", 1.0))] == ["anna"]


def test_summed_scores_outweigh_a_few_false_matches() -> None:
    strange = [unsure(LABELS[i % 4], 0.1 * i, 0.6, 1 + i % 3) for i in range(35)]
    lucky = [sure("anna", 3.5, 0.8), sure("anna", 3.6, 0.8), sure("anna", 3.7, 0.8)]
    assert watch(door(), *strange, *lucky) == []
    assert [d.outcome for d in watch(door(), *lucky)] == ["granted"]


def test_summed_scores_must_be_highest_for_the_same_person() -> None:
    """Ben is almost recognised for 30 frames, then three frames look like Anna."""
    frames = [unsure("ben", 0.1 * i, 0.79) for i in range(30)] + [sure("anna", 3 + 0.1 * i, 0.8) for i in range(3)]
    assert watch(door(), *frames) == []


def visit_of(*frames: tuple[float, ...], kind: str) -> Visit:
    """Return a visit whose frames have these scores."""
    visit = Visit(number=1, first_seen=0.0, last_seen=0.0, kind=kind)
    for i, scores in enumerate(frames):
        unit = np.array(scores) / score_norm(scores)
        confidence, length = float(score_confidence(scores, kind)), float(score_length(scores, kind))
        sighting = Sighting(captured=float(i), confidence=confidence, scores=unit, score_length=length)
        assert sighting.is_valid(POSITIONS, THRESHOLD)
        visit = visit.after(sighting, None, VisitRules())
    return visit


@settings(max_examples=50)
@given(st.lists(st.floats(-0.5, 1.5), min_size=4, max_size=4).filter(lambda scores: max(scores) > 0.01))
def test_equal_frames_have_the_confidence_of_one_frame(scores: list[float]) -> None:
    for kind in CONFIDENCES:
        confidence, margin = float(score_confidence(scores, kind)), float(score_margin(scores, kind))
        for number in (1, 2, 5):
            visit = visit_of(*[tuple(scores)] * number, kind=kind)
            assert (visit.confidence, visit.margin) == pytest.approx((confidence, margin), abs=1e-6)


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_confidence_of_a_visit_comes_from_the_summed_scores(kind: str) -> None:
    frames = np.array([(0.9, 0.2, 0.1, 0.0), (0.3, 0.6, 0.0, -0.2), (0.5, 0.1, 0.3, 0.1)])
    weights, lengths = score_confidence(frames, kind), score_length(frames, kind)
    total = (weights * lengths / score_norm(frames)) @ frames
    scale = np.linalg.norm(total) if kind == RELATIVE else weights.sum()
    visit = visit_of(*map(tuple, frames.tolist()), kind=kind)
    assert visit.confidence == pytest.approx(total.max() / scale)
    first, second = np.sort(total)[::-1][:2]
    assert visit.margin == pytest.approx((first - second) / scale)


def test_absolute_confidence_of_a_visit_is_never_above_the_mean_of_its_frames() -> None:
    frames = (0.6, 0.1, 0.3, 0.0), (0.5, 0.3, 0.0, 0.2), (0.1, 0.6, 0.2, 0.3)
    assert visit_of(*frames, kind=ABSOLUTE).confidence < 0.5 < visit_of(*frames, kind=RELATIVE).confidence


def test_unclear_frames_lower_the_absolute_confidence_of_a_visit() -> None:
    """The scores of the second frame have the same direction, but are shorter: a face that resembles no enrolled person."""
    clear, faint = (0.9, 0.1, 0.1, 0.1), (0.3, 0.1 / 3, 0.1 / 3, 0.1 / 3)
    assert visit_of(clear, faint, kind=ABSOLUTE).confidence == pytest.approx(0.75, abs=1e-6)  # (0.9^2 + 0.3^2) / (0.9 + 0.3)
    assert visit_of(clear, faint, kind=RELATIVE).confidence == pytest.approx(visit_of(clear, kind=RELATIVE).confidence)


@pytest.mark.parametrize("length", [0.0, -1.0, math.nan, math.inf])
def test_invalid_length_of_scores_is_not_used(length: float) -> None:
    frames = [replace(sure("anna", 0.2 * i), score_length=length) for i in range(5)]
    assert watch(door(), *frames) == []


@pytest.mark.parametrize("confidence", [0.8, 0.800001, 1.0])
def test_threshold_is_inclusive(confidence: float) -> None:
    named = Sighting(captured=0.0, label="anna", confidence=confidence, scores=np.array([1.0, 0.0, 0.0, 0.0]))
    assert len(watch(door(), *(replace(named, captured=i / 5) for i in range(3)))) == 1


def test_unknown_person_is_denied_once_after_patience() -> None:
    the_door = door()
    decisions = watch(the_door, *(unsure("anna", i / 5) for i in range(50)))
    assert [(d.outcome, d.reason, d.label, d.captured) for d in decisions] == [("denied", "unknown person", None, 4.0)]
    assert decisions[0].confidence == pytest.approx(0.6)
    assert watch(the_door, *(sure("anna", 10 + i / 5) for i in range(50))) == [], "a denied visit stays denied"
    assert leave(the_door) == []


def test_patience_starts_with_the_first_usable_frame() -> None:
    """The person is far away for ten seconds, and then has time to be recognised."""
    far = [low_quality(i / 5, "too small") for i in range(50)]
    near = [unsure("anna", 10 + i / 5, 0.78) for i in range(6)]
    assert watch(door(), *far, *near) == []
    the_door = door()
    assert [d.label for d in watch(the_door, *far, *near, *(sure("anna", 12 + i / 5) for i in range(5)))] == ["anna"]


@pytest.mark.parametrize(
    ("sightings", "reason"),
    [
        ([unsure("anna", 0.0), unsure("anna", 0.2), unsure("anna", 0.4)], "unknown person"),
        ([low_quality(0.0), low_quality(0.2), low_quality(0.4, "dark"), unsure("anna", 0.6)], "low image quality: blurred"),
        ([unsure("anna", 0.0), sure("anna", 0.2)], "visit too short"),
        ([sure("anna", 0.0), replace(sure("anna", 0.2), confidence=math.nan)], "invalid scores"),
        ([sure("anna", 0.0)], None),
        ([], None),
    ],
)
def test_undecided_visit_ends_with_a_reason(sightings: list[Sighting], reason: str | None) -> None:
    the_door = door()
    assert watch(the_door, *sightings) == []
    decisions = leave(the_door)
    assert [d.reason for d in decisions] == ([reason] if reason else [])
    assert all((d.outcome, d.label) == ("denied", None) for d in decisions)
    assert leave(the_door) == []


def test_ambiguous_visit_ends_without_a_decision() -> None:
    the_door = door()
    watch(the_door, *(unsure("anna", i / 5) for i in range(10)))
    assert leave(the_door, how=AMBIGUOUS) == []
    assert len(watch(the_door, *(sure("anna", 2 + i / 5) for i in range(3)), visit=2)) == 1


def test_stale_frames_are_never_granted() -> None:
    the_door = door()
    assert watch(the_door, *(sure("anna", i / 5) for i in range(20)), late=1.001) == []
    assert [d.reason for d in leave(the_door)] == ["stale frame"]
    assert len(watch(door(), *(sure("anna", float(i)) for i in range(20)), late=1.0)) == 1


def test_one_stale_frame_does_not_end_a_visit() -> None:
    the_door = door()
    assert watch(the_door, sure("anna", 0.0), sure("anna", 0.2)) == []
    assert watch(the_door, sure("anna", 0.4), late=1.5) == []
    assert [d.captured for d in watch(the_door, sure("anna", 0.6))] == [0.6]


def test_frame_from_the_future_is_not_used() -> None:
    assert watch(door(), *(sure("anna", i / 5) for i in range(20)), late=-0.001) == []


def test_door_list_is_asked_once_and_can_deny() -> None:
    door_list = AnswerList(OUTSIDE_HOURS)
    decisions = watch(door(door_list), *(sure("ben", i / 5) for i in range(9)))
    assert [(d.outcome, d.reason, d.label) for d in decisions] == [("denied", OUTSIDE_HOURS, "ben")]
    assert door_list.asked == [("ben", WHEN)], "asked only when all other rules hold"
    assert [d.outcome for d in watch(door(AnswerList("")), *(sure("ben", i / 5) for i in range(3)))] == ["denied"]
    assert [d.outcome for d in watch(door(AnswerList(None)), *(sure("ben", i / 5) for i in range(3)))] == ["granted"]


def test_failing_door_list_denies_and_reports_the_error() -> None:
    failure = RuntimeError("injected")
    the_door = door(AnswerList(failure, None))
    watch(the_door, sure("anna", 0.0), sure("anna", 0.2))
    result = the_door.step(now=0.4, when=WHEN, seen={1: sure("anna", 0.4)})
    assert [(d.outcome, d.reason, d.label) for d in result.decisions] == [("denied", "door list failed", "anna")]
    assert result.errors == (failure,)
    result = the_door.step(now=0.6, when=WHEN, seen={1: sure("anna", 0.6)})
    assert (result.decisions, result.errors) == ((), ()), "the visit stays denied, and the error is reported once"


def test_few_usable_frames_do_not_make_an_unknown_person() -> None:
    the_door = door()
    assert watch(the_door, *(unsure("anna", 2.0 * i) for i in range(4))) == [], "four in six seconds"
    assert [d.reason for d in watch(the_door, unsure("anna", 8.0))] == ["unknown person"]


# Several visits


def test_return_within_again_seconds_continues_the_visit() -> None:
    the_door = door()
    assert len(watch(the_door, *(sure("anna", i / 5) for i in range(11)))) == 1  # last seen at 2.0
    assert leave(the_door) == []
    assert watch(the_door, *(sure("anna", 11.5 + i / 4) for i in range(9)), visit=2) == []  # named at 12.0
    assert the_door.decision(2) == replace(the_door.decision(2), visit=1, outcome="granted")  # type: ignore[type-var]
    assert leave(the_door, 2) == [], "the same visit, so no second event"  # last seen at 13.5
    (again,) = watch(the_door, *(sure("anna", 23.25 + i / 4) for i in range(9)), visit=3)
    assert (again.outcome, again.label, again.visit, again.captured) == ("granted", "anna", 3, 23.75)


def test_again_seconds_count_from_the_last_sighting() -> None:
    """A person who stands in the open door for a minute, turns away and back, gets no second grant."""
    the_door = door()
    watch(the_door, *(sure("anna", i / 5) for i in range(10)), *(unsure("anna", 2 + i / 5) for i in range(290)))
    leave(the_door)
    assert watch(the_door, *(sure("anna", 62 + i / 5) for i in range(9)), visit=2) == []


def test_another_person_need_not_wait() -> None:
    the_door = door()
    watch(the_door, *(sure("anna", i / 5) for i in range(5)))
    leave(the_door)
    assert [d.label for d in watch(the_door, *(sure("ben", 2 + i / 5) for i in range(5)), visit=2)] == ["ben"]


def test_simultaneous_visits_are_decided_separately() -> None:
    the_door, decisions = door(), list[Decision]()
    for i in range(30):
        seen = {1: sure("anna", i / 5), 2: unsure("cara", i / 5), 3: sure("ben", i / 5) if i else low_quality(0.0)}
        decisions += the_door.step(now=i / 5, when=WHEN, seen=seen).decisions
    assert [(d.visit, d.outcome, d.label, d.captured) for d in decisions] == [
        (1, "granted", "anna", 0.4),
        (3, "granted", "ben", 0.6),
        (2, "denied", None, 4.0),
    ]


def test_person_in_several_visits_is_granted_once() -> None:
    the_door, decisions = door(), list[Decision]()
    for i in range(9):
        decisions += the_door.step(now=i / 5, when=WHEN, seen={n: sure("anna", i / 5) for n in (1, 2, 3)}).decisions
    assert [d.outcome for d in decisions] == ["granted"]


def test_ended_visit_does_not_come_back() -> None:
    the_door = door()
    watch(the_door, *(unsure("anna", i / 5) for i in range(30)))
    leave(the_door)
    assert watch(the_door, *(sure("anna", 10 + i / 5) for i in range(9))) == []
    assert len(watch(the_door, *(sure("anna", 20 + i / 5) for i in range(9)), visit=2)) == 1


def test_memory_is_bounded() -> None:
    the_door = door(max_visits=4)
    for i in range(300):
        the_door.step(now=i / 5, when=WHEN, seen={n: unsure("anna", i / 5) for n in range(1, 30)})
    assert sorted(the_door._visits) == [1, 2, 3, 4]
    assert {len(visit.recent) for visit in the_door._visits.values()} == {5}
    for number in range(1, 5):
        leave(the_door, number)
    assert not the_door._visits
    assert not the_door._decided


# Properties

# The streams are drawn from a seed, which is much faster than from Hypothesis. A failing test is shortened by its length.
seeds, lengths = st.integers(0, 2**32 - 1), st.integers(0, 30)
GOOD = Sighting(captured=0.0, label="anna", confidence=0.9, margin=0.3, scores=scores_of("anna", 0.9))
INVALID = (
    replace(GOOD, scores=np.array([math.nan, 0.0, 0.0, 1.0])),
    replace(GOOD, scores=np.array([math.inf, 0.0, 0.0, 0.0])),
    replace(GOOD, scores=np.array([0.0, 0.0, 0.0, 0.0])),
    replace(GOOD, scores=np.array([2.0, 0.0, 0.0, 0.0])),
    replace(GOOD, scores=scores_of("anna", 0.9)[:3]),
    replace(GOOD, scores=np.array([])),
    replace(GOOD, scores=None),
    replace(GOOD, confidence=math.nan),
    replace(GOOD, confidence=math.inf),
    replace(GOOD, margin=math.nan),
    replace(GOOD, confidence=0.79),
    replace(GOOD, label="eve"),
    replace(GOOD, label="cara"),
    replace(GOOD, quality="blurred"),
)


def random_sighting(rng: Random, captured: float) -> Sighting:
    """Return mostly good frames of few people, and every kind of bad frame."""
    label = rng.choice(("anna", "anna", "anna", "ben"))
    kind = rng.choice(("sure",) * 6 + ("unsure", "low quality", "invalid"))
    if kind == "sure":
        return sure(label, captured, rng.choice((THRESHOLD, 1.0, rng.uniform(THRESHOLD, 1.0))))
    if kind == "unsure":
        return unsure(label, captured, rng.uniform(0.72, 0.799), rng.randint(1, 3))
    if kind == "low quality":
        return low_quality(captured, rng.choice(("blurred", "too dark")))
    return replace(rng.choice(INVALID), captured=captured)


def stream(rng: Random, length: int, visits: int = 1) -> list[Step]:
    """Return frames with pauses, bursts, jumps back in time, delays and times in the future."""
    steps, captured = [], 100.0
    for _ in range(length):
        captured = round(captured + rng.choice((0.2, 0.2, 0.2, 0.2, 0.03, 0.6, 1.5, 0.0, -0.1, -3.0)), 3)
        numbers = rng.sample(range(1, visits + 1), rng.randint(0, visits)) if visits > 1 else [1]
        delay = rng.choice((0.1, 0.1, 0.1, 0.1, 0.0, 1.0, 1.1, 5.0, -0.1))
        steps.append((captured + delay, {n: random_sighting(rng, captured) for n in numbers}))
    return steps


def run(steps: list[Step], a_door: Door | None = None) -> list[Decision]:
    a_door = a_door or door()
    return [decision for now, seen in steps for decision in a_door.step(now=now, when=WHEN, seen=seen).decisions]


def is_usable(sighting: Sighting, now: float) -> bool:
    """Whether a sighting is usable, by an independent implementation."""
    scores = np.array(sighting.scores if sighting.scores is not None else [], dtype=float)
    if sighting.quality or now - sighting.captured > 1.0 or scores.shape != (4,) or not np.isfinite(scores).all():
        return False
    if abs(np.linalg.norm(scores) - 1) > 1e-3 or not np.isfinite([sighting.confidence, sighting.margin]).all():
        return False
    return sighting.label is None or (LABELS[scores.argmax()] == sighting.label and sighting.confidence >= THRESHOLD)


def oracle(steps: list[Step]) -> tuple[str, str | None, float] | None:
    """Decide a visit from its whole history, by an independent implementation of the rules."""
    history: list[Sighting] = []
    last = -math.inf
    for now, seen in steps:
        sighting = seen[1]
        if sighting.captured <= last or sighting.captured > now:
            continue
        last = sighting.captured
        if is_usable(sighting, now) and (not history or sighting.captured - history[-1].captured >= 0.05):
            history.append(sighting)
            labels = [s.label for s in history[-5:] if s.label]
            total = np.sum([max(s.confidence, 0) * np.array(s.scores) for s in history], axis=0)
            mean = total / (np.linalg.norm(total) or 1)
            if sighting.label and len(labels) >= 3 and set(labels) == {sighting.label}:
                sum_agrees = LABELS[mean.argmax()] == sighting.label
                if sum_agrees and abs(mean.max() - THRESHOLD) < 1e-9:
                    raise ArithmeticError("too close to the threshold")
                if sum_agrees and mean.max() >= THRESHOLD:
                    return "granted", sighting.label, last
        if len(history) >= 5 and last - history[0].captured >= 4.0:
            return "denied", None, last
    return None


@settings(max_examples=400)
@given(seeds, lengths)
def test_visit_is_decided_by_the_rules(seed: int, length: int) -> None:
    steps = stream(Random(seed), length)
    try:
        expected = oracle(steps)
    except ArithmeticError:
        return
    found = [(d.outcome, d.label, d.captured) for d in run(steps)]
    assert found == ([expected] if expected else [])


@settings(max_examples=100)
@given(seeds, lengths)
def test_each_grant_has_enough_evidence_and_is_unique(seed: int, length: int) -> None:
    steps = stream(Random(seed), length, visits=3)
    decisions = run(steps)
    visits = [d.visit for d in decisions]
    assert len(visits) == len(set(visits)), "one decision per visit"
    for grant in (d for d in decisions if d.outcome == "granted"):
        mine = [(now, seen[grant.visit]) for now, seen in steps if grant.visit in seen]
        passed = {s.captured for now, s in mine if s.label == grant.label and s.confidence >= THRESHOLD and is_usable(s, now)}
        assert len({captured for captured in passed if captured <= grant.captured}) >= 3
        assert any(s.captured == grant.captured and 0 <= now - s.captured <= 1.0 for now, s in mine), "by a fresh frame"
        assert grant.confidence >= THRESHOLD


@settings(max_examples=100)
@given(seeds, lengths)
def test_old_frames_change_nothing(seed: int, length: int) -> None:
    rng = Random(seed)
    steps, disturbed = stream(rng, length, visits=2), list[Step]()
    newest = -math.inf
    for now, seen in steps:
        disturbed.append((now, seen))
        newest = max([newest, *(s.captured for s in seen.values() if s.captured <= now)])
        if newest > 0 and rng.random() < 0.5:
            old = newest - rng.choice((0.0, 0.01, 1.0, 50.0))
            disturbed.append((rng.choice((now, old, old + 0.5)), {rng.randint(1, 4): sure("anna", old)}))
    assert run(disturbed) == run(steps)


def any_number(rng: Random) -> float:
    return rng.choice((math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.9, 1e300, -1e300, 5e-324, rng.uniform(-2, 2)))


@settings(max_examples=200)
@given(seeds, lengths)
def test_any_numbers_give_valid_decisions(seed: int, length: int) -> None:
    rng, the_door = Random(seed), door()
    for _ in range(length):
        seen = {
            rng.randint(-1, 3): Sighting(
                captured=any_number(rng),
                label=rng.choice((None, *LABELS, "", "eve")),
                confidence=any_number(rng),
                margin=any_number(rng),
                quality=rng.choice((None, None, None, "", "dark")),
                scores=rng.choice(
                    (None, scores_of("anna", 1.0), np.array([any_number(rng) for _ in range(rng.randint(0, 5))]))
                ),
                score_length=any_number(rng),
            )
            for _ in range(rng.randint(0, 4))
        }
        ended = {rng.randint(-1, 3): rng.choice((LEFT, AMBIGUOUS)) for _ in range(rng.randint(0, 2))}
        for decision in the_door.step(now=any_number(rng), when=WHEN, seen=seen, ended=ended).decisions:
            assert decision.outcome == "denied" or decision.confidence >= THRESHOLD
            assert math.isfinite(decision.confidence)
            assert math.isfinite(decision.margin)


@settings(max_examples=30)
@given(st.integers(2, 5), st.integers(0, 5), st.floats(0.1, 1.0))
def test_rules_are_applied(needed: int, more: int, age: float) -> None:
    rules: dict[str, Any] = {"needed": needed, "window": needed + more, "max_age_seconds": age}
    grants = watch(door(**rules), *(sure("anna", i / 5) for i in range(20)), late=age * 0.99)
    assert [d.captured for d in grants] == [(needed - 1) / 5]
    assert watch(door(**rules), *(sure("anna", i / 5) for i in range(20)), late=age + 0.01) == []


@pytest.mark.parametrize("threshold", [0, -1, math.nan, math.inf])
def test_invalid_threshold_is_rejected(threshold: float) -> None:
    with pytest.raises(ParameterError, match="threshold"):
        Door(LABELS, threshold)
    with pytest.raises(ParameterError, match="threshold"):
        door().restart(LABELS, threshold)
