"""LLC: its codes are optimal, affine and local."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import ParameterError
from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, minimiser, vectors, yale_accuracy
from trainer.baselines.llc import LLC, local_codes

BETA = 1e-2


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), neighbours=st.integers(1, 30))
def test_optimality_conditions_hold(seed: int, neighbours: int) -> None:
    """The codes of the nearest atoms have the sum 1, and the gradient is the same for all of them."""
    D = dictionary(seed)
    X = faces(seed, D)
    Z = local_codes(D, X, neighbours, BETA)
    k = min(neighbours, D.shape[1])
    np.testing.assert_allclose(Z.sum(axis=0), 1, atol=1e-9)
    for x, z in zip(X.T, Z.T, strict=True):
        near = np.argsort(np.linalg.norm(D - x[:, None], axis=0))[:k]
        assert set(np.flatnonzero(z)) <= set(near)
        apart = D[:, near] - x[:, None]
        C = apart.T @ apart
        slope = (C + BETA * np.trace(C) * np.eye(k)) @ z[near]
        np.testing.assert_allclose(slope, slope.mean(), atol=1e-9)


def test_code_equals_an_independent_solver() -> None:
    D = dictionary(2)
    x = faces(2, D, 1)[:, 0]
    near = np.argsort(np.linalg.norm(D - x[:, None], axis=0))[:5]
    w = cvxpy.Variable(5)
    trace = np.sum((D[:, near] - x[:, None]) ** 2)
    penalty = 1e6 * cvxpy.square(cvxpy.sum(w) - 1)
    expected, _ = minimiser(cvxpy.sum_squares(x - D[:, near] @ w) + BETA * trace * cvxpy.sum_squares(w) + penalty, w)
    np.testing.assert_allclose(local_codes(D, x[:, None], 5, BETA)[near, 0], expected, atol=1e-4)


def test_atom_codes_itself() -> None:
    D = dictionary(0)
    np.testing.assert_allclose(local_codes(D, D), np.eye(24), atol=1e-3)


def test_dictionary_holds_all_or_some_samples() -> None:
    X, y = vectors()
    whole, some = LLC().fit(X, y), LLC(3, neighbours=4).fit(X, y)
    assert whole.D_.shape == (30, 32)
    assert some.D_.shape == (30, 12)
    assert whole.score(*vectors()) == 1
    assert some.score(X, y) > 0.9


@pytest.mark.parametrize("parameters", [{"neighbours": 0}, {"beta": 0}, {"eta": -1}, {"atoms_per_class": 0}])
def test_invalid_parameters_are_rejected(parameters: dict[str, Any]) -> None:
    X, y = vectors()
    with pytest.raises(ParameterError, match=next(iter(parameters))):
        LLC(**parameters).fit(X, y)


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(LLC())


@pytest.mark.slow
def test_faces_of_yale_b_are_recognised() -> None:
    assert yale_accuracy(lambda spec: LLC(neighbours=30, features=spec)) > 0.7
