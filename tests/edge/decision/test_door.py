"""Decisions at the door: whom it lets in, what it says to the others, and that nothing doubtful ever opens it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.door import Decision, Door
from edge.decision.track import LEFT, MIXED
from edge.decision.visit import Sighting, VisitRules
from edge.errors import ParameterError

LABELS = ("anna", "ben", "cara", "dora")
THRESHOLD = 0.8
WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
Step = tuple[float, dict[int, Sighting]]  # now, sightings by visit


def scores_of(label: str, confidence: float, second: int = 1) -> tuple[float, ...]:
    """A unit vector with its top at the label; the rest is at one other person, half of it negative."""
    top = LABELS.index(label)
    scores = [0.0] * len(LABELS)
    scores[top] = confidence
    rest = math.sqrt(max(0.0, 1 - confidence**2) / 2)
    scores[(top + second) % 4], scores[(top + second % 3 + 1) % 4] = rest, -rest
    return tuple(scores)


def sure(label: str, captured: float, confidence: float = 0.9) -> Sighting:
    return Sighting(captured=captured, label=label, confidence=confidence, margin=0.3, scores=scores_of(label, confidence))


def unsure(label: str, captured: float, confidence: float = 0.6, second: int = 1) -> Sighting:
    return Sighting(captured=captured, confidence=confidence, margin=0.1, scores=scores_of(label, confidence, second))


def refused(captured: float, why: str = "blurred") -> Sighting:
    return Sighting(captured=captured, quality=why)


def door(**changes: object) -> Door:
    allows = changes.pop("allows", None)
    return Door(LABELS, THRESHOLD, rules=VisitRules(**changes), allows=allows)  # type: ignore[arg-type]


def watch(a_door: Door, *sightings: Sighting, visit: int = 1, late: float = 0.1) -> list[Decision]:
    return [
        decision
        for sighting in sightings
        for decision in a_door.step(now=sighting.captured + late, when=WHEN, seen={visit: sighting})
    ]


def leave(a_door: Door, visit: int = 1, how: str = LEFT) -> list[Decision]:
    return a_door.step(now=math.inf, when=WHEN, seen={}, gone={visit: how})


# -- one visit, step by step -----------------------------------------------------------------------------------------------


def test_three_sure_frames_let_a_known_person_in_once() -> None:
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


def test_frames_between_that_show_too_little_are_forgiven() -> None:
    frames = [sure("anna", 0.0), unsure("anna", 0.2), refused(0.3), sure("anna", 0.4), unsure("anna", 0.6), sure("anna", 0.8)]
    assert [d.outcome for d in watch(door(), *frames)] == ["granted"]


def test_a_name_on_a_frame_that_quality_refused_counts_for_nothing() -> None:
    the_door = door()
    assert watch(the_door, *(replace(sure("anna", i / 5), quality="blurred") for i in range(40))) == []
    assert [d.reason for d in leave(the_door)] == ["low quality: blurred"]


def test_sure_frames_too_far_apart_do_not_add_up() -> None:
    frames = [sure("anna", 0.0), sure("anna", 0.2), *(unsure("anna", 0.4 + i / 5) for i in range(3)), sure("anna", 1.2)]
    assert watch(door(), *frames) == []


def test_the_deciding_frame_itself_shows_the_person() -> None:
    """Two sure frames, and the third comes too late: what stands there by then need not be Anna."""
    the_door = door()
    assert watch(the_door, sure("anna", 0.0), sure("anna", 0.2)) == []
    assert watch(the_door, sure("anna", 0.4), late=1.5) == []
    assert watch(the_door, unsure("ben", 0.6), refused(0.8)) == []


def test_a_burst_is_one_look() -> None:
    assert watch(door(), *(sure("anna", i / 1000) for i in range(50))) == []
    assert len(watch(door(), *(sure("anna", i / 1000) for i in range(102)))) == 1
    assert len(watch(door(gap_seconds=0), *(sure("anna", i / 1000) for i in range(3)))) == 1


def test_two_names_in_one_visit_keep_the_door_shut_until_one_is_out_of_sight() -> None:
    frames = [sure("ben", 0.0), *(sure("anna", 0.2 * i) for i in range(1, 5))]
    the_door = door()
    assert watch(the_door, *frames) == []
    assert [d.label for d in watch(the_door, sure("anna", 1.0))] == ["anna"]


def test_a_visit_that_looks_like_nobody_outweighs_a_few_lucky_frames() -> None:
    """Only the sum over the whole visit can know."""
    strange = [unsure(LABELS[i % 4], 0.1 * i, 0.6, 1 + i % 3) for i in range(35)]
    lucky = [sure("anna", 3.5, 0.8), sure("anna", 3.6, 0.8), sure("anna", 3.7, 0.8)]
    assert watch(door(), *strange, *lucky) == []
    assert [d.outcome for d in watch(door(), *lucky)] == ["granted"]


def test_the_sum_must_name_the_same_person() -> None:
    """Ben's face all along, not sure enough for a name; then three frames that look like Anna."""
    frames = [unsure("ben", 0.1 * i, 0.79) for i in range(30)] + [sure("anna", 3 + 0.1 * i, 0.8) for i in range(3)]
    assert watch(door(), *frames) == []


