"""X = QR with orthonormal Q, as accurate as Householder's QR for every conditioning of X."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import qr

from trainer.method.qr import orthonormal
from trainer.types import Array


def with_singular_values(s: Array, rows: int, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    U, _ = np.linalg.qr(rng.normal(size=(rows, len(s))))
    V, _ = np.linalg.qr(rng.normal(size=(len(s), len(s))))
    return np.asfortranarray((U * s) @ V.T)


def check(X: Array) -> tuple[Array, Array]:
    Q, R = orthonormal(X)
    assert Q.shape == X.shape
    assert Q.flags.f_contiguous
    assert R.flags.f_contiguous
    assert np.abs(Q.T @ Q - np.eye(X.shape[1])).max() < 1e-13
    assert np.abs(Q @ R - X).max() < 1e-14 * np.linalg.norm(X)
    assert np.array_equal(np.tril(R, -1), np.zeros_like(R))
    return Q, R


@pytest.fixture
def householder(monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Return the list of the matrices that Householder's QR was used for."""
    calls: list[Array] = []

    def counted(X: Array, **options: Any) -> Any:
        calls.append(X)
        return qr(X, **options)

    monkeypatch.setattr("trainer.method.qr.qr", counted)
    return calls


@given(st.integers(1, 12), st.integers(0, 30), st.floats(0, 18), st.integers(0, 1000))
def test_any_conditioning(columns: int, more_rows: int, digits: float, seed: int) -> None:
    check(with_singular_values(np.logspace(0, -digits, columns), columns + more_rows, seed))


@pytest.mark.parametrize("digits", [0.0, 3.0, 6.0])
def test_cholesky_suffices_for_usual_samples(digits: float, householder: list[Array]) -> None:
    X = with_singular_values(np.logspace(0, -digits, 40), 300)
    before = X.copy()
    check(X)
    assert not householder
    assert np.array_equal(X, before)


@pytest.mark.parametrize("digits", [8.5, 12.0, 16.0])
def test_badly_conditioned_samples_need_reflections(digits: float, householder: list[Array]) -> None:
    check(with_singular_values(np.logspace(0, -digits, 40), 300))
    assert len(householder) == 1


def test_clusters_and_equal_samples() -> None:
    check(with_singular_values(np.repeat([1.0, 1e-3, 1e-6], 10), 100))
    check(with_singular_values(np.repeat([1.0, 1e-9], 10), 100))
    X = with_singular_values(np.ones(10), 50)
    check(np.asfortranarray(np.hstack([X, X])))
    check(np.asfortranarray(np.hstack([X, np.zeros((50, 2))])))


def test_r_is_that_of_numpy_up_to_signs() -> None:
    X = with_singular_values(np.logspace(0, -4, 20), 80)
    _, R = check(X)
    _, expected = np.linalg.qr(X)
    assert np.abs(R - expected * np.sign(np.diag(expected))[:, None]).max() < 1e-13
