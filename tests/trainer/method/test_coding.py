"""The coders solve the problems that they state: each answer is held against a bound that no code can beat.

Weak duality gives the bound. For every Y with |D'y| <= 1 and, entry by entry, |y| <= lam (l21: |y|_2 <= lam)

    <x, y>  <=  |z|_2 + lam |x - Dz|        for all z,

so a code whose objective meets <x, y> for one such y is optimal, whoever found that y.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from trainer.method import coding as module
from trainer.method.coding import KINDS, Coder, Coding
from trainer.types import Array

PER_FACE = ("l1", "l21")
SEEDS = (0, 1, 2)


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """Nothing here may divide by zero or overflow, not even on its way to a right answer."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def dictionary(seed: int, d: int = 40, m: int = 24, rank: int | None = None) -> Array:
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(d, m)) if rank is None else rng.normal(size=(d, rank)) @ rng.normal(size=(rank, m))
    return D / np.linalg.norm(D, axis=0)


def faces(seed: int, D: Array, n: int = 6) -> Array:
    """Unit columns: mixtures of a few atoms, a third of the pixels covered by something else."""
    rng = np.random.default_rng(seed + 100)
    mixture = rng.normal(size=(D.shape[1], n)) * (rng.random((D.shape[1], n)) < 0.25)
    mixture[0] += 0.5  # none is blank
    X = D @ mixture
    X += np.where(rng.random(X.shape) < 0.3, 0.5 * rng.normal(size=X.shape), 0)
    return X / np.linalg.norm(X, axis=0)


def usual(kind: str) -> Coding:
    """The shipped setting, with an error weight that suits these short vectors: at 0.1 their codes would be zero."""
    return replace(Coding.default(kind), lam=5.0 if kind == "l21" else 0.3)


def objective(kind: str, lam: float, D: Array, X: Array, Z: Array) -> Array:
    """Of each face, or one number for `batch`."""
    error = X - D @ Z
    if kind == "batch":
        return np.array([np.linalg.norm(Z, "nuc") + lam * np.abs(error).sum()])
    size = np.abs(error).sum(axis=0) if kind == "l1" else np.linalg.norm(error, axis=0)
    return np.linalg.norm(Z, axis=0) + lam * size


def literal_admm(D: Array, X: Array, lam: float, *, together: bool, mu: float = 5.0) -> tuple[Array, Array]:
    """MATH's updates, letter by letter, with one constant penalty, for which ADMM is known to converge: Z and Y1."""
    P = np.linalg.inv(D.T @ D + np.eye(D.shape[1]))
    Z, E = np.zeros((D.shape[1], X.shape[1])), np.zeros_like(X)
    Y1, Y2 = np.zeros_like(X), np.zeros_like(Z)
    for _ in range(4000):
        A = Z + Y2 / mu
        if together:
            U, s, Vt = np.linalg.svd(A, full_matrices=False)
            J = U @ np.diag(np.maximum(s - 1 / mu, 0)) @ Vt
        else:
            J = A * np.maximum(1 - 1 / mu / np.maximum(np.linalg.norm(A, axis=0), 1e-300), 0)
        Z = P @ D.T @ (X - E + Y1 / mu) + P @ (J - Y2 / mu)
        F = X - D @ Z + Y1 / mu
        E = np.sign(F) * np.maximum(np.abs(F) - lam / mu, 0)
        Y1 = Y1 + mu * (X - D @ Z - E)
        Y2 = Y2 + mu * (Z - J)
    return Z, Y1


def lower_bound(kind: str, lam: float, D: Array, X: Array, Y: Array) -> Array:
    """<x, y> after y was made feasible: below every objective there is."""
    Y = Y / np.maximum(np.linalg.norm(Y, axis=0) / lam, 1) if kind == "l21" else np.clip(Y, -lam, lam)
    if kind == "batch":
        return np.array([np.sum(X * Y) / max(np.linalg.norm(D.T @ Y, 2), 1)])
    return np.sum(X * Y, axis=0) / np.maximum(np.linalg.norm(D.T @ Y, axis=0), 1)


def best_objective(kind: str, lam: float, D: Array, X: Array) -> Array:
    """A lower bound that the literal ADMM shows to be met."""
    Z, Y = literal_admm(D, X, lam, together=kind == "batch")
    bound = lower_bound(kind, lam, D, X, Y)
    assert np.all(objective(kind, lam, D, X, Z) <= bound * (1 + 1e-6))
    return bound


def assert_beats_its_neighbours(kind: str, lam: float, D: Array, X: Array, Z: Array, slack: float) -> None:
    rng = np.random.default_rng(0)
    best = objective(kind, lam, D, X, Z)
    for scale in (1e-3, 1e-2, 0.1, 1.0):
        for step in (scale * rng.normal(size=Z.shape), scale * Z, -scale * Z):
            assert np.all(objective(kind, lam, D, X, Z + step) >= best * (1 - slack))


