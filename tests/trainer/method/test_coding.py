"""Each coder solves the problem that it states: its objective meets a lower bound.

Weak duality gives the bound. For every Y with |D'y| <= 1 and |y| <= lam for each entry (l21: |y|_2 <= lam)

    <x, y>  <=  |z|_2 + lam |x - Dz|        for all z,

so a code whose objective equals <x, y> for one such y is optimal.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.fixtures.small import dictionary, faces
from trainer.method import coding as module
from trainer.method.coding import KINDS, Coder, Coding
from trainer.types import Array

PER_FACE = ("l1", "l21")


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """No division by zero and no overflow is allowed, not even on the way to a right result."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def usual(kind: str) -> Coding:
    """Return the default settings, with a weight for these short vectors: at 0.1 their codes would be zero."""
    return replace(Coding.default(kind), lam=5.0 if kind == "l21" else 0.3)


def solved(coding: Coding) -> Coding:
    """Return settings that solve the same problem to the end, for faces of any size."""
    if coding.kind == "l21":
        return coding.converged()
    return replace(coding, iterations=400, mu0=1e-2, rho=1.05, relaxation=1.0)


def objective(kind: str, lam: float, D: Array, X: Array, Z: Array) -> Array:
    """Return the objective of each face, or one number for `batch`."""
    error = X - D @ Z
    if kind == "batch":
        return np.array([np.linalg.norm(Z, "nuc") + lam * np.abs(error).sum()])
    size = np.abs(error).sum(axis=0) if kind == "l1" else np.linalg.norm(error, axis=0)
    return np.linalg.norm(Z, axis=0) + lam * size


def literal_admm(
    D: Array, X: Array, lam: float, *, together: bool, mu: float = 5.0, rho: float = 1.0, iterations: int = 4000
) -> tuple[Array, Array]:
    """Return Z and Y1 of the printed updates. With a constant penalty (rho = 1) ADMM is known to converge."""
    P = np.linalg.inv(D.T @ D + np.eye(D.shape[1]))
    Z, E = np.zeros((D.shape[1], X.shape[1])), np.zeros_like(X)
    Y1, Y2 = np.zeros_like(X), np.zeros_like(Z)
    for _ in range(iterations):
        A = Z + Y2 / mu
        if together:
            U, s, Vt = np.linalg.svd(A, full_matrices=False)
            J = (U * np.maximum(s - 1 / mu, 0)) @ Vt
        else:
            J = A * np.maximum(1 - 1 / mu / np.maximum(np.linalg.norm(A, axis=0), 1e-300), 0)
        Z = P @ D.T @ (X - E + Y1 / mu) + P @ (J - Y2 / mu)
        F = X - D @ Z + Y1 / mu
        E = np.sign(F) * np.maximum(np.abs(F) - lam / mu, 0)
        Y1, Y2, mu = Y1 + mu * (X - D @ Z - E), Y2 + mu * (Z - J), mu * rho
    return Z, Y1


def lower_bound(kind: str, lam: float, D: Array, X: Array, Y: Array) -> Array:
    """Return <x, y> after y was made feasible: a lower bound of all objectives."""
    Y = Y / np.maximum(np.linalg.norm(Y, axis=0) / lam, 1) if kind == "l21" else np.clip(Y, -lam, lam)
    if kind == "batch":
        return np.array([np.sum(X * Y) / max(np.linalg.norm(D.T @ Y, 2), 1)])
    return np.sum(X * Y, axis=0) / np.maximum(np.linalg.norm(D.T @ Y, axis=0), 1)


def assert_beats_its_neighbours(kind: str, lam: float, D: Array, X: Array, Z: Array, slack: float) -> None:
    rng = np.random.default_rng(0)
    best = objective(kind, lam, D, X, Z)
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for step in (scale * rng.normal(size=Z.shape), scale * Z, -scale * Z):
            assert np.all(objective(kind, lam, D, X, Z + step) >= best * (1 - slack))


# --- l1 and batch ---


