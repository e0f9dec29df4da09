"""The scores of the liveness model in a visit: the median of the recognised frames decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from edge.decision.door import Door
from edge.decision.reasons import OUTSIDE_HOURS, PRESENTATION_ATTACK
from edge.decision.visit import Sighting
from tests.edge.decision.test_door import LABELS, THRESHOLD, AnswerList, sure, watch


def live_door(threshold: float | None = 0.5) -> Door:
    return Door(LABELS, THRESHOLD, live_threshold=threshold)


def live_frames(*scores: float | None) -> list[Sighting]:
    return [replace(sure("anna", 1 + i / 10), live=score) for i, score in enumerate(scores)]


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
    a_door = Door(LABELS, THRESHOLD, live_threshold=0.5, door_list=AnswerList(OUTSIDE_HOURS))
    assert [decision.reason for decision in watch(a_door, *live_frames(0.0, 0.0, 0.0))] == [OUTSIDE_HOURS]
