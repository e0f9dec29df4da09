"""Each proximal operator is the minimiser of its problem, and the removed part is in the dual ball."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh

from trainer.method import prox
from trainer.method.prox import column_norms, column_shrink, shrink_factors, soft_threshold, svt
from trainer.types import Array

SEEDS = st.integers(0, 2**32 - 1)
SIDES = st.integers(1, 12)
# From thresholds that keep nearly everything to thresholds that leave nothing.
THRESHOLDS = st.floats(1e-3, 30)


def matrix(seed: int, rows: int, columns: int, rank: int | None = None) -> Array:
    rng = np.random.default_rng(seed)
    if rank is None:
        return rng.normal(size=(rows, columns))
    return rng.normal(size=(rows, rank)) @ rng.normal(size=(rank, columns))


def svt_by_svd(A: Array, t: float) -> tuple[Array, int]:
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    return (U * np.maximum(s - t, 0)) @ Vt, int((s > t).sum())


def beats_its_neighbours(P: Array, A: Array, penalty: Callable[[Array], float], seed: int) -> None:
    """penalty(P) + 1/2 |P - A|^2 is 1-strongly convex: a step of length h from the minimum costs at least h^2/2."""

    def objective(B: Array) -> float:
        return penalty(B) + 0.5 * float(np.sum((B - A) ** 2))

    rng = np.random.default_rng(seed)
    best = objective(P)
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for step in (scale * rng.normal(size=A.shape), -scale * P, scale * (A - P)):
            margin = 0.5 * float(np.sum(step**2))
            assert objective(P + step) >= best + margin - 1e-9 * (1 + best)


@given(SEEDS, SIDES, SIDES, THRESHOLDS)
@settings(max_examples=30)
def test_soft_threshold_minimises(seed: int, rows: int, columns: int, t: float) -> None:
    A = matrix(seed, rows, columns)
    beats_its_neighbours(soft_threshold(A, t), A, lambda B: t * float(np.abs(B).sum()), seed)


@given(SEEDS, SIDES, SIDES)
@settings(max_examples=30)
def test_soft_threshold_minimises_with_a_weight_per_entry(seed: int, rows: int, columns: int) -> None:
    A = matrix(seed, rows, columns)
    weights = np.random.default_rng(seed + 1).uniform(0, 2, A.shape)
    weights[0, 0] = 0  # an atom has the weight 0 for its own sample
    L = soft_threshold(A, weights)
    beats_its_neighbours(L, A, lambda B: float((weights * np.abs(B)).sum()), seed)
    assert L[0, 0] == A[0, 0]
    assert np.array_equal(L == 0, np.abs(A) <= weights)


@given(SEEDS, SIDES, SIDES, THRESHOLDS)
@settings(max_examples=30)
def test_column_shrink_minimises(seed: int, rows: int, columns: int, t: float) -> None:
    A = matrix(seed, rows, columns)
    A[:, 0] = 0
    E = column_shrink(A, t)
    beats_its_neighbours(E, A, lambda B: t * float(np.linalg.norm(B, axis=0).sum()), seed)
    norms = np.linalg.norm(A, axis=0)
    assert np.allclose(np.linalg.norm(E, axis=0), np.maximum(norms - t, 0))
    assert not E[:, norms <= t].any()


@given(SEEDS, SIDES, SIDES, THRESHOLDS)
@settings(max_examples=30)
def test_svt_minimises(seed: int, rows: int, columns: int, t: float) -> None:
    A = matrix(seed, rows, columns)
    J, _ = svt(A, t)
    beats_its_neighbours(J, A, lambda B: t * float(np.linalg.norm(B, "nuc")), seed)


@given(SEEDS, SIDES, SIDES, THRESHOLDS)
@settings(max_examples=30)
def test_removed_part_is_in_the_dual_ball(seed: int, rows: int, columns: int, t: float) -> None:
    """Moreau: A - P is the projection of A onto the dual ball of radius t, and <A - P, P> = t |P|."""
    A = matrix(seed, rows, columns)
    slack = 1e-9 * (1 + np.abs(A).max())
    L, E, J = soft_threshold(A, t), column_shrink(A, t), svt(A, t)[0]
    assert np.abs(A - L).max() <= t + slack
    assert np.linalg.norm(A - E, axis=0).max() <= t + slack
    assert np.linalg.norm(A - J, 2) <= t + slack
    lengths = float(np.abs(L).sum()), float(np.linalg.norm(E, axis=0).sum()), float(np.linalg.norm(J, "nuc"))
    for P, length in zip((L, E, J), lengths, strict=True):
        assert np.isclose(np.sum((A - P) * P), t * length, rtol=1e-8, atol=1e-8)


def test_blank_column_causes_no_warning() -> None:
    with np.errstate(all="raise"):
        assert not column_shrink(np.zeros((3, 2)), 0.5).any()
        assert np.array_equal(shrink_factors(np.array([0.0, 0.5, 1.0]), 0.5), [0, 0, 0.5])


def test_column_norms_equal_numpy() -> None:
    A = matrix(0, 7, 5)
    assert np.allclose(column_norms(A), np.linalg.norm(A, axis=0), rtol=1e-14)
    assert np.allclose(column_norms(np.asfortranarray(A)), np.linalg.norm(A, axis=0), rtol=1e-14)


# --- The singular value threshold, by its shortcuts ---


@given(SEEDS, st.integers(1, 30), st.integers(1, 30), st.floats(0.01, 1.2), st.sampled_from([None, 0, 3, 30]))
@settings(max_examples=80)
def test_svt_equals_the_svd_form(seed: int, rows: int, columns: int, fraction: float, expected_rank: int | None) -> None:
    A = matrix(seed, rows, columns)
    t = fraction * float(np.linalg.norm(A, 2))
    J, rank = svt(A, t, expected_rank)
    expected, rank_by_svd = svt_by_svd(A, t)
    assert J.shape == A.shape
    assert np.abs(J - expected).max() < 1e-10 * (1 + np.abs(A).max())
    s = np.linalg.svd(A, compute_uv=False)
    if np.abs(s - t).min() > 1e-9 * s[0]:  # else rounding decides
        assert rank == rank_by_svd


class Spy:
    """Replaces `eigh` and records the drivers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drivers: list[str] = []
        self.eigh = eigh
        monkeypatch.setattr(prox, "eigh", self)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.drivers.append(options["driver"])
        return self.eigh(*arguments, **options)