# --- l1 and batch ---


@pytest.mark.parametrize("kind", ["l1", "batch"])
@pytest.mark.parametrize("lam", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("seed", SEEDS[:2])
def test_the_converged_reference_is_optimal(kind: str, lam: float, seed: int) -> None:
    D = dictionary(seed)
    X = faces(seed, D)
    Z = Coder(D, replace(Coding.default(kind), lam=lam).converged()).code(X)
    found, best = objective(kind, lam, D, X, Z), best_objective(kind, lam, D, X)
    assert np.all(found >= best * (1 - 1e-12))
    assert np.all(found <= best * (1 + 3e-4))
    assert_beats_its_neighbours(kind, lam, D, X, Z, slack=3e-4)


@pytest.mark.parametrize("kind", ["l1", "batch"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_converged_reference_equals_the_literal_admm(kind: str, seed: int) -> None:
    D = dictionary(seed)
    X = faces(seed, D)
    Z = Coder(D, replace(Coding.default(kind), lam=0.3).converged()).code(X)
    wanted, _ = literal_admm(D, X, 0.3, together=kind == "batch")
    assert np.abs(wanted).max() > 0.1
    assert np.abs(Z - wanted).max() < 5e-3


@pytest.mark.parametrize("kind", ["l1", "batch"])
@pytest.mark.parametrize("iterations", [1, 2, 7, 20])
@pytest.mark.parametrize("rank", [None, 10])
def test_each_iteration_is_the_one_of_the_sheet(kind: str, iterations: int, rank: int | None) -> None:
    """The coder works on V'z with scaled multipliers; MATH's letters with mu = mu0 rho^k must give the same code."""
    D = dictionary(1, rank=rank)
    X = faces(1, D)
    lam, mu, rho = 0.3, 3.0, 1.3
    coding = Coding(kind=kind, lam=lam, iterations=iterations, mu0=mu, rho=rho)
    P = np.linalg.inv(D.T @ D + np.eye(D.shape[1]))
    Z, E = np.zeros((D.shape[1], X.shape[1])), np.zeros_like(X)
    Y1, Y2 = np.zeros_like(X), np.zeros_like(Z)
    for _ in range(iterations):
        A = Z + Y2 / mu
        if kind == "batch":
            U, s, Vt = np.linalg.svd(A, full_matrices=False)
            J = (U * np.maximum(s - 1 / mu, 0)) @ Vt
        else:
            J = A * np.maximum(1 - 1 / mu / np.maximum(np.linalg.norm(A, axis=0), 1e-300), 0)
        Z = P @ D.T @ (X - E + Y1 / mu) + P @ (J - Y2 / mu)
        F = X - D @ Z + Y1 / mu
        E = np.sign(F) * np.maximum(np.abs(F) - lam / mu, 0)
        Y1, Y2, mu = Y1 + mu * (X - D @ Z - E), Y2 + mu * (Z - J), mu * rho
    assert np.abs(Z).max() > 0.05
    assert np.abs(Coder(D, coding).code(X) - Z).max() < 1e-11


@pytest.mark.parametrize("seed", SEEDS)
def test_fixed_l1_iterations_approach_the_reference(seed: int) -> None:
    """More iterations, and then a penalty that grows more slowly: each step nearer to the best there is."""
    D = dictionary(seed)
    X = faces(seed, D)
    lam = 0.3
    best = best_objective("l1", lam, D, X).sum()

    def gap(**options: float) -> float:
        coding = replace(Coding(lam=lam), **options)  # type: ignore[arg-type]
        return float(objective("l1", lam, D, X, Coder(D, coding).code(X)).sum() / best - 1)

    gaps = [
        gap(iterations=5),
        gap(),
        gap(iterations=60, rho=1.1, mu0=3.0),
        gap(iterations=200, rho=1.05, mu0=0.5),
    ]
    assert all(late < early for early, late in pairwise(gaps)), gaps
    assert gaps[1] < 0.05
    assert gaps[3] < 1e-3


def test_an_l1_code_ignores_a_covered_patch() -> None:
    """What the l1 error is for: pixels of any strength under a patch move the code less than the l21 code."""
    D = dictionary(3, d=80, m=10)
    rng = np.random.default_rng(3)
    clean = D @ rng.normal(size=(10, 20))
    clean /= np.linalg.norm(clean, axis=0)
    covered = clean.copy()
    covered[:16] = 0.4
    moved = {}
    for kind, lam in (("l1", 1.0), ("l21", 5.0)):
        coder = Coder(D, replace(Coding.default(kind), lam=lam).converged())
        before, after = coder.code(clean), coder.code(covered)
        moved[kind] = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert moved["l1"] < 0.5 * moved["l21"]


def test_batch_for_one_face_is_l1() -> None:
    D = dictionary(4)
    X = faces(4, D, n=3)
    for coding in (Coding(), Coding(lam=0.3).converged(), Coding.default("batch")):
        together = Coder(D, replace(coding, kind="batch"))
        one = Coder(D, replace(coding, kind="l1"))
        for j in range(3):
            face = X[:, [j]]
            assert np.abs(together.code(face) - one.code(face)).max() < 1e-9


@pytest.mark.parametrize("seed", SEEDS)
def test_the_batch_coder_solves_the_batch_problem_as_shipped(seed: int) -> None:
    D = dictionary(seed)
    X = faces(seed, D, n=10)
    lam = 0.3
    Z = Coder(D, replace(Coding.default("batch"), lam=lam)).code(X)
    best = best_objective("batch", lam, D, X)[0]
    assert best * (1 - 1e-12) <= objective("batch", lam, D, X, Z)[0] <= best * (1 + 1e-3)


def test_a_batch_is_of_lower_rank_than_its_faces_alone() -> None:
    """Frames of one visit: the same person with different noise."""
    D = dictionary(5, d=60, m=20)
    rng = np.random.default_rng(5)
    X = D @ rng.normal(size=(20, 1)) + 0.05 * rng.normal(size=(60, 8))
    X /= np.linalg.norm(X, axis=0)

    def second_part(kind: str) -> float:
        s = np.linalg.svd(Coder(D, replace(Coding.default(kind), lam=0.3).converged()).code(X), compute_uv=False)
        return float(s[1] / s[0])

    assert second_part("batch") < 0.5 * second_part("l1")


# --- l21 ---


@pytest.mark.parametrize("lam", [2.0, 5.0, 25.0])
@pytest.mark.parametrize("rank", [None, 10])
@pytest.mark.parametrize("seed", SEEDS)
def test_l21_is_optimal(lam: float, rank: int | None, seed: int) -> None:
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
@pytest.mark.parametrize("seed", SEEDS)
def test_l21_of_a_face_that_the_atoms_explain_entirely(dtype: type, seed: int) -> None:
    """Then |x|^2 - |U'x|^2 is rounding alone, and z nearly the shortest exact code."""
    D: Array = dictionary(seed, d=40, m=12).astype(dtype)
    x = D @ np.random.default_rng(seed).normal(size=(12, 3)).astype(dtype)
    x /= np.linalg.norm(x, axis=0)
    wanted = np.linalg.lstsq(D.astype(float), x.astype(float), rcond=None)[0]
    for coding in (Coding.default("l21"), Coding(kind="l21", lam=25.0).converged()):
        Z = Coder(D, coding).code(x)
        best = np.linalg.norm(wanted, axis=0)  # of the exact code, whose error is zero
        assert np.all(objective("l21", coding.lam, D, x, Z) <= best * (1 + 1e-2))
        assert_beats_its_neighbours("l21", coding.lam, D, x, Z, slack=1e-2)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_iterations_of_the_device_reach_the_l21_optimum(seed: int) -> None:
    D = dictionary(seed)
    X = faces(seed, D)
    coding = Coding.default("l21")
    Z, wanted = Coder(D, coding).code(X), Coder(D, coding.converged()).code(X)
    assert np.abs(Z - wanted).max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("seed", range(6))
def test_l21_is_zero_exactly_where_it_should_be(seed: int) -> None:
    """z = 0 iff lam |D'x| <= |x|."""
    D = dictionary(seed)
    x = faces(seed, D, n=1)
    edge = 1 / float(np.linalg.norm(D.T @ x))
    for factor in (0.3, 0.9, 0.99):
        Z = Coder(D, Coding(kind="l21", lam=factor * edge).converged()).code(x)
        assert np.abs(Z).max() < 1e-3
        assert objective("l21", factor * edge, D, x, Z)[0] <= factor * edge * (1 + 1e-3)  # of z = 0
    for factor in (1.01, 1.1, 3.0):
        Z = Coder(D, Coding(kind="l21", lam=factor * edge).converged()).code(x)
        assert np.linalg.norm(Z) > 1e-3
        assert objective("l21", factor * edge, D, x, Z)[0] < factor * edge


# --- All coders ---


@pytest.mark.parametrize("kind", PER_FACE)
def test_a_code_does_not_depend_on_the_other_faces(kind: str) -> None:
    D = dictionary(6)
    X = faces(6, D, n=9)
    coder = Coder(D, usual(kind))
    together = coder.code(X)
    alone = np.hstack([coder.code(X[:, [j]]) for j in range(9)])
    assert np.abs(together - alone).max() < 1e-12
    crowd = np.hstack([1e3 * X[:, :1], np.zeros((40, 1)), X])  # company of another scale
    assert np.abs(coder.code(crowd)[:, 2:] - together).max() < 1e-12
    assert np.abs(coder.code(X[:, ::-1])[:, ::-1] - together).max() < 1e-12


def test_a_batch_code_does_depend_on_the_other_faces() -> None:
    D = dictionary(6)
    X = faces(6, D, n=9)
    coder = Coder(D, Coding(kind="batch", lam=0.3))
    assert np.abs(coder.code(X)[:, :1] - coder.code(X[:, :1])).max() > 1e-3


@pytest.mark.parametrize("kind", PER_FACE)
@pytest.mark.parametrize("chunk", [1, 4, 7])
def test_chunks_change_nothing(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    D = dictionary(7)
    X = faces(7, D, n=10)
    coder = Coder(D, usual(kind))
    whole = coder.code(X)
    monkeypatch.setattr(module, "CHUNK", chunk)
    assert np.abs(coder.code(X) - whole).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_faces_are_left_alone_and_their_layout_does_not_matter(kind: str) -> None:
    D = dictionary(8)
    X = faces(8, D)
    coder = Coder(D, usual(kind))
    before = X.copy()
    Z = coder.code(X)
    assert np.array_equal(X, before)
    assert np.array_equal(coder.code(X), Z)  # nothing is left over from the first time
    assert np.abs(coder.code(np.asfortranarray(X)) - Z).max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_a_blank_face_has_a_zero_code(kind: str) -> None:
    """For every dictionary and precision, without a NaN, and without spoiling its neighbours."""
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
@pytest.mark.parametrize("rank", [1, 5, 12])
def test_a_dictionary_of_low_rank(kind: str, rank: int) -> None:
    """Its codes lie in the span of D', and equal those of the dictionary in a basis of its own span."""
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


@pytest.mark.parametrize("kind", KINDS)
def test_equal_atoms_share_their_code(kind: str) -> None:
    """Two enrolled photos that are the same: problem 2 is indifferent, |z|_2 is smallest when they share."""
    D = dictionary(11)
    D[:, 1] = D[:, 0]
    Z = Coder(D, usual(kind)).code(faces(11, D))
    assert np.abs(Z[0] - Z[1]).max() < 1e-12
    assert np.abs(Z[0]).max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_zero_dictionary_codes_everything_as_zero(kind: str) -> None:
    Z = Coder(np.zeros((6, 3)), usual(kind)).code(np.eye(6)[:, :2])
    assert Z.shape == (3, 2)
    assert not Z.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "m"), [(40, 24), (20, 30), (24, 24), (40, 1)])
def test_any_shape_of_dictionary(kind: str, d: int, m: int) -> None:
    D = dictionary(12, d=d, m=m)
    X = faces(12, D, n=5)
    Z = Coder(D, usual(kind)).code(X)
    assert Z.shape == (m, 5)
    assert np.isfinite(Z).all()


@pytest.mark.parametrize("kind", KINDS)
def test_no_faces_give_no_codes(kind: str) -> None:
    Z = Coder(dictionary(0), usual(kind)).code(np.zeros((40, 0)))
    assert Z.shape == (24, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_is_close_to_double(kind: str) -> None:
    """The dictionary sets the precision, as on the device."""
    D = dictionary(13)
    X = faces(13, D, n=8)
    wanted = Coder(D, usual(kind)).code(X)
    single = Coder(D.astype(np.float32), usual(kind))
    Z = single.code(X)
    assert Z.dtype == np.float32
    assert wanted.dtype == np.float64
    assert np.abs(Z - wanted).max() < 2e-4 * max(np.abs(wanted).max(), 0.1)
    assert np.array_equal(single.code(X.astype(np.float32)), Z)


@pytest.mark.parametrize("kind", KINDS)
def test_a_face_of_integers_is_coded_as_numbers(kind: str) -> None:
    D = dictionary(0)
    X = np.eye(40, 2, dtype=np.int64)
    coder = Coder(D, usual(kind))
    assert np.array_equal(coder.code(X), coder.code(X.astype(float)))


# --- Settings ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "l2"},
        {"kind": ""},
        {"lam": 0.0},
        {"lam": -1.0},
        {"lam": float("nan")},
        {"iterations": 0},
        {"mu0": 0.0},
        {"rho": 0.9},
        {"rho": float("nan")},
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="coding"):
        Coding(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_solves_the_same_problem(kind: str) -> None:
    coding = replace(Coding.default(kind), lam=0.7)
    assert coding.kind == coding.converged().kind == kind
    assert coding.converged().lam == 0.7
    assert coding.converged().iterations > coding.iterations
    with pytest.raises(ValueError, match="coding"):
        Coding.default("l3")
