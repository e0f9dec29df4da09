"""Small problems for the tests of the low-rank methods, and what every one of their estimators must stand."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy
import numpy as np
from sklearn.utils.estimator_checks import check_estimator

from trainer.prox import Array, column_norms


def dictionary(seed: int, d: int = 40, m: int = 24, rank: int | None = None) -> Array:
    """(d, m), unit columns."""
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(d, m)) if rank is None else rng.normal(size=(d, rank)) @ rng.normal(size=(rank, m))
    return D / column_norms(D)


def faces(seed: int, D: Array, n: int = 6) -> Array:
    """(d, n), unit columns: mixtures of a few atoms, some of the pixels covered by something else."""
    rng = np.random.default_rng(seed + 100)
    mixture = rng.normal(size=(D.shape[1], n)) * (rng.random((D.shape[1], n)) < 0.25)
    mixture[0] += 0.5  # none is blank
    X = D @ mixture
    X += np.where(rng.random(X.shape) < 0.2, 0.5 * rng.normal(size=X.shape), 0)
    return X / column_norms(X)


def vectors(seed: int = 0, classes: int = 4, each: int = 8, d: int = 30) -> tuple[Array, Array]:
    """(n, d): around a direction for each class, so that a good classifier is right about all."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, d))
    y = np.repeat(np.arange(classes), each)
    return centres[y] + 0.3 * rng.normal(size=(len(y), d)), y


def objective(X: Array, D: Array, Z: Array, lam: float, error: str, R: Array) -> float:
    """|Z|_* + lam |X - DZ| + |R o Z|_1."""
    rest = X - D @ Z
    size = np.abs(rest).sum() if error == "l1" else column_norms(rest).sum()
    return float(np.linalg.norm(Z, "nuc") + lam * size + np.abs(R * Z).sum())


def minimiser(wanted: cvxpy.Expression, of: cvxpy.Variable) -> tuple[Array, float]:
    """By a solver that shares nothing with ours: the optimum, which must not be zero, and its objective."""
    solver = {"solver": cvxpy.CLARABEL} if of.ndim == 1 else {"solver": cvxpy.SCS, "eps": 1e-7}
    best = cvxpy.Problem(cvxpy.Minimize(wanted)).solve(**solver)
    found = np.asarray(of.value)
    assert np.abs(found).max() > 0.1
    return found, float(best)


def assert_sklearn_accepts(estimator: Any, allowed: dict[str, str] | None = None) -> None:
    """`allowed` are checks that may fail beside the usual ones, and why."""
    reason = "codes are float32, as on the device"
    unsteady = dict.fromkeys(("check_methods_subset_invariance", "check_methods_sample_order_invariance"), reason)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that are skipped for want of pandas
        results = check_estimator(estimator, expected_failed_checks=unsteady | (allowed or {}), on_fail=None)
    assert not [(r["check_name"], r["exception"]) for r in results if r["status"] == "failed"]
    assert sum(r["status"] == "passed" for r in results) > 40


# For SRC and what ends in it: there are only two features, in which a direction and its opposite are the same to it.
ONLY_TWO_FEATURES = {"check_classifiers_train": "SRC, too, is right about 73 % of these, not the 83 % that are asked for"}
