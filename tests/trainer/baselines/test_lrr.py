"""LRR: the noiseless case has a closed form; other cases are compared with an independent solver."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest

from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, minimiser, objective, vectors
from trainer.baselines.lrr import LRR, represent
from trainer.method.coding import Coder

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("error", ["l1", "l21"])
@pytest.mark.parametrize("rank", [3, 6])
def test_noiseless_case_is_the_shape_interaction_matrix(error: str, rank: int) -> None:
    """X = XZ with the smallest |Z|_*: Z = V_r V_r' of X = U_r S_r V_r'."""
    X = dictionary(0, d=30, m=14, rank=rank)
    V = np.linalg.svd(X)[2][:rank].T
    result = represent(X, X, lam=1e3, error=error, rho=1.05, tol=1e-7, max_iterations=2000)
    assert result.converged
    assert np.abs(result.Z - V @ V.T).max() < 1e-4
    assert np.abs(result.E).max() < 1e-5


@pytest.mark.parametrize("error", ["l1", "l21"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_representation_equals_an_independent_solver(error: str, beta: float) -> None:
    D = dictionary(0, d=12, m=8)
    X = faces(0, D, n=7)
    lam = 0.4 if error == "l1" else 1.5
    weights = np.random.default_rng(0).random((8, 7)) * beta
    Z = cvxpy.Variable((8, 7))
    rest = X - D @ Z
    size = cvxpy.sum(cvxpy.abs(rest)) if error == "l1" else cvxpy.sum(cvxpy.norm(rest, 2, axis=0))
    cost = cvxpy.normNuc(Z) + lam * size + cvxpy.sum(cvxpy.multiply(weights, cvxpy.abs(Z)))
    optimum, best = minimiser(cost, Z)
    result = represent(X, D, lam=lam, error=error, R=weights if beta else None, rho=1.02, tol=1e-6)
    assert result.converged
    assert abs(objective(X, D, result.Z, lam, error, weights) / best - 1) < 1e-4
    assert np.abs(result.Z - optimum).max() < 1e-2


@pytest.mark.parametrize("error", ["l1", "l21"])
def test_default_schedule_is_close_to_the_optimum(error: str) -> None:
    D = dictionary(2)
    X = faces(2, D, n=30)
    weights = np.full((24, 30), 0.02)
    lam = 0.3 if error == "l1" else 2.0
    quick = represent(X, D, lam=lam, error=error, R=weights)
    slow = represent(X, D, lam=lam, error=error, R=weights, rho=1.02, tol=1e-6, max_iterations=2000)
    assert quick.converged
    assert slow.converged
    assert quick.residuals[-1].max() < 1e-4 < quick.residuals[0].max()
    assert np.abs(X - D @ quick.Z - quick.E).max() < 1e-4
    best = objective(X, D, slow.Z, lam, error, weights)
    assert best * (1 - 1e-4) < objective(X, D, quick.Z, lam, error, weights) < best * 1.03
    assert not represent(X, D, lam=lam, max_iterations=3).converged


def test_zero_weights_equal_no_weights() -> None:
    D = dictionary(3)
    X = faces(3, D)
    without = represent(X, D, lam=0.3, rho=1.02, tol=1e-6, max_iterations=2000).Z
    zero = represent(X, D, lam=0.3, R=np.zeros((24, 6)), rho=1.02, tol=1e-6, max_iterations=2000).Z
    assert np.abs(without - zero).max() < 2e-3


@pytest.mark.parametrize("error", ["l1", "l21"])
@pytest.mark.parametrize("classifier_codes", ["coder", "training"])
def test_held_out_samples_are_recognised(error: str, classifier_codes: str) -> None:
    X, y = vectors()
    held_out = np.arange(len(y)) % 2 == 1
    model = LRR(error=error, classifier_codes=classifier_codes).fit(X[~held_out], y[~held_out])
    assert model.score(X[held_out], y[held_out]) == 1


def test_code_solves_problem_2_with_a_weight_for_the_size() -> None:
    X, y = vectors(d=36)
    model = LRR(lam=3.0).fit(X, y)
    assert model.coding.lam == pytest.approx(0.5)
    unit = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
    assert np.array_equal(model.code(unit), Coder(model.D_.astype(np.float32), model.coding).code(unit))
    assert LRR(lam=3.0, error="l21").fit(X, y).coding.lam == 3.0


@pytest.mark.parametrize("error", ["l1", "l21"])
def test_training_codes_solve_problem_2(error: str) -> None:
    X, y = vectors()
    model = LRR(lam=2.0, error=error, classifier_codes="training").fit(X, y)
    unit = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
    lam = 2 / np.sqrt(30) if error == "l1" else 2.0
    assert np.abs(model.codes_ - represent(unit, model.D_, lam=lam, error=error).Z).max() < 1e-9


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(LRR(classifier_codes="training"))
