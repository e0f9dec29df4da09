"""SLRR as printed: its iteration equals the printed updates, goes to the optimum, and K-SVD finds the span of each class."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cvxpy
import numpy as np
import pytest

from edge.errors import ParameterError
from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, minimiser, vectors
from trainer.baselines import slrr_printed
from trainer.baselines.slrr import SLRR
from trainer.baselines.slrr_printed import learn, represent
from trainer.types import Array

pytestmark = pytest.mark.slow
WEIGHTS: dict[str, Any] = {"lam": 0.5, "beta": 0.1, "alpha": 0.3}


def problem() -> tuple[Array, Array, Array]:
    D = dictionary(0, d=12, m=6)
    X = faces(0, D, n=5)
    return X, D, (np.arange(6)[:, None] // 3 == np.array([0, 0, 0, 1, 1])).astype(float)


@pytest.mark.parametrize("structure", [True, False])
def test_slow_growth_of_the_penalty_ends_at_the_optimum(structure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, D, Q = problem()
    lam, beta, alpha = 0.5, 0.1, 0.3 if structure else 0.0
    Z = cvxpy.Variable(Q.shape)
    cost = cvxpy.normNuc(Z) + lam * cvxpy.sum(cvxpy.abs(X - D @ Z)) + beta * cvxpy.sum(cvxpy.abs(Z))
    expected, _ = minimiser(cost + alpha * cvxpy.sum_squares(Z - Q) if structure else cost, Z)

    def gap() -> float:
        weights: dict[str, Any] = {"Q": Q, "alpha": alpha} if structure else {}
        return float(np.abs(represent(X, D, lam=lam, beta=beta, **weights).Z - expected).max())

    published = gap()
    for name, value in (("MU0", 0.1), ("RHO", 1.002), ("TOLERANCE", 1e-7), ("MAX_ITERATIONS", 8000)):
        monkeypatch.setattr(slrr_printed, name, value)
    assert gap() < 1e-3 < published, "the published schedule ends before the optimum"


def test_iterations_equal_the_printed_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference keeps Y and M as they are printed, and uses an SVD."""
    X, D, Q = problem()
    lam, beta, alpha = WEIGHTS["lam"], WEIGHTS["beta"], WEIGHTS["alpha"]
    t, mu = 1.02 * (float(np.linalg.norm(D, 2)) ** 2 + 1), 1e-3
    Z, V, M = (np.zeros(Q.shape) for _ in range(3))
    E, Y = np.zeros_like(X), np.zeros_like(X)

    def shrunk(A: Array, by: float) -> Array:
        return np.sign(A) * np.maximum(np.abs(A) - by, 0)

    for _ in range(80):
        U, s, Vt = np.linalg.svd(Z + (D.T @ (X - D @ Z - E + Y / mu) - (Z - V + M / mu)) / t, full_matrices=False)
        Z = U @ np.diag(shrunk(s, 1 / (mu * t))) @ Vt
        V = shrunk((2 * alpha * Q + M + mu * Z) / (2 * alpha + mu), beta / (2 * alpha + mu))
        E = shrunk(X - D @ Z + Y / mu, lam / mu)
        Y, M, mu = Y + mu * (X - D @ Z - E), M + mu * (Z - V), min(1e6, 1.1 * mu)
    monkeypatch.setattr(slrr_printed, "MAX_ITERATIONS", 80)
    found = represent(X, D, Q, **WEIGHTS)
    assert found.iterations == 80
    assert np.abs(Z).max() > 0.1
    for ours, theirs in ((found.Z, Z), (found.E, E)):
        assert np.abs(ours - theirs).max() < 1e-9


def test_learning_moves_the_dictionary_and_lowers_the_error() -> None:
    X, D, Q = problem()
    runs = [learn(X, D, Q, lam=2.0, beta=0.01, alpha=0.1, rounds=rounds) for rounds in (0, 2, 8)]
    assert np.array_equal(runs[0].D, D)
    errors = [float(np.abs(run.E).sum()) for run in runs]
    assert all(late < early for early, late in pairwise(errors)), errors
    assert all(run.converged and run.residuals[-1].max() < 1e-3 for run in runs)


def test_faces_are_coded_together_and_not_on_a_device() -> None:
    X, y = vectors()
    model = SLRR(3, together=True, lam=3.0, beta=0.1).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) == 1
    assert np.array_equal(model.codes_, model.result_.Z)
    alone = np.vstack([model.decision_function(X[[i]]) for i in range(4)])
    assert np.abs(model.decision_function(X)[:4] - alone).max() > 1e-3
    with pytest.raises(ParameterError, match="one face at a time"):
        _ = model.coding


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    # K-SVD of five atoms in two dimensions, without a limit of sparsity, gives arbitrary atoms.
    assert_sklearn_accepts(SLRR(together=True), {"check_classifiers_train": "these data have two features"})
