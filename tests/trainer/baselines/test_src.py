"""SRC: its codes are optimal, its scores are class residuals, and it recognises covered faces."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import ParameterError
from tests.fixtures.small import (
    ONLY_TWO_FEATURES,
    assert_sklearn_accepts,
    dictionary,
    faces,
    minimiser,
    vectors,
    yale_accuracy,
)
from trainer.baselines.src import SRC, SRCCoding, scores, sparse_codes
from trainer.method.prox import soft_threshold
from trainer.types import Array

pytestmark = pytest.mark.slow


def coded(D: Array, X: Array, lam: float = 1e-3, iterations: int = 100, occlusion: bool = False) -> Array:
    coding = SRCCoding(lam=lam, iterations=iterations, occlusion=occlusion)
    Z = sparse_codes(D.astype(np.float32), X.astype(np.float32), coding)
    assert Z.dtype == np.float32
    return Z.astype(float)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), lam=st.sampled_from([1e-3, 1e-2, 0.1]), tall=st.booleans(), occlusion=st.booleans())
def test_optimality_conditions_hold(seed: int, lam: float, tall: bool, occlusion: bool) -> None:
    """D'(x - Dz - e) is lam sign(z) if z is not zero, else within +-lam."""
    D = dictionary(seed, 40, 24) if tall else dictionary(seed, 20, 30)
    X = faces(seed, D)
    Z = coded(D, X, lam, 2000, occlusion)
    rest = X - D @ Z
    slope = D.T @ (np.clip(rest, -lam, lam) if occlusion else rest)
    assert np.abs(slope).max() < 1.02 * lam + 1e-5
    some = np.abs(Z) > 1e-3
    assert some.any()
    np.testing.assert_allclose(slope[some], lam * np.sign(Z[some]), atol=0.02 * lam + 1e-5, rtol=0)


@pytest.mark.parametrize("occlusion", [False, True])
def test_code_equals_an_independent_solver(occlusion: bool) -> None:
    D, lam = dictionary(3), 0.02
    x = faces(3, D, 1)[:, 0]
    z = cvxpy.Variable(D.shape[1])
    e = cvxpy.Variable(len(D)) if occlusion else np.zeros(len(D))
    cost = cvxpy.sum_squares(x - D @ z - e) / 2 + lam * (cvxpy.norm1(z) + cvxpy.norm1(e))
    expected, best = minimiser(cost, z)
    found = coded(D, x[:, None], lam, 500, occlusion)[:, 0]
    np.testing.assert_allclose(found, expected, atol=2e-3)
    rest = x - D @ found
    covered = soft_threshold(rest, lam) if occlusion else np.zeros(len(D))
    reached = np.sum((rest - covered) ** 2) / 2 + lam * (np.abs(found).sum() + np.abs(covered).sum())
    assert reached < best + 1e-5


def test_default_iterations_are_enough() -> None:
    X, _ = vectors(d=60, each=12)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    D, T = rows[::2].T, rows[1::2].T

    def objective(Z: Array) -> Array:
        return ((T - D @ Z) ** 2).sum(axis=0) / 2 + 1e-3 * np.abs(Z).sum(axis=0)

    best = objective(coded(D, T, 1e-3, 3000))
    assert (objective(coded(D, T, 1e-3)) < 1.001 * best).all()
    assert (objective(coded(D, T, 1e-3, 5)) > 1.001 * best).any()


def test_explained_share_follows_from_the_residual() -> None:
    D, classes = dictionary(0), np.arange(24) % 3
    X, Z = faces(0, D), np.random.default_rng(0).normal(size=(24, 6))
    residuals = [np.linalg.norm(X - D[:, classes == c] @ Z[classes == c], axis=0) for c in range(3)]
    np.testing.assert_allclose(scores(D, 2 * X, 2 * Z, classes, SRCCoding()), 1 - np.square(residuals), atol=1e-10)


def test_covered_part_is_left_out_of_the_scores() -> None:
    """|x - e - D_c z_c| with e = S_lam(x - Dz), as a share of |x - e|."""
    D, classes = dictionary(0), np.arange(24) % 3
    X, Z = faces(0, D), 0.3 * np.random.default_rng(0).normal(size=(24, 6))
    seen = X - soft_threshold(X - D @ Z, 0.2)
    residuals = np.array([np.linalg.norm(seen - D[:, classes == c] @ Z[classes == c], axis=0) for c in range(3)])
    shares = scores(D, X, Z, classes, SRCCoding(lam=0.2, occlusion=True))
    np.testing.assert_allclose(shares, 1 - np.square(residuals / np.linalg.norm(seen, axis=0)), atol=1e-10)


def test_faces_are_coded_independently() -> None:
    D = dictionary(1)
    X = faces(1, D, 300)  # more than are coded at once
    Z = coded(D, X)
    assert Z.shape == (24, 300)
    np.testing.assert_allclose(coded(D, X[:, 299:]), Z[:, 299:], atol=1e-5)
    assert coded(D, X[:, :0]).shape == (24, 0)


def test_occlusion_recognises_covered_faces() -> None:
    """A third of the pixels shows another person, which misleads plain SRC."""
    rng = np.random.default_rng(0)
    people = rng.normal(size=(5, 90))
    y = np.repeat(np.arange(5), 6)
    X = people[y] + 0.2 * rng.normal(size=(30, 90))
    covered = X[1::2].copy()
    covered[:, :30] = 4 * people[(y[1::2] + 1) % 5][:, :30]
    right = {o: SRC(occlusion=o, lam=1e-2).fit(X[::2], y[::2]).score(covered, y[1::2]) for o in (False, True)}
    assert right[True] == 1 > right[False]


def test_dictionary_holds_all_or_some_samples() -> None:
    X, y = vectors()
    assert SRC().fit(X, y).D_.shape == (30, 32)
    some = SRC(3).fit(X, y)
    assert some.D_.shape == (30, 12)
    assert (np.bincount(some.atom_classes_) == 3).all()
    assert (some.W_.argmax(axis=0) == some.atom_classes_).all()
    assert some.coding == SRCCoding(lam=1e-3, iterations=100, occlusion=False)


@pytest.mark.parametrize("parameters", [{"lam": 0}, {"iterations": 0}, {"atoms_per_class": 0}])
def test_invalid_parameters_are_rejected(parameters: dict[str, Any]) -> None:
    X, y = vectors()
    with pytest.raises(ParameterError, match=next(iter(parameters))):
        SRC(**parameters).fit(X, y)


@pytest.mark.parametrize("estimator", [SRC(), SRC(2, occlusion=True)], ids=["srw", "srs, occlusion"])
def test_estimator_passes_the_checks_of_scikit_learn(estimator: SRC) -> None:
    assert_sklearn_accepts(estimator, ONLY_TWO_FEATURES)


def test_faces_of_yale_b_are_recognised() -> None:
    assert yale_accuracy(lambda spec: SRC(features=spec)) > 0.85