@pytest.mark.parametrize("confidence", [0.8, 0.800001, 1.0])
def test_the_threshold_is_inclusive(confidence: float) -> None:
    named = Sighting(captured=0.0, label="anna", confidence=confidence, scores=(1.0, 0.0, 0.0, 0.0))
    assert len(watch(door(), *(replace(named, captured=i / 5) for i in range(3)))) == 1


def test_a_stranger_is_told_so_once_after_patience() -> None:
    the_door = door()
    decisions = watch(the_door, *(unsure("anna", i / 5) for i in range(50)))
    assert [(d.outcome, d.reason, d.label, d.captured) for d in decisions] == [("denied", "unknown", None, 4.0)]
    assert decisions[0].confidence == pytest.approx(0.6)
    assert watch(the_door, *(sure("anna", 10 + i / 5) for i in range(50))) == [], "a denied visit stays denied"
    assert leave(the_door) == []


def test_patience_begins_with_the_first_usable_frame() -> None:
    """Ten seconds far away, then at the camera: there is time to be recognised."""
    far = [refused(i / 5, "too small") for i in range(50)]
    near = [unsure("anna", 10 + i / 5, 0.78) for i in range(6)]
    assert watch(door(), *far, *near) == []
    the_door = door()
    assert [d.label for d in watch(the_door, *far, *near, *(sure("anna", 12 + i / 5) for i in range(5)))] == ["anna"]


@pytest.mark.parametrize(
    ("sightings", "reason"),
    [
        ([unsure("anna", 0.0), unsure("anna", 0.2), unsure("anna", 0.4)], "unknown"),
        ([refused(0.0), refused(0.2), refused(0.4, "too dark"), unsure("anna", 0.6)], "low quality: blurred"),
        ([unsure("anna", 0.0), sure("anna", 0.2)], "low quality: seen too briefly"),
        ([sure("anna", 0.0), replace(sure("anna", 0.2), confidence=math.nan)], "low quality: unreadable"),
        ([sure("anna", 0.0)], None),
        ([], None),
    ],
)
def test_who_leaves_undecided_is_told_why(sightings: list[Sighting], reason: str | None) -> None:
    the_door = door()
    assert watch(the_door, *sightings) == []
    decisions = leave(the_door)
    assert [d.reason for d in decisions] == ([reason] if reason else [])
    assert all((d.outcome, d.label) == ("denied", None) for d in decisions)
    assert leave(the_door) == []


def test_a_visit_that_got_mixed_up_ends_without_a_word() -> None:
    the_door = door()
    watch(the_door, *(unsure("anna", i / 5) for i in range(10)))
    assert leave(the_door, how=MIXED) == []
    assert len(watch(the_door, *(sure("anna", 2 + i / 5) for i in range(3)), visit=2)) == 1


def test_old_frames_never_open_the_door_and_are_called_stale() -> None:
    the_door = door()
    assert watch(the_door, *(sure("anna", i / 5) for i in range(20)), late=1.001) == []
    assert [d.reason for d in leave(the_door)] == ["stale"]
    assert len(watch(door(), *(sure("anna", float(i)) for i in range(20)), late=1.0)) == 1


def test_one_late_frame_does_not_spoil_a_visit() -> None:
    the_door = door()
    assert watch(the_door, sure("anna", 0.0), sure("anna", 0.2)) == []
    assert watch(the_door, sure("anna", 0.4), late=1.5) == []
    assert [d.captured for d in watch(the_door, sure("anna", 0.6))] == [0.6]


