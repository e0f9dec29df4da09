"""LRSI: its objective falls, classes become incoherent, and SRC works in their subspace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge.errors import ParameterError
from tests.fixtures.small import ONLY_TWO_FEATURES, assert_sklearn_accepts, vectors
from trainer.baselines.rpca import LRSI, lrsi, rpca
from trainer.types import Array

pytestmark = pytest.mark.slow


def similar_classes(seed: int = 0) -> tuple[Array, Array]:
    """Return (d, n), unit columns of three classes with a common direction, like faces."""
    X, labels = vectors(seed, classes=3, each=6)
    X = X + 2 * np.random.default_rng(seed + 50).normal(size=X.shape[1])
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).T, labels


def incoherence(A: Array, labels: Array) -> float:
    """Return sum_{i<j} |A_j'A_i|_F^2."""
    different = labels[:, None] != labels
    return float(np.square(A.T @ A)[different].sum() / 2)


def test_objective_falls() -> None:
    """The objective with the bound |A_j|_F |A_i|_F instead of the incoherence."""
    X, labels = similar_classes()

    def objective(rounds: int) -> float:
        A = lrsi(X, labels, lam=0.4, eta=0.02, rounds=rounds, tol=1e-7)
        sizes = np.array([np.square(A[:, labels == c]).sum() for c in range(3)])
        nuclear = sum(np.linalg.norm(A[:, labels == c], "nuc") for c in range(3))
        return float(nuclear + 0.4 * np.abs(X - A).sum() + 0.02 * (sizes.sum() ** 2 - np.square(sizes).sum()) / 2)

    falls = np.diff([objective(rounds) for rounds in range(6)])
    assert falls[0] < -1e-3
    assert (falls < 1e-4).all()


def test_classes_become_incoherent() -> None:
    X, labels = similar_classes()
    values = [incoherence(lrsi(X, labels, lam=0.4, eta=eta), labels) for eta in (1e-6, 0.05, 0.5)]
    assert values[0] > 1.05 * values[1] > 1.05**2 * values[2]


def test_without_incoherence_each_class_is_rpca() -> None:
    X, labels = similar_classes()
    A = lrsi(X, labels, lam=0.4, eta=1e-12, tol=1e-7)
    for c in range(3):
        assert np.allclose(A[:, labels == c], rpca(X[:, labels == c], 0.4)[0], atol=1e-4)


@pytest.mark.parametrize("components", [None, 5])
def test_held_out_samples_are_recognised(components: int | None) -> None:
    X, y = vectors()
    model = LRSI(components=components).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) == 1
    P = model.projection_
    assert np.allclose(P.T @ P, np.eye(P.shape[1]))
    assert P.shape[1] == (components or 16)


def test_atoms_are_the_projected_low_rank_samples() -> None:
    X, y = vectors()
    model = LRSI(lam=2.0, incoherence=0.1).fit(X, y)
    samples = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
    A = lrsi(samples, y, lam=2 / np.sqrt(30), eta=0.1)
    assert np.linalg.norm(A - samples) > 0.1 * np.linalg.norm(samples)
    atoms = model.projection_.T @ A
    assert np.abs(model.D_ - atoms / np.linalg.norm(atoms, axis=0)).max() < 1e-5


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(LRSI(), ONLY_TWO_FEATURES)


@pytest.mark.parametrize("wrong", [{"lam": -1.0}, {"incoherence": 0.0}, {"components": 0}, {"rounds": 0}])
def test_invalid_parameters_are_rejected(wrong: dict[str, Any]) -> None:
    X, y = vectors()
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        LRSI(**wrong).fit(X, y)
