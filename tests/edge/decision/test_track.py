"""The tracker gives each person one visit, and never mixes two people in one visit."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.door import Decision, Door
from edge.decision.track import AMBIGUOUS, LEFT, Box, Tracker
from edge.decision.visit import Sighting, VisitRules
from edge.errors import ParameterError

SIZE = 100.0
WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def box(x: float, y: float = 0.0, size: float = SIZE) -> Box:
    """Return a face with its centre at (x, y) face sizes."""
    return (x * SIZE - size / 2, y * SIZE - size / 2, x * SIZE + size / 2, y * SIZE + size / 2)


def test_face_that_stays_is_one_visit() -> None:
    tracker = Tracker()
    assert [tracker.update(i / 10, [box(0.02 * (i % 3))]) for i in range(50)] == [[1]] * 50
    assert tracker.ended(4.9) == {}


@pytest.mark.parametrize(("fps", "speed"), [(5, 1.5), (10, 1.8), (30, 1.8)])
def test_walking_face_is_one_visit(fps: int, speed: float) -> None:
    """The face moves sideways by 1.5 or 1.8 faces per second, and grows by 40 % per second."""
    tracker = Tracker()
    ids = [tracker.update(i / fps, [box(speed * i / fps, size=SIZE * 1.4 ** (i / fps))]) for i in range(3 * fps)]
    assert ids == [[1]] * (3 * fps)


def test_jump_starts_a_new_visit() -> None:
    """A third of a face. Beyond the speed of a person, the old visit may continue elsewhere."""
    tracker = Tracker()
    assert tracker.update(0.0, [box(0)]) == [1]
    assert tracker.update(0.2, [box(0.33)]) == [1]
    assert tracker.update(0.4, [box(0.67)]) == [2]
    assert tracker.ended(0.4) == {1: AMBIGUOUS}
    assert tracker.update(0.43, [box(1.3)]) == [3]
    assert tracker.ended(0.43) == {}


def test_decided_visit_survives_a_jump() -> None:
    """A denied person who moves is not denied again and again."""
    tracker = Tracker()
    assert tracker.update(0.0, [box(0)]) == [1]
    assert tracker.update(0.3, [box(1.0)], {1}) == [1], "the limit is inclusive"
    assert tracker.update(0.33, [box(1.5)], {1}) == [2], "the limit is shorter for a shorter time"
    assert tracker.ended(0.33) == {}


def test_face_of_another_size_starts_a_new_visit() -> None:
    tracker = Tracker()
    tracker.update(0.0, [box(0)])
    assert tracker.update(0.1, [box(0, size=2.1 * SIZE)]) == [2]
    grown = Tracker()
    grown.update(0.0, [box(0)])
    assert grown.update(0.1, [box(0, size=2 * SIZE)]) == [1], "the limit is inclusive"


def test_absence_ends_a_visit() -> None:
    tracker = Tracker()
    tracker.update(0.0, [box(0)])
    assert tracker.update(0.5, []) == []
    assert tracker.ended(1.0) == {}
    assert tracker.ended(1.1) == {1: LEFT}
    assert tracker.ended(1.1) == {}


def test_face_after_a_gap_starts_a_new_visit() -> None:
    """Two frames of one person, a gap, and another person in the same place: the scores of the first are not used."""
    tracker = Tracker()
    tracker.update(0.0, [box(0)])
    assert tracker.update(0.3, [box(0)]) == [1]
    assert tracker.update(0.4, []) == []
    assert tracker.update(0.65, [box(0)]) == [2]
    assert tracker.ended(0.65) == {1: AMBIGUOUS}


def test_visits_end_without_new_frames() -> None:
    tracker = Tracker()
    tracker.update(0.0, [box(0), box(5)])
    assert tracker.ended(-50.0) == tracker.ended(math.nan) == tracker.ended(1.0) == {}
    assert tracker.ended(1.1) == {1: LEFT, 2: LEFT}


def test_two_faces_for_one_visit_start_new_visits() -> None:
    tracker = Tracker()
    tracker.update(0.0, [box(0)])
    assert tracker.update(0.2, [box(-0.3), box(0.3)]) == [2, 3]
    assert tracker.ended(0.2) == {1: AMBIGUOUS}


def test_two_visits_for_one_face_start_a_new_visit() -> None:
    tracker = Tracker()
    tracker.update(0.0, [box(-0.4), box(0.4)])
    assert tracker.update(0.2, [box(0.1)]) == [3]
    assert tracker.ended(0.2) == {1: AMBIGUOUS, 2: AMBIGUOUS}


def test_clear_match_is_kept_beside_a_neighbour() -> None:
    """One person leans over. The other person did not move and keeps the visit."""
    tracker = Tracker()
    tracker.update(0.0, [box(0), box(1.2)])
    assert tracker.update(0.2, [box(0.01), box(0.9)]) == [1, 2]
    assert tracker.ended(0.2) == {}


def test_visit_never_changes_its_label() -> None:
    """At a low frame rate, Ben stands where Anna stood."""
    tracker = Tracker()
    assert tracker.update(0.0, [box(0)]) == [1]
    assert tracker.name(1, "anna") == 1
    assert tracker.update(0.2, [box(0)]) == [1]
    assert tracker.update(0.4, [box(0)]) == [1]
    assert tracker.name(1, "ben") == 2, "the face starts a new visit"
    assert tracker.ended(0.4) == {1: AMBIGUOUS}
    assert tracker.update(0.6, [box(0)]) == [2]
    assert tracker.name(2, "ben") == 2
    assert tracker.name(2, "anna") == 3, "the first visit does not come back"
    assert tracker.ended(0.6) == {2: AMBIGUOUS}


def test_decided_visit_ends_at_a_gap() -> None:
    """It is not recognised again, so the next person must not inherit it."""
    tracker = Tracker()
    tracker.update(0.0, [box(0)])
    assert tracker.update(0.3, [box(0)], {1}) == [1]
    assert tracker.update(0.7, [box(0)], {1}) == [2]
    assert tracker.update(0.8, [box(0)], {1}) == [2]
    assert tracker.ended(1.0) == {}
    assert tracker.ended(1.4) == {1: LEFT}


@pytest.mark.parametrize(("gap", "moved"), [(0.9, 0.3), (0.35, 0.0), (0.1, 0.4), (0.9, 0.0)])
def test_lucky_frame_of_the_next_person_is_not_added_to_the_frames_before(gap: float, moved: float) -> None:
    tracker, door = Tracker(), Door(["anna", "ben"], 0.8)
    decisions: list[Decision] = []
    for captured, x in [(0.0, 0.0), (0.1, 0.0), (0.1 + gap, moved)]:
        (visit,) = tracker.update(captured, [box(x)], door.decided)
        assert visit is not None
        seen = Sighting(captured=captured, label="anna", confidence=0.95, margin=0.8, scores=np.array([1.0, 0.0]))
        step = door.step(now=captured, when=WHEN, seen={tracker.name(visit, "anna"): seen}, ended=tracker.ended(captured))
        decisions += step.decisions
    assert decisions == [], "the first visit ends silently, and the second has one frame"


@pytest.mark.parametrize(
    "bad",
    [
        (math.nan, 0, 1, 1),
        (0, 0, math.inf, 1),
        (0, 0, 0, 10),
        (10, 0, 0, 10),
        (0, 10, 10, 0),
        (-1e300, -1e300, 1e300, 1e300),
        (0, 0, 1),
    ],
)
def test_invalid_box_gets_no_visit(bad: Any) -> None:
    tracker = Tracker()
    assert tracker.update(0.0, [bad, box(0)]) == [None, 1]
    assert tracker.update(0.1, [box(0), bad]) == [1, None]


@pytest.mark.parametrize("old", [1.0, 0.9, -5.0, math.nan, -math.inf, math.inf])
def test_frame_that_is_not_newer_changes_nothing(old: float) -> None:
    tracker = Tracker()
    tracker.update(1.0, [box(0)])
    assert tracker.update(old, [box(0), box(5)]) == [None, None]
    assert tracker.update(1.1, [box(0)]) == [1]
    assert tracker.ended(1.1) == {}


def test_number_of_visits_is_bounded() -> None:
    tracker = Tracker(VisitRules(max_visits=3))
    crowd = [box(3 * i) for i in range(6)]
    assert tracker.update(0.0, crowd) == [1, 2, 3, None, None, None]
    assert tracker.update(0.1, crowd[::-1]) == [None, None, None, 3, 2, 1]
    assert tracker.update(0.5, crowd[3:]) == [None] * 3, "the first three visits may continue"
    assert tracker.update(1.5, crowd[3:]) == [4, 5, 6]


@pytest.mark.parametrize(
    "change",
    [
        {"needed": 1},
        {"needed": 6},
        {"needed": 3.0},
        {"needed": True},
        {"window": 101},
        {"max_age_seconds": 1.01},
        {"max_age_seconds": 0},
        {"patience_seconds": math.nan},
        {"again_seconds": math.inf},
        {"leave_seconds": 0.0},
        {"gap_seconds": -0.1},
        {"min_sightings": -1},
        {"max_visits": 0},
        {"max_looks": 4},
        {"patience_seconds": "4"},
    ],
)
def test_invalid_rules_are_rejected(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ParameterError, match=name):
        VisitRules(**change)


# Properties

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=60)
@given(seeds, st.sampled_from((7, 10, 30)), st.floats(2.2, 5.0))
def test_two_separate_people_keep_their_visits(seed: int, fps: int, apart: float) -> None:
    """Each sways a little, is missed in some frames, and comes in any order."""
    rng = np.random.default_rng(seed)
    tracker, sway = Tracker(), np.zeros(2)
    assert tracker.update(0.0, [box(0.0), box(apart)]) == [1, 2]
    for i in range(1, 40):
        sway = np.clip(sway + np.clip(rng.normal(0, 0.5 / fps, 2), -0.1, 0.1), -0.33, 0.33)
        present = [person for person in rng.permutation(2) if rng.random() < 0.8 or i % 2 == 0]
        boxes = [box(apart * person + sway[person] + rng.uniform(-0.03, 0.03), rng.uniform(-0.03, 0.03)) for person in present]
        assert tracker.update(i / fps, boxes) == [person + 1 for person in present]
    assert tracker.ended(39 / fps) == {}


@settings(max_examples=200)
@given(seeds, st.integers(0, 20))
def test_each_visit_has_one_face_per_frame_one_label_and_one_end(seed: int, length: int) -> None:
    rng, tracker, clock, highest = Random(seed), Tracker(), 0.0, 0
    names: dict[int, set[str]] = {}
    ended: set[int] = set()
    for _ in range(length):
        pause = rng.choice((math.nan, -0.1, 0.0, 1.0, rng.uniform(0, 0.3), rng.uniform(0, 2)))
        clock = clock if math.isnan(pause) else clock + pause
        known: tuple[str | None, ...] = (None, "anna", "ben")
        faces = [(rng.uniform(-2, 2), rng.uniform(50, 200), rng.choice(known)) for _ in range(rng.randint(0, 5))]
        decided = {number for number in names if rng.random() < 0.5}
        ids = tracker.update(clock + pause, [box(x, size=size) for x, size, _ in faces], decided)
        for i, (*_, name) in enumerate(faces):
            if (before := ids[i]) is not None and name is not None:
                names.setdefault(before, set())
                ids[i] = tracker.name(before, name)
        found = [number for number in ids if number is not None]
        assert len(found) == len(set(found))
        new = {number for number in found if number not in names}
        assert all(number > highest for number in new)
        highest = max([highest, *new])
        for number, (*_, name) in zip(ids, faces, strict=True):
            if number is not None:
                names.setdefault(number, set()).update([] if name is None else [name])
        gone = tracker.ended(clock)
        assert not ended & gone.keys()
        assert not ended & set(found)
        ended |= gone.keys()
    assert all(len(labels) <= 1 for labels in names.values())
    assert set(tracker.ended(clock + 100)) | ended == set(names), "each visit ends once"


class Walk:
    """People who walk in front of a camera, cross each other, and are recognised in some of the looks at them."""

    def __init__(self, seed: int, fps: int, people: int, named: float, with_labels: bool, missed: float = 0.1) -> None:
        rng = Random(seed)
        self.truth: dict[int, list[tuple[float, int, str | None]]] = {}  # by visit: time, person, label of each look
        self.people: dict[int, set[int]] = {}  # by visit: who was tracked
        self.decisions: list[Decision] = []
        labels = [f"person {i}" for i in range(people)]
        tracker, door = Tracker(), Door(labels, 0.8)
        size, spread = (1.0, 0.2), (1.0, 0.1)  # they walk sideways, mostly
        places = [[rng.uniform(0, 3) * length for length in size] for _ in labels]
        speeds = [[rng.uniform(-1.5, 1.5) * share for share in spread] for _ in labels]
        score = 1 / math.sqrt(1 + 0.01 * (people - 1))
        for i in range(6 * fps):
            captured = i / fps
            for place, speed in zip(places, speeds, strict=True):
                for axis in (0, 1):
                    place[axis] += speed[axis] / fps + rng.gauss(0, 0.02)
                    speed[axis] *= 1 if 0 <= place[axis] <= 3 else -1
            present = [who for who in rng.sample(range(people), people) if rng.random() >= missed]
            found = [labels[who] if rng.random() < named else None for who in present]
            ids = tracker.update(captured, [box(*places[who]) for who in present], door.decided)
            seen = {}
            for who, name, number in zip(present, found, ids, strict=True):
                if number is None:
                    continue
                seen[number] = Sighting(captured=captured, is_look=False)
                self.people.setdefault(number, set()).add(who)
                if not door.wants_look(number, seen[number], now=captured):
                    continue
                scores = np.array([score if other == who else 0.1 * score for other in range(people)])
                del seen[number]
                number = tracker.name(number, name) if with_labels and name else number
                seen[number] = Sighting(captured=captured, label=name, confidence=score, margin=0.5, scores=scores)
                self.truth.setdefault(number, []).append((captured, who, name))
            self.decisions += door.step(now=captured + 0.05, when=WHEN, seen=seen, ended=tracker.ended(captured)).decisions


@settings(max_examples=150)
@given(seeds, st.sampled_from((2, 5, 15)), st.integers(2, 4), st.floats(0.3, 1.0), st.booleans())
def test_no_grant_comes_from_two_people(seed: int, fps: int, people: int, named: float, with_labels: bool) -> None:
    """A granted person was recognised in that visit, in enough of its latest frames."""
    walk = Walk(seed, fps, people, named, with_labels)
    assert len({d.visit for d in walk.decisions}) == len(walk.decisions)
    for grant in (d for d in walk.decisions if d.outcome == "granted"):
        latest = [entry for entry in walk.truth[grant.visit] if entry[0] <= grant.captured][-5:]
        mine = [entry for entry in latest if entry[2] == grant.label]
        assert len(mine) >= 3
        assert {f"person {who}" for _, who, name in latest if name} == {grant.label}
        assert latest[-1][2] == grant.label, "the person of the newest frame"


@settings(max_examples=40)
@given(seeds, st.sampled_from((10, 30)))
def test_people_who_cross_start_new_visits(seed: int, fps: int) -> None:
    """Without labels, a visit must end wherever it may continue with another person."""
    walk = Walk(seed, fps, 2, 0.0, with_labels=False, missed=0.0)
    assert all(len(people) == 1 for people in walk.people.values())


def test_walks_contain_grants_and_crossings() -> None:
    walks = [Walk(seed, 15, 2, 0.9, with_labels=True) for seed in range(20)]
    assert sum(d.outcome == "granted" for walk in walks for d in walk.decisions) >= 30
    assert sum(len(walk.people) > 2 for walk in walks) >= 5