def test_a_frame_from_the_future_is_none() -> None:
    assert watch(door(), *(sure("anna", i / 5) for i in range(20)), late=-0.001) == []


def test_the_door_list_has_the_last_word() -> None:
    asked = []

    def allows(label: str, when: datetime) -> str | None:
        asked.append((label, when))
        return "outside hours"

    the_door = door(allows=allows)
    decisions = watch(the_door, *(sure("ben", i / 5) for i in range(9)))
    assert [(d.outcome, d.reason, d.label) for d in decisions] == [("denied", "outside hours", "ben")]
    assert asked == [("ben", WHEN)], "asked once, when all else is said"
    assert [d.outcome for d in watch(door(allows=lambda label, when: ""), *(sure("ben", i / 5) for i in range(3)))] == [
        "denied"
    ]


def test_a_door_list_that_breaks_lets_nobody_in() -> None:
    def allows(label: str, when: datetime) -> str | None:
        raise RuntimeError("broken")

    the_door = door(allows=allows)
    for i in range(30):
        with pytest.raises(RuntimeError) if i >= 2 else pytest.MonkeyPatch.context():
            assert watch(the_door, sure("anna", i / 5)) == []
    assert the_door.decision(1) is None


def test_a_door_list_that_broke_once_does_not_let_an_old_frame_in_later() -> None:
    """The frame that would have opened the door is long past when a blurred one comes; only a new sure one may."""
    answers = iter([RuntimeError("broken"), None])

    def allows(label: str, when: datetime) -> str | None:
        answer = next(answers)
        if answer is not None:
            raise answer
        return None

    the_door = door(allows=allows)
    watch(the_door, sure("anna", 0.0), sure("anna", 0.2))
    with pytest.raises(RuntimeError):
        watch(the_door, sure("anna", 0.4))
    assert watch(the_door, refused(3.0), refused(3.2)) == []
    assert [d.captured for d in watch(the_door, sure("anna", 3.4))] == [3.4]


def test_few_usable_frames_are_no_reason_to_call_anybody_unknown() -> None:
    the_door = door()
    assert watch(the_door, *(unsure("anna", 2.0 * i) for i in range(4))) == [], "four in six seconds"
    assert [d.reason for d in watch(the_door, unsure("anna", 8.0))] == ["unknown"]


# -- coming again, and two at once -----------------------------------------------------------------------------------------


def test_back_at_once_is_the_same_visit_and_back_later_a_new_one() -> None:
    the_door = door()
    assert len(watch(the_door, *(sure("anna", i / 5) for i in range(11)))) == 1  # last seen at 2.0
    assert leave(the_door) == []
    assert watch(the_door, *(sure("anna", 11.5 + i / 4) for i in range(9)), visit=2) == []  # named at 12.0
    assert the_door.decision(2) == replace(the_door.decision(2), visit=1, outcome="granted")  # type: ignore[type-var]
    assert leave(the_door, 2) == [], "the same visit, so no second event"  # last seen at 13.5
    (again,) = watch(the_door, *(sure("anna", 23.25 + i / 4) for i in range(9)), visit=3)
    assert (again.outcome, again.label, again.visit, again.captured) == ("granted", "anna", 3, 23.75)


def test_the_pause_is_counted_from_the_last_sight() -> None:
    """A person who stands in the open door for a minute, turns away and back, is not let in twice."""
    the_door = door()
    watch(the_door, *(sure("anna", i / 5) for i in range(10)), *(unsure("anna", 2 + i / 5) for i in range(290)))
    leave(the_door)
    assert watch(the_door, *(sure("anna", 62 + i / 5) for i in range(9)), visit=2) == []


def test_somebody_else_need_not_wait() -> None:
    the_door = door()
    watch(the_door, *(sure("anna", i / 5) for i in range(5)))
    leave(the_door)
    assert [d.label for d in watch(the_door, *(sure("ben", 2 + i / 5) for i in range(5)), visit=2)] == ["ben"]


def test_two_at_once_are_decided_each_for_themselves() -> None:
    the_door, decisions = door(), []
    for i in range(30):
        seen = {1: sure("anna", i / 5), 2: unsure("cara", i / 5), 3: sure("ben", i / 5) if i else refused(0.0)}
        decisions += the_door.step(now=i / 5, when=WHEN, seen=seen)
    assert [(d.visit, d.outcome, d.label, d.captured) for d in decisions] == [
        (1, "granted", "anna", 0.4),
        (3, "granted", "ben", 0.6),
        (2, "denied", None, 4.0),
    ]


