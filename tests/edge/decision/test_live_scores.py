"""The scores of the liveness model in a visit: the median of the recognised frames decides."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from edge.decision.door import Decision, Door
from edge.decision.reasons import OUTSIDE_HOURS, PRESENTATION_ATTACK
from edge.decision.visit import Sighting

LABELS, THRESHOLD = ("anna", "ben"), 0.8
WHEN = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


class Closed:
    """A door list that allows no one."""

    def refusal(self, label: str, when: datetime) -> str | None:
        return OUTSIDE_HOURS


def watch(a_door: Door, *sightings: Sighting) -> list[Decision]:
    steps = (a_door.step(now=own.captured, when=WHEN, seen={1: own}) for own in sightings)
    return [decision for step in steps for decision in step.decisions]


def live_door(threshold: float | None = 0.5) -> Door:
    return Door(LABELS, THRESHOLD, live_threshold=threshold)


def live_frames(*scores: float | None) -> list[Sighting]:
    """Frames that recognise anna, with these scores."""
    unit = np.array([0.9, -math.sqrt(1 - 0.81)])
    return [
        Sighting(captured=1 + i / 10, label="anna", confidence=0.9, margin=0.3, scores=unit, live=score)
        for i, score in enumerate(scores)
    ]


@pytest.mark.parametrize("scores", [(0.5, 0.5, 0.5), (0.0, 0.9, 0.9), (1.0, 0.0, 0.5)])
def test_median_of_the_liveness_scores_grants(scores: tuple[float, ...]) -> None:
    (decision,) = watch(live_door(), *live_frames(*scores))
    assert decision.outcome == "granted"


@pytest.mark.parametrize("scores", [(0.49, 0.49, 0.49), (1.0, 0.4, 0.0), (0.9, None, None), (None, None, None)])
def test_low_or_missing_liveness_scores_deny(scores: tuple[float | None, ...]) -> None:
    (decision,) = watch(live_door(), *live_frames(*scores))
    assert (decision.outcome, decision.reason, decision.label) == ("denied", PRESENTATION_ATTACK, "anna")


@pytest.mark.parametrize("score", [math.nan, math.inf, -0.1, 1.1])
def test_invalid_liveness_score_makes_a_frame_unusable(score: float) -> None:
    assert watch(live_door(), *live_frames(*[score] * 8)) == []


def test_liveness_scores_do_not_matter_without_a_liveness_model() -> None:
    (decision,) = watch(live_door(None), *live_frames(0.0, 0.0, 0.0))
    assert decision.outcome == "granted"


def test_denied_picture_is_not_granted_while_it_stays() -> None:
    found = watch(live_door(), *live_frames(*[0.1] * 3, *[1.0] * 20))
    assert [decision.reason for decision in found] == [PRESENTATION_ATTACK]


def test_door_list_denies_before_the_liveness_model() -> None:
    a_door = Door(LABELS, THRESHOLD, live_threshold=0.5, door_list=Closed())
    assert [decision.reason for decision in watch(a_door, *live_frames(0.0, 0.0, 0.0))] == [OUTSIDE_HOURS]
