"""SLRR: with a fixed D it equals an independent solver, codes are block-diagonal, and learning D lowers the objective."""

from __future__ import annotations

from typing import Any

import cvxpy
import numpy as np
import pytest

from edge.errors import ParameterError, TrainingError
from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, vectors
from trainer.baselines.lrrs import SparseCoding
from trainer.baselines.slrr import SLRR, slrr
from trainer.method.prox import column_norms
from trainer.types import Array

pytestmark = pytest.mark.slow


def objective(X: Array, D: Array, Z: Array, Q: Array, lam: float, beta: float, alpha: float) -> float:
    size = np.linalg.norm(Z, "nuc") + lam * np.abs(X - D @ Z).sum() + beta * np.abs(Z).sum()
    return float(size + alpha * np.square(Z - Q).sum())


def subspaces(seed: int = 0, classes: int = 3, each: int = 8, d: int = 30, rank: int = 3) -> tuple[Array, Array]:
    """Return (d, n), unit columns in a separate subspace for each class."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    bases = np.linalg.qr(rng.normal(size=(d, classes * rank)))[0].reshape(d, classes, rank)
    X = np.stack([bases[:, c] @ rng.normal(size=rank) for c in labels], axis=1)
    return X / column_norms(X), labels


def test_fixed_dictionary_equals_an_independent_solver() -> None:
    D = dictionary(0, d=12, m=6)
    X = faces(0, D, n=5)
    Q = (np.arange(6)[:, None] // 3 == np.array([0, 0, 0, 1, 1])).astype(float)
    weights: dict[str, Any] = {"lam": 0.5, "beta": 0.1, "alpha": 0.3}
    Z = cvxpy.Variable(Q.shape)
    cost = cvxpy.normNuc(Z) + weights["lam"] * cvxpy.sum(cvxpy.abs(X - D @ Z)) + weights["beta"] * cvxpy.sum(cvxpy.abs(Z))
    cost += weights["alpha"] * cvxpy.sum_squares(Z - Q)
    cvxpy.Problem(cvxpy.Minimize(cost)).solve(solver=cvxpy.SCS, eps=1e-8)
    found = slrr(X, D, Q, **weights, rounds=0, first_steps=3000)
    expected = np.array(Z.value)
    assert np.abs(expected).max() > 0.1
    assert np.abs(found.Z - expected).max() < 1e-4
    assert np.abs(X - D @ found.Z - found.E).max() < 1e-6
    assert found.residuals.max() < 1e-6


def test_codes_are_block_diagonal_on_separated_subspaces() -> None:
    X, labels = subspaces()
    atoms = np.arange(len(labels)) % 8 < 4
    Q = (labels[atoms, None] == labels).astype(float)
    # With this lam there is no error: an l1 error would leave the subspaces.
    weights: dict[str, Any] = {"lam": 50.0, "beta": 0.1, "alpha": 0.1}
    found = slrr(X, X[:, atoms], Q, **weights, rounds=0, first_steps=2000)
    assert (found.Z[Q == 0] == 0).all()
    assert np.abs(found.Z[Q == 1]).mean() > 0.05
    assert found.rank == 9
    learned = np.abs(slrr(X, X[:, atoms], Q, lam=10.0, beta=0.03, alpha=10.0).Z)  # D leaves the subspaces a little
    assert learned[Q == 0].sum() < 0.1 * learned.sum()


def test_learning_the_dictionary_lowers_the_objective() -> None:
    X, y = vectors()
    X = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
    atoms = np.arange(len(y)) % 8 < 3
    Q = (y[atoms, None] == y).astype(float)
    weights: dict[str, Any] = {"lam": 3.0, "beta": 0.03, "alpha": 1.0}
    runs = [slrr(X, X[:, atoms], Q, **weights, rounds=rounds, first_steps=100, steps=20) for rounds in (0, 2, 8)]
    values = [objective(X, run.D, run.Z, Q, **weights) for run in runs]
    assert values[0] > 1.1 * values[1] > values[2]


def test_float32_is_close_to_float64() -> None:
    X, labels = subspaces(1)
    atoms = np.arange(len(labels)) % 8 < 4
    Q = (labels[atoms, None] == labels).astype(float)
    weights: dict[str, Any] = {"lam": 3.0, "beta": 0.03, "alpha": 1.0}
    wide, narrow = (slrr(A, A[:, atoms], Q.astype(A.dtype), **weights) for A in (X, X.astype(np.float32)))
    assert narrow.Z.dtype == narrow.D.dtype == np.float32
    assert np.abs(wide.Z - narrow.Z).max() < 1e-3
    assert np.abs(wide.D - narrow.D).max() < 1e-3


@pytest.mark.parametrize("rounds", [0, 8])
def test_held_out_samples_are_recognised(rounds: int) -> None:
    X, y = vectors()
    model = SLRR(atoms_per_class=3, code_lam=3.0, rounds=rounds).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) == 1
    together = model.decision_function(X)
    alone = np.vstack([model.decision_function(X[[i]]) for i in range(len(X))])
    assert np.abs(together - alone).max() < 1e-4


def test_codes_use_atoms_of_the_same_class() -> None:
    X, y = vectors()
    model = SLRR(3, beta=0.02).fit(X, y)
    assert model.coding == SparseCoding(lam=7 / np.sqrt(30), beta=0.02)
    own = model.atom_classes_[:, None] == y
    assert np.linalg.norm(model.result_.Z[own]) > 3 * np.linalg.norm(model.result_.Z[~own])


def test_code_lam_does_not_depend_on_the_image_size() -> None:
    """A face with each pixel twice has the same code."""
    X, y = vectors()
    once, twice = (SLRR(3, rounds=0).fit(A, y) for A in (X, np.hstack([X, X])))
    assert np.abs(once.codes_).max() > 0.1
    assert np.abs(once.codes_ - twice.codes_).max() < 1e-3


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(SLRR())


def test_invalid_or_useless_weights_are_rejected() -> None:
    X, y = vectors()
    with pytest.raises(ParameterError, match="beta"):
        SLRR(beta=0).fit(X, y)
    with pytest.raises(TrainingError, match="collapsed"):
        SLRR(lam=1e-3, alpha=1e-3).fit(X, y)
