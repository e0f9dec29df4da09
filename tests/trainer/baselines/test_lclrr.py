"""LCLRR: problem 4 for all samples and for one face, compared with an independent solver."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest

from edge.errors import ParameterError
from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, minimiser, vectors
from trainer.baselines.lclrr import LCLRR
from trainer.baselines.lrr import represent
from trainer.baselines.lrrs import SparseCoding, code_sparsely
from trainer.method.locality import locality_weights

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("form", ["exp", "squared"])
def test_problem_4_equals_an_independent_solver(form: str) -> None:
    D = dictionary(0, d=12, m=8)
    X = faces(0, D, n=7)
    lam, alpha = 1.5, 0.1
    R = locality_weights(X, D, form)
    Z = cvxpy.Variable((8, 7))
    cost = cvxpy.normNuc(Z) + lam * cvxpy.sum(cvxpy.norm(X - D @ Z, 2, axis=0))
    cost += alpha * cvxpy.sum(cvxpy.multiply(R, cvxpy.abs(Z)))
    found = represent(X, D, lam=lam, error="l21", R=alpha * R, rho=1.02, tol=1e-6).Z
    assert np.abs(found - minimiser(cost, Z)[0]).max() < 1e-2


@pytest.mark.parametrize("error", ["l1", "l21"])
def test_code_of_one_face_equals_an_independent_solver(error: str) -> None:
    D = dictionary(1, d=20, m=10)
    X = faces(1, D, n=3)
    lam, alpha = (1.0, 0.2) if error == "l1" else (2.0, 0.2)
    R = locality_weights(X, D)
    coding = SparseCoding(lam=lam, beta=alpha, iterations=3000, rho=1.0, relaxation=1.6)
    found = code_sparsely(D, X, coding, R=R, error=error)
    for j in range(3):
        z = cvxpy.Variable(10)
        cost = cvxpy.norm(z, 2) + lam * cvxpy.norm(X[:, j] - D @ z, 1 if error == "l1" else 2)
        cost += alpha * cvxpy.norm(cvxpy.multiply(R[:, j], z), 1)
        assert np.abs(found[:, j] - minimiser(cost, z)[0]).max() < 1e-4


def test_locality_prefers_near_atoms() -> None:
    X, y = vectors()

    def distance(alpha: float) -> float:
        """Return the mean distance of the atoms, weighted by their share of the code."""
        model = LCLRR(atoms_per_class=4, alpha=alpha).fit(X, y)
        samples = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
        share = np.abs(model.code(samples))
        return float(np.sum(share * locality_weights(samples, model.D_, "squared")) / share.sum())

    assert distance(1.0) < distance(0.1) < distance(1e-3)


@pytest.mark.parametrize(("error", "locality"), [("l1", "exp"), ("l21", "squared")])
def test_estimator_codes_with_problem_4_and_the_weights_of_training(error: str, locality: str) -> None:
    X, y = vectors()
    model = LCLRR(alpha=0.3, locality=locality, error=error, classifier_codes="training").fit(X, y)
    samples = (X / np.linalg.norm(X, axis=1, keepdims=True)).T
    lam = 4 / np.sqrt(30) if error == "l1" else 4.0
    R = locality_weights(samples, model.D_, locality)
    assert np.abs(model.codes_ - represent(samples, model.D_, lam=lam, error=error, R=0.3 * R).Z).max() < 1e-6
    alone = code_sparsely(model.D_, samples, SparseCoding(lam=lam, beta=0.3), R=R, error=error)
    assert np.abs(model.code(samples) - alone).max() < 1e-4
    scores = np.vstack([model.decision_function(X[[i]]) for i in range(len(X))])
    assert np.abs(model.decision_function(X) - scores).max() < 1e-4  # no score depends on other faces


@pytest.mark.parametrize("options", [{}, {"error": "l21"}, {"locality": "squared"}, {"classifier_codes": "training"}])
def test_held_out_samples_are_recognised(options: dict[str, str]) -> None:
    X, y = vectors()
    held_out = np.arange(len(y)) % 2 == 1
    model = LCLRR(**options).fit(X[~held_out], y[~held_out])  # type: ignore[arg-type]
    assert model.score(X[held_out], y[held_out]) == 1


@pytest.mark.parametrize("wrong", [{"error": "l2"}, {"locality": "near"}, {"alpha": 0}, {"classifier_codes": "both"}])
def test_invalid_parameters_are_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        LCLRR(**wrong).fit(*vectors())  # type: ignore[arg-type]


def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    assert_sklearn_accepts(LCLRR())
