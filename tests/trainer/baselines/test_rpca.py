"""RPCA: it recovers a planted matrix and equals an independent solver."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest

from edge.errors import ParameterError, TrainingError
from tests.fixtures.small import ONLY_TWO_FEATURES, assert_sklearn_accepts, vectors, yale_accuracy
from trainer.baselines.rpca import MAX_ITERATIONS, RPCA, rpca
from trainer.types import Array

pytestmark = pytest.mark.slow


def planted(seed: int, d: int, n: int, rank: int = 4, share: float = 0.05) -> tuple[Array, Array]:
    """Return A of low rank, and E with large values in a share of the entries."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(d, rank)) @ rng.normal(size=(rank, n))
    return A, np.where(rng.random((d, n)) < share, rng.uniform(-10, 10, (d, n)), 0)


@pytest.mark.parametrize(("d", "n"), [(120, 80), (60, 140)])
def test_planted_matrix_is_recovered(d: int, n: int) -> None:
    A, E = planted(d, d, n)
    found, iterations = rpca(A + E, 1 / np.sqrt(max(d, n)))
    assert np.linalg.norm(found - A) < 1e-4 * np.linalg.norm(A)
    assert np.linalg.matrix_rank(found) == 4
    assert 1 < iterations < MAX_ITERATIONS


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_result_equals_an_independent_solver(ridge: float) -> None:
    X = np.add(*planted(1, 10, 8, rank=2, share=0.2)) / 10
    lam = 0.4
    A = cvxpy.Variable(X.shape)
    cost = cvxpy.normNuc(A) + lam * cvxpy.norm1(cvxpy.vec(X - A, order="F")) + ridge * cvxpy.sum_squares(A)
    cvxpy.Problem(cvxpy.Minimize(cost)).solve(solver=cvxpy.SCS, eps=1e-8)
    found, _ = rpca(X, lam, ridge=ridge, rho=1.02, tol=1e-8)
    expected = np.array(A.value)
    assert np.abs(expected).max() > 0.1
    assert np.abs(found - expected).max() < 1e-3


def test_wrong_entries_of_training_samples_are_removed() -> None:
    """Two classes in planes; each sample has a few large wrong entries."""
    rng = np.random.default_rng(0)
    planes = rng.normal(size=(2, 60, 2))
    y = np.repeat([0, 1], 20)
    clean = np.array([planes[c] @ rng.normal(size=2) for c in y])
    X = clean + np.where(rng.random(clean.shape) < 0.05, 8 * rng.choice([-1, 1], clean.shape), 0)
    model = RPCA().fit(X, y)
    unit = clean / np.linalg.norm(clean, axis=1, keepdims=True)
    assert np.abs(np.sum(model.D_.T * unit, axis=1)).min() > 0.99
    assert np.linalg.matrix_rank(model.D_, tol=1e-3) == 4
    assert model.score(clean, y) == 1


def test_held_out_samples_are_recognised() -> None:
    X, y = vectors()
    assert RPCA(lam=2.0).fit(X[::2], y[::2]).score(X[1::2], y[1::2]) == 1


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(RPCA(lam=2.0), ONLY_TWO_FEATURES)


def test_invalid_or_useless_lam_is_rejected() -> None:
    X, y = vectors()
    with pytest.raises(ParameterError, match="lam"):
        RPCA(lam=0).fit(X, y)
    with pytest.raises(TrainingError, match="larger lam"):
        RPCA(lam=1e-3).fit(X, y)


def test_faces_of_yale_b_are_recognised() -> None:
    assert yale_accuracy(lambda spec: RPCA(lam=1.0, features=spec)) > 0.7