@pytest.mark.parametrize("shape", [(80, 90), (90, 80), (80, 80), (60, 300), (300, 60)])
def test_partial_decomposition_finds_all_singular_values(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong expected rank may cost time, but never a part of the result."""
    spy = Spy(monkeypatch)
    t = 1.0
    for A in (np.ascontiguousarray(matrix(3, *shape, rank=15)), np.asfortranarray(matrix(3, *shape, rank=15))):
        A += 1e-3 * matrix(4, *shape)
        before, expected = A.copy(), svt_by_svd(A, t)[0]
        for expected_rank in (0, 1, 2):
            spy.drivers.clear()
            partial, rank = svt(A, t, expected_rank)
            full, full_rank = svt(A, t)
            assert spy.drivers == ["evr" if 2 * expected_rank + 4 < min(shape) / 10 else "evd", "evd"]
            assert rank == full_rank == 15
            assert np.abs(partial - expected).max() < 1e-10
            assert np.abs(full - partial).max() < 1e-10
            assert np.array_equal(A, before)


def test_partial_decomposition_stops_at_the_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Singular values on either side of t, close to it."""
    U, _ = np.linalg.qr(matrix(1, 60, 5))
    V, _ = np.linalg.qr(matrix(2, 70, 5))
    s = np.array([3.0, 1.01, 1.001, 0.999, 0.99])
    spy = Spy(monkeypatch)
    J, rank = svt((U * s) @ V.T, 1.0, 0)
    assert spy.drivers == ["evr"]
    assert rank == 3
    assert np.abs(J - (U * np.maximum(s - 1, 0)) @ V.T).max() < 1e-12


def test_partial_decomposition_may_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """|A|_F is above the threshold, but no singular value is."""
    A = np.eye(60)
    spy = Spy(monkeypatch)
    J, rank = svt(A, 2.0, 0)
    assert spy.drivers == ["evr"]
    assert rank == 0
    assert J.shape == A.shape
    assert not J.any()


@pytest.mark.parametrize("expected_rank", [None, 0])
def test_svt_is_zero_without_decomposition_if_the_norm_is_small(
    expected_rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = matrix(0, 6, 9)
    spy = Spy(monkeypatch)
    for t in (float(np.linalg.norm(A)) * (1 + 1e-12), 1e3):
        J, rank = svt(A, t, expected_rank)
        assert rank == 0
        assert J.shape == A.shape
        assert not J.any()
    assert spy.drivers == []
    svt(A, float(np.linalg.norm(A)) * (1 - 1e-3), expected_rank)
    assert len(spy.drivers) == 1  # above the norm, a decomposition is needed


@pytest.mark.parametrize("shape", [(40, 50), (50, 40), (5, 40)])
def test_equal_singular_values_stay_together(shape: tuple[int, int]) -> None:
    U, _ = np.linalg.qr(matrix(1, shape[0], 5))
    V, _ = np.linalg.qr(matrix(2, shape[1], 5))
    for above in (1, 3, 5):
        s = np.array([2.0] * above + [0.5] * (5 - above))
        J, rank = svt((U * s) @ V.T, 1.0)
        assert rank == above
        assert np.abs(J - U[:, :above] @ V[:, :above].T).max() < 1e-12


def test_tiny_threshold_loses_only_the_precision_of_the_gram_matrix() -> None:
    """mu ends near 1e8. The Gram matrix cannot represent singular values below sqrt(eps) of the largest one."""
    A = matrix(5, 20, 30, rank=6)
    J, _ = svt(A, 1e-8)
    assert np.abs(J - A).max() < 1e-6


def test_svt_of_one_column_is_the_column_shrink() -> None:
    """So coding face by face is the batch problem for one face."""
    a = matrix(6, 9, 1)
    for t in (0.1, 1.0, 100.0):
        assert np.allclose(svt(a, t)[0], column_shrink(a, t), atol=1e-12)
