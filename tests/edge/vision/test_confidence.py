"""Confidence and margin of score vectors."""

from __future__ import annotations

import numpy as np
import pytest

from edge.kit.manifest import ABSOLUTE, CONFIDENCES
from edge.vision.confidence import score_confidence, score_length, score_margin, score_norm


def test_confidence_and_margin_are_relative_to_the_norm() -> None:
    scores = np.array([[0.3, 0.4, 0.0], [-1.0, -2.0, -2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(score_confidence(scores), [0.8, -1 / 3, 0])
    np.testing.assert_allclose(score_margin(scores), [0.2, 1 / 3, 0])
    np.testing.assert_allclose(score_confidence(1000 * scores), score_confidence(scores))
    assert float(score_confidence((3.0, 4.0))) == 0.8
    assert float(score_margin((3.0, 4.0))) == 0.2


def test_blank_scores_have_no_confidence() -> None:
    assert score_confidence([1e-12, 0.0]) < 1e-5


def test_absolute_confidence_is_the_top_score_of_at_most_one() -> None:
    scores = np.array([[0.3, 0.4, 0.0], [-1.0, -2.0, -2.0], [1.7, 0.2, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(score_confidence(scores, ABSOLUTE), [0.4, -1, 1, 0])
    np.testing.assert_allclose(score_margin(scores, ABSOLUTE), [0.1, 1, 1.5, 0])
    np.testing.assert_allclose(score_length(scores[:2], ABSOLUTE), [0.5, 3])
    np.testing.assert_allclose(score_length(scores), 1)


@pytest.mark.parametrize("kind", CONFIDENCES)
def test_confidence_follows_from_direction_and_length(kind: str) -> None:
    scores = np.random.default_rng(0).normal(0, 0.6, (20, 5))
    unit = scores / score_norm(scores)[:, None]
    sized = unit * score_length(scores, kind)[:, None]
    np.testing.assert_allclose(np.minimum(sized.max(axis=1), 1), score_confidence(scores, kind))
