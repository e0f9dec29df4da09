"""The liveness challenge: no movement of a flat picture passes it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.decision.challenge import PROMPTS, LivenessSettings
from edge.decision.door import Decision, Door
from edge.decision.reasons import NO_ENTRIES_LEFT, OUTSIDE_HOURS, PRESENTATION_ATTACK
from edge.decision.track import AMBIGUOUS, LEFT
from edge.decision.visit import Sighting
from edge.errors import ParameterError
from edge.vision.liveness import Relief, relief
from tests.fixtures.heads import HEAD, Landmarks, held, photographs, turn, view

WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FPS = 10
ASKED = LivenessSettings(challenge=True)


def sighting(landmarks: Landmarks | None, captured: float, label: str | None = "anna", **changes: Any) -> Sighting:
    scores = np.array([1.0, 0.0] if label != "ben" else [0.0, 1.0])
    found = None if landmarks is None else relief(landmarks)
    return Sighting(captured=captured, label=label, confidence=0.9, margin=0.9, scores=scores, relief=found, **changes)


class Watched:
    """A door and the frames of one visit."""

    def __init__(self, *prompts: str, liveness: LivenessSettings = ASKED, **options: Any) -> None:
        order = iter(itertools.cycle(prompts or ("left",)))
        self.door = Door(("anna", "ben"), 0.5, liveness=liveness, draw=lambda choices: next(order), **options)
        self.now, self.asked, self.decisions = 0.0, list[str](), list[Decision]()

    def sees(
        self, *landmarks: Landmarks | None, visit: int = 1, late: float = 0.0, every: float = 1 / FPS, **changes: Any
    ) -> Watched:
        for points in landmarks:
            self.now += every
            seen = {visit: sighting(points, self.now, **changes)}
            result = self.door.step(now=self.now + late, when=WHEN, seen=seen)
            self.decisions += result.decisions
            self.asked += [prompt for _, prompt in result.prompts]
        return self

    def looks_straight(self, frames: int = 3, **changes: Any) -> Watched:
        return self.sees(*[view(HEAD)] * frames, **changes)

    def turns(self, prompt: str, degrees: float = 30.0, **changes: Any) -> Watched:
        """Turn the head and return."""
        return self.sees(*turn(HEAD, prompt, degrees), **changes)

    @property
    def outcome(self) -> str | None:
        assert len(self.decisions) <= 1
        return next((d.reason if d.outcome == "denied" else "granted" for d in self.decisions), None)


@pytest.mark.parametrize("prompts", list(itertools.product(PROMPTS, repeat=2)))
def test_head_that_moves_as_asked_is_granted(prompts: tuple[str, str]) -> None:
    visit = Watched(*prompts)
    assert visit.door.prompt(1) is None
    visit.looks_straight()
    assert (visit.outcome, visit.asked, visit.door.prompt(1)) == (None, [prompts[0]], prompts[0])
    visit.turns(prompts[0])
    assert (visit.outcome, visit.asked) == (None, list(prompts)), "the second prompt comes after the first movement"
    visit.turns(prompts[1]).looks_straight()
    assert (visit.outcome, visit.asked) == ("granted", list(prompts))
    assert visit.decisions[0].label == "anna"


@settings(max_examples=60)
@given(photographs(), st.integers(0, 2**32 - 1), st.sampled_from(list(PROMPTS)))
def test_no_movement_of_a_flat_picture_passes(picture: Landmarks, seed: int, prompt: str) -> None:
    rng = Random(seed)
    visit = Watched(prompt, liveness=replace(ASKED, turns=1)).sees(*[picture] * 3)
    for _ in range(28):  # as many as fit before the timeout
        yaw, pitch, roll, distance = (rng.uniform(*span) for span in ((-60, 60), (-60, 60), (-35, 35), (5, 40)))
        visit.sees(*[held(picture, yaw, pitch, roll, distance)] * 2)
    visit.sees(*[picture] * 26, every=0.25)
    assert visit.outcome == "challenge failed: timeout"


@pytest.mark.parametrize(("asked", "done"), [pair for pair in itertools.product(PROMPTS, repeat=2) if pair[0] != pair[1]])
def test_wrong_movement_is_denied_at_once(asked: str, done: str) -> None:
    assert Watched(asked).looks_straight().turns(done).outcome == "challenge failed: wrong movement"


def test_looking_up_is_a_wrong_movement() -> None:
    up = [view(HEAD, pitch=-30)] * 3
    assert Watched("down").looks_straight().sees(*up).outcome == "challenge failed: wrong movement"


def test_mirrored_camera_swaps_left_and_right() -> None:
    mirrored = replace(ASKED, turns=1, mirrored=True)
    assert Watched("left", liveness=mirrored).looks_straight().turns("right").looks_straight().outcome == "granted"
    assert Watched("left", liveness=mirrored).looks_straight().turns("left").outcome == "challenge failed: wrong movement"


def test_one_of_two_movements_is_not_enough() -> None:
    visit = Watched().looks_straight().turns("left").looks_straight(30)
    assert visit.outcome is None
    assert visit.looks_straight(40).outcome == "challenge failed: timeout"


def test_small_turn_and_single_frame_are_ignored() -> None:
    slip = [view(HEAD), view(HEAD, yaw=40), view(HEAD)]
    visit = Watched().looks_straight().turns("left", 10).sees(*slip).looks_straight()
    assert visit.outcome is None
    assert visit.asked == ["left"]
    wrong = [view(HEAD), view(HEAD, yaw=-40), view(HEAD)]
    assert visit.sees(*wrong).looks_straight().outcome is None


def test_head_that_does_not_return_is_denied() -> None:
    visit = Watched(liveness=replace(ASKED, turns=1)).looks_straight().sees(*[view(HEAD, yaw=30)] * 50)
    assert visit.outcome is None
    assert visit.sees(*[view(HEAD, yaw=30)] * 20).outcome == "challenge failed: timeout"


def test_person_must_be_recognised_again_after_the_movement() -> None:
    once = replace(ASKED, turns=1)
    visit = Watched(liveness=once).looks_straight().sees(*turn(HEAD, "left")[:4]).sees(*turn(HEAD, "left")[4:], label=None)
    assert visit.looks_straight(10, label=None).outcome is None
    assert visit.looks_straight(1).outcome is None, "one frame is not enough"
    assert visit.looks_straight(2).outcome == "granted"


def test_person_must_be_recognised_during_the_movement() -> None:
    once = replace(ASKED, turns=1)
    visit = Watched(liveness=once).looks_straight().turns("left", label=None).looks_straight(10)
    assert visit.outcome is None
    assert visit.looks_straight(50).outcome == "challenge failed: timeout"
    visit = Watched(liveness=once).looks_straight().sees(*turn(HEAD, "left")[:2]).sees(*turn(HEAD, "left")[2:], label=None)
    assert visit.looks_straight().outcome == "granted", "one frame during the movement is enough"


@pytest.mark.parametrize(("change", "reason"), [({"label": "ben"}, "another person"), ({"is_alone": False}, "not alone")])
def test_one_frame_with_another_person_denies(change: dict[str, Any], reason: str) -> None:
    for when in range(1, 9):
        visit = Watched().looks_straight().sees(*turn(HEAD, "left")[:when])
        assert visit.looks_straight(1, **change).outcome == f"challenge failed: {reason}"
        assert visit.turns("left").turns("left").looks_straight().outcome == f"challenge failed: {reason}"


def test_prompt_waits_until_the_person_is_alone() -> None:
    visit = Watched().looks_straight(20, is_alone=False)
    assert (visit.outcome, visit.asked) == (None, [])
    assert visit.looks_straight(1).asked == ["left"]
    assert Watched().looks_straight(70, is_alone=False).outcome == "challenge failed: timeout"


def test_prompt_waits_for_a_frontal_face() -> None:
    visit = Watched().sees(*[view(HEAD, yaw=30)] * 20)
    assert (visit.outcome, visit.asked) == (None, [])
    assert visit.looks_straight(3).asked == ["left"]


def test_face_lost_for_half_a_second_is_denied() -> None:
    visit = Watched().looks_straight()
    visit.now += 0.6
    assert visit.looks_straight(1).outcome == "challenge failed: face lost"


@pytest.mark.parametrize("how", [LEFT, AMBIGUOUS])
def test_person_who_leaves_is_denied_and_gets_no_new_prompt_soon(how: str) -> None:
    visit = Watched("left", "right").looks_straight()
    visit.decisions += visit.door.step(now=visit.now, when=WHEN, seen={}, ended={1: how}).decisions
    assert visit.outcome == "challenge failed: face lost"
    assert visit.decisions[0].label == "anna"
    visit.looks_straight(90, visit=2)
    assert visit.asked == ["left"]
    visit.door.step(now=visit.now, when=WHEN, seen={}, ended={2: LEFT})
    visit.now += 11
    assert visit.looks_straight(3, visit=3).asked == ["left", "right"]


def test_stale_frames_do_not_count() -> None:
    visit = Watched(liveness=replace(ASKED, turns=1)).looks_straight().turns("left", late=1.5)
    assert visit.looks_straight(3).outcome is None
    assert visit.turns("left").looks_straight().outcome == "granted"


def test_face_without_landmarks_times_out() -> None:
    assert Watched().sees(*[None] * 70).outcome == "challenge failed: timeout"
    assert Watched().looks_straight().sees(*[None] * 70).outcome == "challenge failed: timeout"


def test_door_list_is_checked_before_and_after_the_challenge() -> None:
    class DoorList:
        def __init__(self, *answers: str | None) -> None:
            self.answers = list(answers)

        def refusal(self, label: str, when: datetime) -> str | None:
            return self.answers.pop(0)

    denied = Watched(door_list=DoorList(OUTSIDE_HOURS)).looks_straight()
    assert (denied.outcome, denied.asked) == (OUTSIDE_HOURS, [])
    late = Watched(liveness=replace(ASKED, turns=1), door_list=DoorList(None, OUTSIDE_HOURS))
    assert late.looks_straight().turns("left").looks_straight().outcome == OUTSIDE_HOURS


def test_entry_is_counted_when_the_challenge_is_passed_and_not_before() -> None:
    counted: list[str] = []

    def admit(label: str, when: datetime) -> str | None:
        counted.append(label)
        return None if len(counted) == 1 else NO_ENTRIES_LEFT

    visit = Watched(liveness=replace(ASKED, turns=1), admit=admit).looks_straight()
    assert counted == []
    assert visit.turns("left").looks_straight().outcome == "granted"
    assert counted == ["anna"]
    failed = Watched(admit=admit).looks_straight().turns("right")
    assert (failed.outcome, counted) == ("challenge failed: wrong movement", ["anna"])
    refused = Watched(liveness=replace(ASKED, turns=1), admit=admit).looks_straight().turns("left").looks_straight()
    assert refused.outcome == NO_ENTRIES_LEFT


def test_prompts_are_random() -> None:
    prompts = []
    for _ in range(450):
        door = Door(("anna", "ben"), 0.5, liveness=ASKED)
        for i in range(3):
            result = door.step(now=i, when=WHEN, seen={1: sighting(view(HEAD), i)})
            prompts += [prompt for _, prompt in result.prompts]
    assert {prompt: 100 < prompts.count(prompt) < 200 for prompt in PROMPTS} == dict.fromkeys(PROMPTS, True)


def test_challenge_is_off_by_default() -> None:
    visit = Watched(liveness=LivenessSettings()).looks_straight()
    assert (visit.outcome, visit.asked) == ("granted", [])


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[Landmarks, dict[str, Any]]]:
    """Draw movements with frames of all kinds in between."""
    frames: list[tuple[Landmarks, dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 8))):
        act = draw(st.sampled_from([*PROMPTS, *PROMPTS, "still", "still", "odd"]))
        change: dict[str, Any] = {}
        if act == "odd":
            change = draw(st.sampled_from([{"label": None}, {"label": "ben"}, {"is_alone": False}, {"quality": "blurred"}]))
        movement = turn(HEAD, act, draw(st.floats(5, 40))) if act in PROMPTS else [view(HEAD)] * draw(st.integers(1, 6))
        frames += [(points, change) for points in movement]
    return frames


@settings(max_examples=60)
@given(scripts(), st.lists(st.sampled_from(list(PROMPTS)), min_size=2, max_size=2))
def test_grant_needs_every_movement_that_was_asked_for(frames: list[Any], prompts: list[str]) -> None:
    visit = Watched(*prompts).looks_straight()
    seen: list[Relief | None] = []
    for points, change in frames:
        visit.sees(points, **change)
        seen.append(relief(points))
        if visit.outcome is not None:
            break
    if visit.outcome == "granted":
        rest = relief(view(HEAD))
        assert rest is not None
        assert visit.asked == prompts
        for prompt in prompts:
            moves = [np.dot(found.moved(rest), ASKED.direction(prompt)) for found in seen if found is not None]
            assert sum(move >= 0.8 * ASKED.min_turn for move in moves) >= 2
        assert all(
            change.get("label", "anna") in ("anna", None) and change.get("is_alone", True) for _, change in frames[: len(seen)]
        )


@pytest.mark.parametrize(
    "change", [{"turns": 0}, {"turns": 11}, {"challenge_seconds": 0.5}, {"min_turn": 0.0}, {"min_turn": 1.0}]
)
def test_invalid_settings_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(change))):
        LivenessSettings(**change)


def test_face_with_a_low_liveness_score_is_denied_without_a_prompt() -> None:
    visit = Watched(live_threshold=0.5).looks_straight(live=0.4)
    assert (visit.outcome, visit.asked) == (PRESENTATION_ATTACK, [])
    late = Watched(liveness=replace(ASKED, turns=1), live_threshold=0.5).looks_straight(live=0.6).turns("left", live=0.1)
    assert late.looks_straight(live=0.1).outcome == PRESENTATION_ATTACK, "the score counts again after the challenge"
