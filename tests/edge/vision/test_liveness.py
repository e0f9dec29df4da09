"""Measurements that distinguish a head from a picture of one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from edge.decision.challenge import PROMPTS, LivenessSettings
from edge.vision.liveness import relief
from tests.fixtures.heads import HEAD, Landmarks, hands, photographs, turn, view

ASKED = LivenessSettings(challenge=True)


@given(photographs(), hands())
def test_relief_of_a_flat_picture_is_the_same_in_every_view(picture: Landmarks, hold: Any) -> None:
    held, plain = relief(hold(picture)), relief(picture)
    assert held is not None
    assert plain is not None
    assert math.hypot(*held.moved(plain)) < 1e-3


@given(st.integers(0, 2**32))
def test_relief_is_invariant_under_homographies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.eye(3) + rng.uniform(-0.4, 0.4, (3, 3))
    face = HEAD[:, :2] + (0, -0.5)
    mapped = np.column_stack([face, np.ones(5)]) @ matrix.T
    assume(mapped[:, 2].min() > 0.2 and np.linalg.det(matrix[:2, :2]) > 0.1)
    one, other = relief(200 * mapped[:, :2] / mapped[:, 2:]), relief(200 * face)
    assume(one is not None)  # upside down, or seen from behind
    assert one is not None
    assert other is not None
    assert math.hypot(*one.moved(other)) < 1e-2


def test_relief_of_a_head_moves_when_it_turns() -> None:
    rest = relief(view(HEAD))
    assert rest is not None
    for prompt in PROMPTS:
        for degrees, at_least in ((15, 0.08), (30, 0.15)):
            turned = relief(turn(HEAD, prompt, degrees)[3])
            assert turned is not None
            assert np.dot(turned.moved(rest), ASKED.direction(prompt)) > at_least


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6) | st.just(math.nan)] * 2), min_size=5, max_size=5))
def test_relief_of_any_points_is_none_or_finite(points: list[tuple[float, float]]) -> None:
    found = relief(np.array(points))
    assert found is None or all(map(math.isfinite, found))