@pytest.mark.parametrize("kind", ["l1", "batch"])
@pytest.mark.parametrize("lam", [0.1, 0.3, 1.0])
def test_converged_code_is_optimal_and_equals_the_literal_admm(kind: str, lam: float) -> None:
    D = dictionary(0)
    X = faces(0, D)
    Z = Coder(D, solved(replace(Coding.default(kind), lam=lam))).code(X)
    expected, Y = literal_admm(D, X, lam, together=kind == "batch")
    best = lower_bound(kind, lam, D, X, Y)
    assert np.all(objective(kind, lam, D, X, expected) <= best * (1 + 5e-5))
    found = objective(kind, lam, D, X, Z)
    assert np.all(found >= best * (1 - 1e-12))
    assert np.all(found <= best * (1 + 3e-4))
    assert_beats_its_neighbours(kind, lam, D, X, Z, slack=3e-4)
    if lam == 0.3:
        assert np.abs(expected).max() > 0.1
        assert np.abs(Z - expected).max() < 5e-3
        if kind == "batch":  # the default settings are almost as good
            shipped = Coder(D, replace(Coding.default("batch"), lam=lam)).code(X)
            assert objective(kind, lam, D, X, shipped)[0] <= best[0] * (1 + 1e-3)


@pytest.mark.parametrize("kind", ["l1", "batch"])
def test_each_iteration_equals_the_literal_admm(kind: str) -> None:
    """The coder uses V'z and scaled multipliers; the printed updates with mu = mu0 rho^k must give the same code."""
    for rank in (None, 10):
        D = dictionary(1, rank=rank)
        X = faces(1, D)
        for iterations in (1, 2, 7, 20):
            coding = Coding(kind=kind, lam=0.3, iterations=iterations, mu0=3.0, rho=1.3)
            Z, _ = literal_admm(D, X, 0.3, together=kind == "batch", mu=3.0, rho=1.3, iterations=iterations)
            assert np.abs(Z).max() > 0.05
            assert np.abs(Coder(D, coding).code(X) - Z).max() < 1e-11


def test_fixed_l1_iterations_approach_the_optimum() -> None:
    """More iterations, then a penalty that grows more slowly: each step is closer to the optimum."""
    D = dictionary(1)
    X = faces(1, D)
    lam = 0.3
    best = lower_bound("l1", lam, D, X, literal_admm(D, X, lam, together=False)[1]).sum()

    def gap(**options: Any) -> float:
        coding = replace(Coding(lam=lam), **options)
        return float(objective("l1", lam, D, X, Coder(D, coding).code(X)).sum() / best - 1)

    slower: list[dict[str, Any]] = [{"iterations": 60, "rho": 1.1, "mu0": 3.0}, {"iterations": 200, "rho": 1.05, "mu0": 0.5}]
    gaps = [gap(iterations=5), gap(), *(gap(**options) for options in slower)]
    assert all(late < early for early, late in pairwise(gaps)), gaps
    assert gaps[1] < 0.05
    assert gaps[3] < 1e-3


def test_l1_code_ignores_a_covered_patch() -> None:
    """Covered pixels move the l1 code less than the l21 code."""
    D = dictionary(3, d=80, m=10)
    rng = np.random.default_rng(3)
    clean = D @ rng.normal(size=(10, 20))
    clean /= np.linalg.norm(clean, axis=0)
    covered = clean.copy()
    covered[:16] = 0.4
    moved = {}
    for kind, lam in (("l1", 1.0), ("l21", 5.0)):
        coder = Coder(D, solved(replace(Coding.default(kind), lam=lam)))
        before, after = coder.code(clean), coder.code(covered)
        moved[kind] = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert moved["l1"] < 0.5 * moved["l21"]


def test_batch_of_one_face_is_l1() -> None:
    D = dictionary(4)
    X = faces(4, D, n=2)
    for coding in (Coding(), solved(Coding(lam=0.3))):
        together, one = (Coder(D, replace(coding, kind=kind)) for kind in ("batch", "l1"))
        for j in range(2):
            assert np.abs(together.code(X[:, [j]]) - one.code(X[:, [j]])).max() < 1e-9
    coupled = Coder(D, Coding(kind="batch", lam=0.3))
    assert np.abs(coupled.code(X)[:, :1] - coupled.code(X[:, :1])).max() > 1e-4  # other faces matter


def test_batch_codes_have_a_lower_rank_than_single_codes() -> None:
    """Frames of one visit: the same person with different noise."""
    D = dictionary(5, d=60, m=20)
    rng = np.random.default_rng(5)
    X = D @ rng.normal(size=(20, 1)) + 0.05 * rng.normal(size=(60, 8))
    X /= np.linalg.norm(X, axis=0)

    def second_share(kind: str) -> float:
        s = np.linalg.svd(Coder(D, solved(replace(Coding.default(kind), lam=0.3))).code(X), compute_uv=False)
        return float(s[1] / s[0])

    assert second_share("batch") < 0.5 * second_share("l1")


