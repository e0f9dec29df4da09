"""K-SVD of each class, and LRR with its atoms."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fixtures.small import assert_sklearn_accepts, vectors
from trainer.baselines.ksvd import KSVD, k_svd
from trainer.baselines.lrr import LRR
from trainer.method.prox import column_norms


def test_k_svd_finds_the_best_span_of_each_class() -> None:
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(20, 16)), np.repeat([0, 1], 8)
    atoms = np.array([0, 1, 2, 8, 9, 10])
    D = k_svd(X, labels, X[:, atoms], labels[atoms])
    assert column_norms(D) == pytest.approx(1)
    for c in (0, 1):
        own, span = X[:, labels == c], np.linalg.qr(D[:, labels[atoms] == c])[0]
        left = np.linalg.norm(own - span @ (span.T @ own))
        assert left == pytest.approx(np.linalg.norm(np.linalg.svd(own)[1][3:]), rel=0.02), "no three atoms leave less"


def test_faces_are_coded_as_by_lrr() -> None:
    X, y = vectors()
    model, random = KSVD(2).fit(X[::2], y[::2]), LRR(2).fit(X[::2], y[::2])
    assert model.coding == random.coding
    assert model.D_.shape == random.D_.shape
    assert not np.allclose(model.D_, random.D_)
    assert model.score(X[1::2], y[1::2]) == 1


@pytest.mark.slow
def test_estimator_passes_the_checks_of_scikit_learn() -> None:
    # K-SVD of five atoms in two dimensions, without a limit of sparsity, gives arbitrary atoms.
    assert_sklearn_accepts(KSVD(), {"check_classifiers_train": "these data have two features"})
