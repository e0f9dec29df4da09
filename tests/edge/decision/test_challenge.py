"""The liveness challenge: no movement of a flat picture passes it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge import settings as configuration
from edge.decision.challenge import PROMPTS, LivenessSettings, picture
from edge.decision.door import Decision, Door
from edge.decision.track import LEFT, MIXED
from edge.decision.visit import Sighting
from edge.errors import ParameterError
from edge.vision.liveness import Relief, Surface, relief
from tests.fixtures.heads import HEAD, Landmarks, hands, photographs, turn, view

WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
FPS = 10
ASKED = LivenessSettings(challenge=True)


def sighting(landmarks: Landmarks | None, captured: float, label: str | None = "anna", **changes: Any) -> Sighting:
    scores = (1.0, 0.0) if label != "ben" else (0.0, 1.0)
    found = None if landmarks is None else relief(landmarks)
    return Sighting(captured=captured, label=label, confidence=0.9, margin=0.9, scores=scores, relief=found, **changes)


class Watched:
    """A door and what it sees of one visit, frame by frame."""

    def __init__(self, *prompts: str, liveness: LivenessSettings = ASKED, **options: Any) -> None:
        order = iter(itertools.cycle(prompts or ("left",)))
        self.door = Door(("anna", "ben"), 0.5, liveness=liveness, draw=lambda choices: next(order), **options)
        self.now, self.asked, self.decisions = 0.0, list[str](), list[Decision]()

    def sees(self, *landmarks: Landmarks | None, visit: int = 1, late: float = 0.0, **changes: Any) -> Watched:
        for points in landmarks:
            self.now += 1 / FPS
            seen = {visit: sighting(points, self.now, **changes)}
            self.decisions += self.door.step(now=self.now + late, when=WHEN, seen=seen)
            self.asked += [prompt for _, prompt in self.door.asked()]
        return self

    def looks_straight(self, frames: int = 3, **changes: Any) -> Watched:
        return self.sees(*[view(HEAD)] * frames, **changes)

    def turns(self, prompt: str, degrees: float = 30.0, **changes: Any) -> Watched:
        """Out and back."""
        return self.sees(*turn(HEAD, prompt, degrees), **changes)

    @property
    def outcome(self) -> str | None:
        assert len(self.decisions) <= 1
        return next((d.reason if d.outcome == "denied" else "granted" for d in self.decisions), None)


@pytest.mark.parametrize("prompts", list(itertools.product(PROMPTS, repeat=2)))
def test_a_head_that_does_what_is_asked_is_let_in(prompts: tuple[str, str]) -> None:
    visit = Watched(*prompts).looks_straight()
    assert (visit.outcome, visit.asked) == (None, [prompts[0]])
    visit.turns(prompts[0])
    assert (visit.outcome, visit.asked) == (None, list(prompts)), "the second is not told before the first is done"
    visit.turns(prompts[1]).looks_straight()
    assert (visit.outcome, visit.asked) == ("granted", list(prompts))
    assert visit.decisions[0].label == "anna"


@settings(deadline=None)
@given(photographs(), st.lists(hands(), min_size=20, max_size=60), st.sampled_from(list(PROMPTS)))
def test_no_movement_of_a_flat_picture_ever_meets_it(picture: Landmarks, holds: list[Any], prompt: str) -> None:
    visit = Watched(prompt, liveness=replace(ASKED, turns=1)).sees(*[picture] * 3)
    for hold in holds:
        visit.sees(*[hold(picture)] * 2)
    visit.sees(*[picture] * 60)
    assert visit.outcome == "challenge not met: too late"


@pytest.mark.parametrize(("asked", "done"), [pair for pair in itertools.product(PROMPTS, repeat=2) if pair[0] != pair[1]])
def test_another_movement_is_denied_at_once(asked: str, done: str) -> None:
    assert Watched(asked).looks_straight().turns(done).outcome == "challenge not met: another movement"


def test_looking_up_is_another_movement() -> None:
    up = [view(HEAD, pitch=-30)] * 3
    assert Watched("down").looks_straight().sees(*up).outcome == "challenge not met: another movement"


def test_in_a_mirror_left_is_right() -> None:
    mirrored = replace(ASKED, turns=1, mirrored=True)
    assert Watched("left", liveness=mirrored).looks_straight().turns("right").looks_straight().outcome == "granted"
    assert Watched("left", liveness=mirrored).looks_straight().turns("left").outcome == "challenge not met: another movement"


def test_half_of_it_is_not_enough() -> None:
    visit = Watched().looks_straight().turns("left").looks_straight(30)
    assert visit.outcome is None
    assert visit.looks_straight(40).outcome == "challenge not met: too late"


def test_a_small_turn_and_a_slip_of_the_detector_are_nothing() -> None:
    slip = [view(HEAD), view(HEAD, yaw=40), view(HEAD)]
    visit = Watched().looks_straight().turns("left", 10).sees(*slip).looks_straight()
    assert visit.outcome is None
    assert visit.asked == ["left"]
    wrong = [view(HEAD), view(HEAD, yaw=-40), view(HEAD)]
    assert visit.sees(*wrong).looks_straight().outcome is None


def test_a_head_that_does_not_come_back_is_not_let_in() -> None:
    visit = Watched(liveness=replace(ASKED, turns=1)).looks_straight().sees(*[view(HEAD, yaw=30)] * 50)
    assert visit.outcome is None
    assert visit.sees(*[view(HEAD, yaw=30)] * 20).outcome == "challenge not met: too late"


def test_whoever_is_not_recognised_again_is_not_let_in() -> None:
    once = replace(ASKED, turns=1)
    visit = Watched(liveness=once).looks_straight().sees(*turn(HEAD, "left")[:4]).sees(*turn(HEAD, "left")[4:], label=None)
    assert visit.looks_straight(10, label=None).outcome is None
    assert visit.looks_straight(1).outcome is None, "one look is not enough, as ever"
    assert visit.looks_straight(2).outcome == "granted"


def test_a_photo_that_is_taken_away_while_a_stranger_turns_the_head() -> None:
    once = replace(ASKED, turns=1)
    visit = Watched(liveness=once).looks_straight().turns("left", label=None).looks_straight(10)
    assert visit.outcome is None
    assert visit.looks_straight(50).outcome == "challenge not met: too late"
    visit = Watched(liveness=once).looks_straight().sees(*turn(HEAD, "left")[:2]).sees(*turn(HEAD, "left")[2:], label=None)
    assert visit.looks_straight().outcome == "granted", "one look on the way is enough"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"label": "ben"}, "somebody else"), ({"is_alone": False}, "not alone")],
)
def test_one_frame_with_somebody_else_is_enough_to_deny(change: dict[str, Any], reason: str) -> None:
    for when in range(1, 9):
        visit = Watched().looks_straight().sees(*turn(HEAD, "left")[:when])
        assert visit.looks_straight(1, **change).outcome == f"challenge not met: {reason}"
        assert visit.turns("left").turns("left").looks_straight().outcome == f"challenge not met: {reason}"


def test_two_people_are_asked_for_nothing_until_one_is_alone() -> None:
    visit = Watched().looks_straight(20, is_alone=False)
    assert (visit.outcome, visit.asked) == (None, [])
    assert visit.looks_straight(1).asked == ["left"]
    assert Watched().looks_straight(70, is_alone=False).outcome == "challenge not met: too late"


def test_whoever_looks_aside_is_asked_for_nothing() -> None:
    visit = Watched().sees(*[view(HEAD, yaw=30)] * 20)
    assert (visit.outcome, visit.asked) == (None, [])
    assert visit.looks_straight(3).asked == ["left"]


def test_a_face_out_of_sight_for_half_a_second_may_be_another() -> None:
    visit = Watched().looks_straight()
    visit.now += 0.6
    assert visit.looks_straight(1).outcome == "challenge not met: lost from sight"


@pytest.mark.parametrize("how", [LEFT, MIXED])
def test_whoever_goes_away_is_denied_and_not_asked_for_something_else_soon(how: str) -> None:
    visit = Watched("left", "right").looks_straight()
    visit.decisions += visit.door.step(now=visit.now, when=WHEN, seen={}, gone={1: how})
    assert visit.outcome == "challenge not met: lost from sight"
    assert visit.decisions[0].label == "anna"
    visit.looks_straight(90, visit=2)
    assert visit.asked == ["left"]
    visit.door.step(now=visit.now, when=WHEN, seen={}, gone={2: LEFT})
    visit.now += 11
    assert visit.looks_straight(3, visit=3).asked == ["left", "right"]


def test_old_frames_meet_nothing() -> None:
    visit = Watched(liveness=replace(ASKED, turns=1)).looks_straight().turns("left", late=1.5)
    assert visit.looks_straight(3).outcome is None
    assert visit.turns("left").looks_straight().outcome == "granted"


def test_a_face_without_landmarks_meets_nothing() -> None:
    assert Watched().sees(*[None] * 70).outcome == "challenge not met: too late"
    assert Watched().looks_straight().sees(*[None] * 70).outcome == "challenge not met: too late"


def test_whom_the_list_refuses_is_not_asked_and_is_refused_at_the_end_too() -> None:
    refused = Watched(allows=lambda label, when: "outside hours").looks_straight()
    assert (refused.outcome, refused.asked) == ("outside hours", [])
    answers = iter([None, "outside hours"])
    late = Watched(liveness=replace(ASKED, turns=1), allows=lambda label, when: next(answers))
    assert late.looks_straight().turns("left").looks_straight().outcome == "outside hours"


def test_what_is_asked_cannot_be_foreseen() -> None:
    """By default. All pairs appear, each about as often as the others."""
    pairs = []
    for _ in range(450):
        door = Door(("anna", "ben"), 0.5, liveness=ASKED)
        for i in range(3):
            door.step(now=i, when=WHEN, seen={1: sighting(view(HEAD), i)})
        pairs += [prompt for _, prompt in door.asked()]
    assert {prompt: 100 < pairs.count(prompt) < 200 for prompt in PROMPTS} == dict.fromkeys(PROMPTS, True)


def test_off_by_default_and_then_nothing_changes() -> None:
    assert not configuration.parse(b"").liveness.challenge
    visit = Watched(liveness=LivenessSettings()).looks_straight()
    assert (visit.outcome, visit.asked) == ("granted", [])


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[Landmarks, dict[str, Any]]]:
    """Somebody who does this and that, with frames of all kinds in between."""
    frames: list[tuple[Landmarks, dict[str, Any]]] = []
    for _ in range(draw(st.integers(1, 8))):
        act = draw(st.sampled_from([*PROMPTS, *PROMPTS, "still", "still", "odd"]))
        change: dict[str, Any] = {}
        if act == "odd":
            change = draw(st.sampled_from([{"label": None}, {"label": "ben"}, {"is_alone": False}, {"quality": "blurred"}]))
        movement = turn(HEAD, act, draw(st.floats(5, 40))) if act in PROMPTS else [view(HEAD)] * draw(st.integers(1, 6))
        frames += [(points, change) for points in movement]
    return frames


@settings(deadline=None)
@given(scripts(), st.lists(st.sampled_from(list(PROMPTS)), min_size=2, max_size=2))
def test_a_grant_needs_every_movement_that_was_asked_for(frames: list[Any], prompts: list[str]) -> None:
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
            moves = [np.dot(found.moved(rest), ASKED.way(prompt)) for found in seen if found is not None]
            assert sum(move >= 0.8 * ASKED.min_turn for move in moves) >= 2
        assert all(
            change.get("label", "anna") in ("anna", None) and change.get("is_alone", True) for _, change in frames[: len(seen)]
        )


@pytest.mark.parametrize(
    "change", [{"turns": 0}, {"turns": 11}, {"challenge_seconds": 0.5}, {"min_turn": 0.0}, {"min_turn": 1.0}]
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(change))):
        LivenessSettings(**change)


def surfaces(ripple: float = 2.5, moves: float = 0.0, sides: int = 4) -> list[Surface]:
    at = np.array([100.0, 300, 50, 350])
    at[sides:] = np.nan
    return [Surface(ripple, 100.0, tuple(at + moves * i)) for i in range(5)]


def test_what_looks_like_a_picture() -> None:
    assert picture([]) is None
    assert picture(surfaces()) is None, "a window behind somebody stays where it is"
    assert picture(surfaces(moves=1.0)) == "looks like a picture: edges that move"
    assert picture(surfaces(moves=1.0, sides=2)) is None
    assert picture(surfaces(ripple=6.0, sides=0)) == "looks like a picture: ripples of a screen"
    assert picture([*surfaces()[:3], *surfaces(ripple=9.0)[:2]]) is None, "most of the frames must agree"


def test_who_looks_like_a_picture_is_denied_and_asked_for_nothing() -> None:
    visit = Watched().looks_straight(surface=surfaces(ripple=6.0)[0])
    assert (visit.outcome, visit.asked) == ("looks like a picture: ripples of a screen", [])
    late = Watched(liveness=replace(ASKED, turns=1)).looks_straight().turns("left", surface=surfaces(ripple=6.0)[0])
    assert late.looks_straight(surface=surfaces(ripple=6.0)[0]).outcome == "looks like a picture: ripples of a screen"