def test_one_person_in_two_places_is_let_in_once() -> None:
    the_door, decisions = door(), []
    for i in range(9):
        decisions += the_door.step(now=i / 5, when=WHEN, seen={n: sure("anna", i / 5) for n in (1, 2, 3)})
    assert [d.outcome for d in decisions] == ["granted"]


def test_an_ended_visit_does_not_come_back() -> None:
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


# -- properties ------------------------------------------------------------------------------------------------------------

near_one = st.floats(THRESHOLD, 1.0)


@st.composite
def sightings(draw: st.DrawFn, captured: float) -> Sighting:
    """Mostly good frames of few people, and every kind of bad one."""
    label = draw(st.sampled_from(("anna", "anna", "anna", "ben")))
    kind = draw(st.sampled_from(("sure",) * 6 + ("unsure", "refused", "odd")))
    if kind == "sure":
        return sure(label, captured, draw(near_one))
    if kind == "unsure":
        return unsure(label, captured, draw(st.floats(0.72, THRESHOLD, exclude_max=True)), draw(st.integers(1, 3)))
    if kind == "refused":
        return refused(captured, draw(st.sampled_from(("blurred", "too dark"))))
    good = sure(label, captured)
    return draw(
        st.sampled_from(
            (
                replace(good, scores=(math.nan, 0.0, 0.0, 1.0)),
                replace(good, scores=(math.inf, 0.0, 0.0, 0.0)),
                replace(good, scores=(0.0, 0.0, 0.0, 0.0)),
                replace(good, scores=(2.0, 0.0, 0.0, 0.0)),
                replace(good, scores=scores_of(label, 0.9)[:3]),
                replace(good, scores=()),
                replace(good, scores=None),
                replace(good, confidence=math.nan),
                replace(good, confidence=math.inf),
                replace(good, margin=math.nan),
                replace(good, confidence=0.79),
                replace(good, label="eve"),
                replace(good, label="cara"),
                replace(good, quality="blurred"),
            )
        )
    )


@st.composite
def streams(draw: st.DrawFn, visits: int = 1, length: int = 30) -> list[Step]:
    """Frames with pauses, bursts, jumps back in time, late ones and ones from the future."""
    steps, captured = [], 100.0
    gaps = st.sampled_from((0.2, 0.2, 0.2, 0.2, 0.03, 0.6, 1.5, 0.0, -0.1, -3.0))
    delays = st.sampled_from((0.1, 0.1, 0.1, 0.1, 0.0, 1.0, 1.1, 5.0, -0.1))
    for _ in range(draw(st.integers(0, length))):
        captured = round(captured + draw(gaps), 3)
        numbers = draw(st.sets(st.integers(1, visits))) if visits > 1 else {1}
        steps.append((captured + draw(delays), {n: draw(sightings(captured)) for n in numbers}))
    return steps


def run(steps: list[Step], a_door: Door | None = None) -> list[Decision]:
    a_door = a_door or door()
    return [decision for now, seen in steps for decision in a_door.step(now=now, when=WHEN, seen=seen)]


def counts(sighting: Sighting, now: float) -> bool:
    """The oracle's own idea of evidence."""
    scores = np.array(sighting.scores if sighting.scores is not None else [], dtype=float)
    if sighting.quality or now - sighting.captured > 1.0 or scores.shape != (4,) or not np.isfinite(scores).all():
        return False
    if abs(np.linalg.norm(scores) - 1) > 1e-3 or not np.isfinite([sighting.confidence, sighting.margin]).all():
        return False
    return sighting.label is None or (LABELS[scores.argmax()] == sighting.label and sighting.confidence >= THRESHOLD)


def oracle(steps: list[Step]) -> tuple[str, str | None, float] | None:
    """What becomes of one visit, from its whole history: the rules once more, as plainly as can be."""
    history: list[Sighting] = []
    last = -math.inf
    for now, seen in steps:
        sighting = seen[1]
        if sighting.captured <= last or sighting.captured > now:
            continue
        last = sighting.captured
        if counts(sighting, now) and (not history or sighting.captured - history[-1].captured >= 0.05):
            history.append(sighting)
            labels = [s.label for s in history[-5:] if s.label]
            total = np.sum([max(s.confidence, 0) * np.array(s.scores) for s in history], axis=0)
            mean = total / (np.linalg.norm(total) or 1)
            if sighting.label and len(labels) >= 3 and set(labels) == {sighting.label}:
                sum_agrees = LABELS[mean.argmax()] == sighting.label
                if sum_agrees and abs(mean.max() - THRESHOLD) < 1e-9:
                    raise ArithmeticError("too close to call")
                if sum_agrees and mean.max() >= THRESHOLD:
                    return "granted", sighting.label, last
        if len(history) >= 5 and last - history[0].captured >= 4.0:
            return "denied", None, last
    return None