# --- l21 ---


@pytest.mark.parametrize("lam", [2.0, 5.0, 25.0])
def test_l21_code_is_optimal(lam: float) -> None:
    for seed, rank in enumerate((None, 10)):
        D = dictionary(seed, rank=rank)
        X = faces(seed, D)
        Z = Coder(D, Coding(kind="l21", lam=lam).converged()).code(X)
        error = X - D @ Z
        bound = lower_bound("l21", lam, D, X, lam * error / np.linalg.norm(error, axis=0))
        found = objective("l21", lam, D, X, Z)
        assert np.all(found >= bound * (1 - 1e-12))
        assert np.all(found <= bound * (1 + 1e-9))
        assert_beats_its_neighbours("l21", lam, D, X, Z, slack=1e-9)
        # The fixed point: (D'D + tau I) z = D'x with tau = |x - Dz| / (lam |z|).
        tau = np.linalg.norm(error, axis=0) / (lam * np.linalg.norm(Z, axis=0))
        assert np.abs(D.T @ error - tau * Z).max() < 1e-8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_l21_code_of_a_face_without_error(dtype: type) -> None:
    """Then |x|^2 - |U'x|^2 is only rounding, and z is almost the shortest exact code."""
    D: Array = dictionary(0, d=40, m=12).astype(dtype)
    x = D @ np.random.default_rng(0).normal(size=(12, 3)).astype(dtype)
    x /= np.linalg.norm(x, axis=0)
    expected = np.linalg.lstsq(D.astype(float), x.astype(float), rcond=None)[0]
    for coding in (Coding.default("l21"), Coding(kind="l21", lam=25.0).converged()):
        Z = Coder(D, coding).code(x)
        best = np.linalg.norm(expected, axis=0)  # of the exact code, whose error is zero
        assert np.all(objective("l21", coding.lam, D, x, Z) <= best * (1 + 1e-2))
        assert_beats_its_neighbours("l21", coding.lam, D, x, Z, slack=1e-2)


def test_default_l21_iterations_reach_the_optimum() -> None:
    coding = Coding.default("l21")
    for seed in range(3):
        D = dictionary(seed)
        X = faces(seed, D)
        Z, expected = Coder(D, coding).code(X), Coder(D, coding.converged()).code(X)
        assert np.abs(Z - expected).max() < 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("seed", range(3))
def test_l21_code_is_zero_only_for_small_lam(seed: int) -> None:
    """z = 0 if and only if lam |D'x| <= |x|."""
    D = dictionary(seed)
    x = faces(seed, D, n=1)
    edge = 1 / float(np.linalg.norm(D.T @ x))
    for factor in (0.3, 0.9, 0.99, 1.01, 1.1, 3.0):
        Z = Coder(D, Coding(kind="l21", lam=factor * edge).converged()).code(x)
        found, of_zero = objective("l21", factor * edge, D, x, Z)[0], factor * edge
        if factor < 1:
            assert np.abs(Z).max() < 1e-3
            assert found <= of_zero * (1 + 1e-3)
        else:
            assert np.linalg.norm(Z) > 1e-3
            assert found < of_zero


# --- All coders ---


