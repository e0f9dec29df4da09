"""Confidence and margin of score vectors."""

from __future__ import annotations

import numpy as np

from edge.vision.confidence import score_confidence, score_margin


def test_confidence_and_margin_are_relative_to_the_norm() -> None:
    scores = np.array([[0.3, 0.4, 0.0], [-1.0, -2.0, -2.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(score_confidence(scores), [0.8, -1 / 3, 0])
    np.testing.assert_allclose(score_margin(scores), [0.2, 1 / 3, 0])
    np.testing.assert_allclose(score_confidence(1000 * scores), score_confidence(scores))
    assert float(score_confidence((3.0, 4.0))) == 0.8
    assert float(score_margin((3.0, 4.0))) == 0.2


def test_blank_scores_have_no_confidence() -> None:
    assert score_confidence([1e-12, 0.0]) < 1e-5