@settings(max_examples=400)
@given(streams())
def test_one_visit_is_decided_as_the_rules_say(steps: list[Step]) -> None:
    try:
        expected = oracle(steps)
    except ArithmeticError:
        return
    found = [(d.outcome, d.label, d.captured) for d in run(steps)]
    assert found == ([expected] if expected else [])


@settings(max_examples=200)
@given(streams(visits=3))
def test_nobody_is_let_in_who_never_passed_the_threshold_and_nobody_twice(steps: list[Step]) -> None:
    decisions = run(steps)
    visits = [d.visit for d in decisions]
    assert len(visits) == len(set(visits)), "one decision on a visit"
    for grant in (d for d in decisions if d.outcome == "granted"):
        mine = [(now, seen[grant.visit]) for now, seen in steps if grant.visit in seen]
        passed = {s.captured for now, s in mine if s.label == grant.label and s.confidence >= THRESHOLD and counts(s, now)}
        assert len({captured for captured in passed if captured <= grant.captured}) >= 3
        assert any(s.captured == grant.captured and 0 <= now - s.captured <= 1.0 for now, s in mine), "by a fresh frame"
        assert grant.confidence >= THRESHOLD


@settings(max_examples=200)
@given(streams(visits=2), st.data())
def test_time_running_backwards_changes_nothing(steps: list[Step], data: st.DataObject) -> None:
    """Old frames, slipped in anywhere, of any visit: the decisions are the same."""
    disturbed: list[Step] = []
    newest = -math.inf
    for now, seen in steps:
        disturbed.append((now, seen))
        newest = max([newest, *(s.captured for s in seen.values() if s.captured <= now)])
        if newest > 0 and data.draw(st.booleans()):
            old = newest - data.draw(st.sampled_from((0.0, 0.01, 1.0, 50.0)))
            number = data.draw(st.integers(1, 4))
            disturbed.append((data.draw(st.sampled_from((now, old, old + 0.5))), {number: sure("anna", old)}))
    assert run(disturbed) == run(steps)


anything = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            anything,
            st.dictionaries(
                st.integers(-1, 3),
                st.builds(
                    Sighting,
                    captured=anything,
                    label=st.none() | st.sampled_from((*LABELS, "", "eve")),
                    confidence=anything,
                    margin=anything,
                    quality=st.none() | st.text(max_size=3),
                    scores=st.none() | st.lists(anything, max_size=5).map(tuple),
                ),
            ),
            st.dictionaries(st.integers(-1, 3), st.sampled_from((LEFT, MIXED))),
        ),
        max_size=20,
    )
)
def test_no_number_breaks_it(steps: list[tuple[float, dict[int, Sighting], dict[int, str]]]) -> None:
    the_door = door()
    for now, seen, gone in steps:
        for decision in the_door.step(now=now, when=WHEN, seen=seen, gone=gone):
            assert decision.outcome == "denied" or decision.confidence >= THRESHOLD
            assert math.isfinite(decision.confidence)
            assert math.isfinite(decision.margin)


@given(st.integers(2, 5), st.integers(0, 5), st.floats(0.1, 1.0))
def test_the_numbers_of_the_rules_are_obeyed(needed: int, more: int, age: float) -> None:
    rules = {"needed": needed, "window": needed + more, "max_age_seconds": age}
    grants = watch(door(**rules), *(sure("anna", i / 5) for i in range(20)), late=age * 0.99)
    assert [d.captured for d in grants] == [(needed - 1) / 5]
    assert watch(door(**rules), *(sure("anna", i / 5) for i in range(20)), late=age + 0.01) == []


@pytest.mark.parametrize("threshold", [0, -1, math.nan, math.inf])
def test_a_threshold_that_is_none_is_refused(threshold: float) -> None:
    with pytest.raises(ParameterError, match="threshold"):
        Door(LABELS, threshold)