@pytest.mark.parametrize("kind", PER_FACE)
def test_code_depends_neither_on_other_faces_nor_on_chunks(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    D = dictionary(6)
    X = faces(6, D, n=9)
    coder = Coder(D, usual(kind))
    together = coder.code(X)
    alone = np.hstack([coder.code(X[:, [j]]) for j in range(9)])
    assert np.abs(together - alone).max() < 1e-12
    crowd = np.hstack([1e3 * X[:, :1], np.zeros((40, 1)), X])  # other faces of another scale
    assert np.abs(coder.code(crowd)[:, 2:] - together).max() < 1e-12
    assert np.abs(coder.code(X[:, ::-1])[:, ::-1] - together).max() < 1e-12
    for chunk in (1, 4, 7):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert np.abs(coder.code(X) - together).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_faces_are_not_changed_and_their_layout_and_type_do_not_matter(kind: str) -> None:
    D = dictionary(8)
    X = faces(8, D)
    coder = Coder(D, usual(kind))
    before = X.copy()
    Z = coder.code(X)
    assert np.array_equal(X, before)
    assert np.array_equal(coder.code(X), Z)  # no state is left from the first time
    assert np.abs(coder.code(np.asfortranarray(X)) - Z).max() < 1e-12
    integers = np.eye(40, 2, dtype=np.int64)
    assert np.array_equal(coder.code(integers), coder.code(integers.astype(float)))
    assert coder.code(np.zeros((40, 0))).shape == (24, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_blank_face_has_a_zero_code(kind: str) -> None:
    """In every precision, without NaN, and without an effect on other faces."""
    for dtype in (np.float32, np.float64):
        D = dictionary(9).astype(dtype)
        X = faces(9, D, n=4).astype(dtype)
        X[:, 1] = 0
        coder = Coder(D, usual(kind))
        Z = coder.code(X)
        assert np.isfinite(Z).all()
        assert np.abs(Z[:, 1]).max() <= (1e-12 if kind == "batch" else 0)  # a batch is rounded together
        assert Z[:, [0, 2, 3]].any(axis=0).all()
        assert not coder.code(np.zeros((40, 3), dtype)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_dictionary_may_have_any_rank_and_shape(kind: str) -> None:
    """Codes are in the span of D', and equal those of the dictionary in a basis of its own span."""
    for rank in (1, 5, 12):
        D = dictionary(10, rank=rank)
        X = faces(10, D)
        coder = Coder(D, usual(kind))
        U, s, V = coder.svd
        assert U.shape == (40, rank)
        assert np.abs(U * s @ V.T - D).max() < 1e-12
        Z = coder.code(X)
        assert np.isfinite(Z).all()
        assert np.abs(Z - V @ (V.T @ Z)).max() < 1e-12
        small = Coder(U * s, usual(kind)).code(X)
        assert np.abs(V @ small - Z).max() < 1e-9
    for d, m in ((20, 30), (24, 24), (40, 1)):
        D = dictionary(12, d=d, m=m)
        Z = Coder(D, usual(kind)).code(faces(12, D, n=5))
        assert Z.shape == (m, 5)
        assert np.isfinite(Z).all()
    Z = Coder(np.zeros((6, 3)), usual(kind)).code(np.eye(6)[:, :2])
    assert Z.shape == (3, 2)
    assert not Z.any()


@pytest.mark.parametrize("kind", KINDS)
def test_equal_atoms_share_their_code(kind: str) -> None:
    """Two equal enrolled photos: |z|_2 is smallest if they share the code."""
    D = dictionary(11)
    D[:, 1] = D[:, 0]
    Z = Coder(D, usual(kind)).code(faces(11, D))
    assert np.abs(Z[0] - Z[1]).max() < 1e-12
    assert np.abs(Z[0]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_close_to_double(kind: str) -> None:
    """The dtype of the dictionary is the precision, as on the device."""
    D = dictionary(13)
    X = faces(13, D, n=8)
    expected = Coder(D, usual(kind)).code(X)
    single = Coder(D.astype(np.float32), usual(kind))
    Z = single.code(X)
    assert Z.dtype == np.float32
    assert expected.dtype == np.float64
    assert np.abs(Z - expected).max() < 2e-4 * max(np.abs(expected).max(), 0.1)
    assert np.array_equal(single.code(X.astype(np.float32)), Z)


# --- Settings ---


def test_invalid_settings_are_rejected() -> None:
    numbers: list[dict[str, Any]] = [{"lam": 0.0}, {"lam": float("nan")}, {"iterations": 0}, {"mu0": 0.0}, {"rho": 0.9}]
    for wrong in [{"kind": "l2"}, {"kind": ""}, *numbers, {"relaxation": 0.5}, {"relaxation": 2.0}]:
        with pytest.raises(ValueError, match="coding"):
            Coding(**wrong)
    with pytest.raises(ValueError, match="coding"):
        Coding.default("l3")


@pytest.mark.parametrize("kind", PER_FACE)
def test_converged_settings_solve_the_same_problem(kind: str) -> None:
    coding = replace(Coding.default(kind), lam=0.7)
    assert coding.kind == coding.converged().kind == kind
    assert coding.converged().lam == 0.7
    assert coding.converged().iterations > coding.iterations
