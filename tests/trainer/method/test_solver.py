"""The fast solver is Algorithm 1: it equals the literal transcription in tests/fixtures/oracle.py, with less memory.

The iteration amplifies rounding errors. So each comparison first checks that a change of X in the 15th digit does not move the
oracle's own result.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from edge.errors import ParameterError
from tests.fixtures import data, oracle
from trainer.method.locality import locality_weights
from trainer.method.prox import column_norms
from trainer.method.result import SolverResult
from trainer.method.solver import MU_MAX, SCHEDULES, Schedule, Step, _entries_below, _largest_error, _rotate, _solve, solve
from trainer.types import Array

pytestmark = pytest.mark.slow

PAPER = SCHEDULES["paper"]
Z_TOLERANCE, D_TOLERANCE = 1e-5, 1e-3


@dataclass(frozen=True)
class Problem:
    """X, D0 and the weights of the terms."""

    X: Array
    D: Array
    lam: float = 25.0
    alpha: float = 0.5
    gamma: float = 0.05

    @property
    def weights(self) -> dict[str, Any]:
        return {"lam": self.lam, "alpha": self.alpha, "gamma": self.gamma}


def low_rank(seed: int, d: int, n: int, m: int, *, classes: int = 4, rank: int = 4) -> Problem:
    """Samples of a few subspaces with a little noise. Atoms are samples or, if m > n, also mixtures of samples."""
    rng = np.random.default_rng(seed)
    bases = rng.normal(size=(classes, d, rank))
    X = np.stack([bases[j % classes] @ rng.normal(size=rank) for j in range(n)], axis=1)
    X = unit_columns(X + 0.02 * rng.normal(size=(d, n)))
    mixtures = X @ rng.normal(size=(n, max(m - n, 0)))
    return Problem(X, unit_columns(np.hstack([X[:, rng.permutation(n)[:m]], mixtures])))


def unit_columns(A: Array) -> Array:
    return A / np.linalg.norm(A, axis=0)


@cache
def yale_b() -> tuple[Array, Array]:
    with np.load(data.file_of("yaleb_96x84.npz")) as archive:
        return archive["images"], archive["labels"]


def yale_slice(people: int, rate: int, seed: int, *, per_person: int = 8, atoms: int = 5) -> Problem:
    """Return a part of Yale B."""
    images, labels = yale_b()
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == c))[:per_person] for c in np.unique(labels)[:people]]
    some = images[np.concatenate(chosen)].astype(float)
    cell = rate // 2  # the file is at rate 1/2
    n, height, width = some.shape
    some = some.reshape(n, height // cell, cell, width // cell, cell).mean(axis=(2, 4))
    X = unit_columns(some.reshape(n, -1).T)
    return Problem(X, np.hstack([X[:, i * per_person :][:, :atoms] for i in range(people)]))


def distance_of_dictionaries(D: Array, expected: Array) -> float:
    return float(np.linalg.norm(D - expected) / np.linalg.norm(expected))


def oracle_of(problem: Problem, R: Array, schedule: Schedule = PAPER) -> oracle.OracleResult:
    """Return the oracle's result, after a check that rounding moves it by less than a fifth of the tolerance."""
    steps: dict[str, Any] = {"rho": schedule.rho, "tol": schedule.tol, "mu_max": MU_MAX}
    answer = oracle.solve(problem.X, problem.D, R, **problem.weights, **steps)
    noise = 1e-14 * np.random.default_rng(1).normal(size=problem.X.shape)
    moved = oracle.solve(problem.X + noise, problem.D, R, **problem.weights, **steps)
    assert np.abs(moved.Z - answer.Z).max() < Z_TOLERANCE / 5
    assert distance_of_dictionaries(moved.D, answer.D) < D_TOLERANCE / 5
    return answer


def assert_equal(result: SolverResult, expected: oracle.OracleResult, X: Array) -> None:
    assert result.converged
    assert np.abs(expected.Z).max() > 0.05  # collapsed solutions would be equal in any case
    assert np.abs(result.Z - expected.Z).max() < Z_TOLERANCE
    assert distance_of_dictionaries(result.D, expected.D) < D_TOLERANCE
    assert np.abs(result.E - expected.E).max() < Z_TOLERANCE
    assert np.abs(X - result.D @ result.Z - result.E).max() < 1e-6 * (1 + 1e-6)


SHAPES = {
    "rotated": (60, 40, 20),
    "rotated, tall": (300, 40, 20),
    "wide": (30, 50, 20),
    "square": (20, 20, 10),
    "as many atoms as samples": (60, 24, 24),
    "rotated, more atoms than samples": (60, 20, 30),
    "wide, more atoms than samples": (15, 20, 30),
}


def check_against_oracle(problem: Problem, form: str = "exp", schedule: Schedule = PAPER) -> SolverResult:
    R = oracle.locality_weights(problem.X, problem.D, form)
    expected = oracle_of(problem, R, schedule)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=schedule)
    assert_equal(result, expected, problem.X)
    assert result.iterations == expected.iterations
    assert result.residuals.shape == (expected.iterations, 3)
    return result


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_solver_equals_oracle_for_any_shape(shape: tuple[int, int, int]) -> None:
    for seed, form in enumerate(("exp", "squared")):
        check_against_oracle(low_rank(seed, *shape), form)


@pytest.mark.parametrize("weights", [(1.0, 0.1, 0.05), (25.0, 0.05, 1.0), (2.0, 1e-3, 5.0), (100.0, 0.5, 0.5)])
def test_solver_equals_oracle_for_other_weights(weights: tuple[float, float, float]) -> None:
    lam, alpha, gamma = weights
    for shape in ((80, 40, 20), (30, 50, 20)):
        check_against_oracle(replace(low_rank(5, *shape), lam=lam, alpha=alpha, gamma=gamma))


@pytest.mark.parametrize("form", ["exp", "squared"])
def test_solver_equals_oracle_with_its_own_locality_weights(form: str) -> None:
    """An atom is a sample at distance zero. Weights with an error of 1e-8 there lead to another solution."""
    problem = low_rank(1, 60, 40, 20)
    expected = oracle_of(problem, oracle.locality_weights(problem.X, problem.D, form))
    R = locality_weights(problem.X, problem.D, form)
    assert_equal(solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER), expected, problem.X)


@pytest.mark.parametrize(("people", "rate", "seed", "form"), [(8, 8, 1, "exp"), (8, 4, 2, "squared")])
def test_solver_equals_oracle_on_yale_b(people: int, rate: int, seed: int, form: str) -> None:
    problem = yale_slice(people, rate, seed)
    R = oracle.locality_weights(problem.X, problem.D, form)
    assert np.abs(locality_weights(problem.X, problem.D, form) - R).max() < 1e-13
    expected = oracle_of(problem, R)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER)
    assert_equal(result, expected, problem.X)
    assert abs(result.iterations - expected.iterations) <= 1  # rounding decides about a residual at the tolerance


@pytest.mark.parametrize("shape", [(60, 40, 20), (30, 50, 20)])
def test_fast_schedule_is_the_default_and_the_same_algorithm(shape: tuple[int, int, int]) -> None:
    problem = low_rank(0, *shape)
    R = oracle.locality_weights(problem.X, problem.D, "exp")
    expected = oracle_of(problem, R, SCHEDULES["fast"])
    result = solve(problem.X, problem.D, R, **problem.weights)
    assert result.iterations == expected.iterations < 30
    assert np.abs(result.Z - expected.Z).max() < Z_TOLERANCE
    assert distance_of_dictionaries(result.D, expected.D) < D_TOLERANCE


def test_first_dictionary_outside_the_span_of_the_samples_is_not_rotated() -> None:
    problem = low_rank(2, 60, 30, 12)
    outside = unit_columns(problem.D + 0.5 * np.random.default_rng(0).normal(size=problem.D.shape))
    assert _rotate(problem.X, outside)[1] is None
    check_against_oracle(replace(problem, D=outside))
    one = problem.D.copy()  # one atom, outside by very little
    one[:, 3] += 1e-8 * outside[:, 3]
    assert _rotate(problem.X, one)[1] is None


def test_solver_collapses_if_the_oracle_does() -> None:
    problem = replace(low_rank(0, 60, 40, 20), lam=0.3, alpha=0.1, gamma=0.5)
    R = oracle.locality_weights(problem.X, problem.D, "exp")
    expected = oracle_of(problem, R)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER)
    assert np.abs(expected.Z).max() < 1e-6
    assert np.abs(result.Z).max() < 1e-6
    assert result.rank == 0
    assert np.abs(result.E - problem.X).max() < 1e-5


# --- Stopping ---


def test_solver_stops_by_the_largest_entry_in_pixel_space() -> None:
    """Rotated rows are not pixels. With these weights the column norms of the residual are still above the tolerance."""
    problem = replace(low_rank(0, 400, 40, 20), alpha=1e-3, gamma=1.0)
    R = oracle.locality_weights(problem.X, problem.D, "exp")
    expected = oracle_of(problem, R)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER)
    assert result.iterations == expected.iterations
    assert result.residuals[-1, 0] > PAPER.tol > expected.residual
    assert np.abs(problem.X - result.D @ result.Z - result.E).max() < PAPER.tol * (1 + 1e-6)


def test_entries_below_is_exact() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(rng.normal(size=(50, 8)))
        Q = np.asfortranarray(Q)
        residual = np.asfortranarray(rng.normal(size=(8, 12)) * rng.uniform(0, 1, 12))
        for part in (residual, residual[:, :1]):  # of one column, the norm is above the tolerance
            largest = float(np.abs(Q @ part).max())
            assert _entries_below(part, Q, largest * (1 + 1e-9)) is True
            assert _entries_below(part, Q, largest * (1 - 1e-9)) is False
        assert _entries_below(residual, None, float(np.abs(residual).max()) * (1 + 1e-9))
        assert not _entries_below(residual, None, float(np.abs(residual).max()))
        assert _entries_below(np.zeros_like(residual), Q, 1e-300)
    assert not _entries_below(np.array([[0.5]]), np.array([[1.0], [0.0]]), 0.5)


def test_solver_reports_that_it_did_not_converge() -> None:
    problem = low_rank(0, 60, 40, 20)
    R = locality_weights(problem.X, problem.D)
    enough = solve(problem.X, problem.D, R, **problem.weights).iterations
    for limit in (enough - 1, enough):
        schedule = replace(SCHEDULES["fast"], max_iterations=limit)
        result = solve(problem.X, problem.D, R, **problem.weights, schedule=schedule)
        assert result.converged is (limit == enough)
        assert result.iterations == limit
        assert result.residuals.shape == (limit, 3)


def test_penalty_is_bounded() -> None:
    problem = low_rank(0, 30, 20, 8)
    steps: list[Step] = []
    endless = Schedule(rho=4.0, tol=1e-300, max_iterations=40)
    R = locality_weights(problem.X, problem.D)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=endless, callback=steps.append)
    assert not result.converged
    assert max(step.mu for step in steps) == steps[-1].mu == 1e8
    assert all(np.isfinite(A).all() for A in (result.Z, result.D, result.residuals))


def test_multipliers_keep_their_scale_at_the_largest_penalty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the largest penalty is small, so that it matters."""
    problem = low_rank(0, 60, 40, 20)
    R = oracle.locality_weights(problem.X, problem.D, "exp")
    monkeypatch.setattr("trainer.method.solver.MU_MAX", 20.0)
    few = Schedule(rho=1.5, tol=1e-300, max_iterations=60)
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=few)
    expected = oracle.solve(problem.X, problem.D, R, **problem.weights, rho=1.5, tol=1e-300, mu_max=20.0, max_iterations=60)
    assert np.abs(expected.Z).max() > 0.05
    assert np.abs(result.Z - expected.Z).max() < Z_TOLERANCE
    assert distance_of_dictionaries(result.D, expected.D) < D_TOLERANCE


def test_schedules_have_the_documented_values_and_limits() -> None:
    assert SCHEDULES["paper"] == Schedule(rho=1.15, tol=1e-6, max_iterations=500, mu0=None)
    assert (SCHEDULES["fast"].rho, SCHEDULES["fast"].tol) == (2.0, 1e-4)
    assert (SCHEDULES["quick"].rho, SCHEDULES["quick"].tol, SCHEDULES["quick"].mu0) == (8.0, 1e-3, 1.0)
    assert Schedule(max_iterations=1).max_iterations == 1
    wrong: list[dict[str, Any]] = [{"rho": 1.0}, {"rho": np.inf}, {"tol": 0.0}, {"tol": np.nan}, {"max_iterations": 0}]
    for fields in [*wrong, {"mu0": 0.0}, {"mu0": -1.0}]:
        with pytest.raises(ParameterError, match="schedule"):
            Schedule(**fields)


def test_callback_receives_every_iteration() -> None:
    problem = low_rank(1, 60, 40, 20)
    R = locality_weights(problem.X, problem.D)
    steps: list[Step] = []
    result = solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER, callback=steps.append)
    assert [step.iteration for step in steps] == list(range(1, result.iterations + 1))
    assert np.array_equal([step.residuals for step in steps], result.residuals)
    mu = np.array([step.mu for step in steps])
    assert np.allclose(mu[1:] / mu[:-1], PAPER.rho)
    assert np.isclose(mu[0] / PAPER.rho, 1 / np.sqrt(60))
    assert steps[-1].rank == result.rank > 0
    assert steps[0].rank == 0  # Z is still zero there
    quiet = solve(problem.X, problem.D, R, **problem.weights, schedule=PAPER)
    assert np.array_equal(quiet.Z, result.Z)


def test_residuals_measure_the_constraint() -> None:
    for shape in ((60, 40, 20), (30, 50, 20)):
        problem = low_rank(4, *shape)
        R = locality_weights(problem.X, problem.D)
        result = solve(problem.X, problem.D, R, **problem.weights)
        expected = float(column_norms(problem.X - result.D @ result.Z - result.E).max())
        assert np.isclose(result.residuals[-1, 0], expected, rtol=1e-6, atol=1e-12)


# --- Inputs ---


def test_inputs_are_not_changed_and_their_layout_does_not_matter() -> None:
    for shape in ((60, 40, 20), (30, 50, 20)):
        problem = low_rank(3, *shape)
        X, D = np.asfortranarray(problem.X), np.asfortranarray(problem.D)
        R = np.asfortranarray(locality_weights(X, D))
        before = X.copy(), D.copy(), R.copy()
        first = solve(X, D, R, **problem.weights)
        for now, then in zip((X, D, R), before, strict=True):
            assert np.array_equal(now, then)
        second = solve(*(np.ascontiguousarray(A) for A in (X, D, R)), **problem.weights)
        assert np.array_equal(first.Z, second.Z)
        assert not np.shares_memory(first.D, D)
        assert not np.shares_memory(first.E, X)


def test_order_of_samples_does_not_matter() -> None:
    problem = low_rank(6, 60, 40, 20)
    R = locality_weights(problem.X, problem.D)
    order = np.random.default_rng(0).permutation(40)
    one = solve(problem.X, problem.D, R, **problem.weights)
    other = solve(problem.X[:, order], problem.D, R[:, order], **problem.weights)
    assert np.abs(one.Z[:, order] - other.Z).max() < 1e-7
    assert distance_of_dictionaries(other.D, one.D) < 1e-6


def test_rotated_samples_give_the_rotated_dictionary() -> None:
    problem = low_rank(7, 60, 40, 20)
    R = locality_weights(problem.X, problem.D)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(60, 60)))
    endless = replace(SCHEDULES["fast"], tol=1e-300, max_iterations=20)  # the stopping test depends on pixels
    one = solve(problem.X, problem.D, R, **problem.weights, schedule=endless)
    other = solve(turn @ problem.X, turn @ problem.D, R, **problem.weights, schedule=endless)
    assert np.abs(one.Z - other.Z).max() < 1e-7
    assert distance_of_dictionaries(other.D, turn @ one.D) < 1e-6


# --- Parts of the solver ---


@pytest.mark.parametrize("form", ["exp", "squared"])
def test_locality_weights_equal_the_oracle(form: str) -> None:
    """Also if an atom is a sample, and if two samples are the same photo."""
    for seed in range(3):
        problem = low_rank(seed, 50, 30, 20)
        X = np.hstack([problem.X, problem.X[:, :3], problem.X[:, 3:6] + 1e-9])
        R = locality_weights(X, problem.D, form)
        assert R.shape == (20, 36)
        assert np.abs(R - oracle.locality_weights(X, problem.D, form)).max() < 1e-13
        assert R.min() >= 0
        if form == "exp":
            assert np.allclose(R.max(axis=1), 1, rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match="exp"):
        locality_weights(X, problem.D, "cubed")


def test_rotation_shortens_x_and_keeps_its_geometry() -> None:
    problem = low_rank(0, 60, 20, 10)
    X, Q, D = _rotate(problem.X, problem.D)
    assert Q is not None
    assert X.shape == (20, 20)
    assert np.abs(Q.T @ Q - np.eye(20)).max() < 1e-13
    assert np.abs(Q @ X - problem.X).max() < 1e-13
    assert np.abs(Q @ D - problem.D).max() < 1e-13
    # Each photo twice: X does not have full rank, but the atoms are still in its span.
    twice = np.hstack([problem.X, problem.X])
    X, Q, D = _rotate(twice, problem.D)
    assert Q is not None
    assert np.abs(Q @ D - problem.D).max() < 1e-12


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_largest_error_needs_no_product(scale: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        d, n, m = 12, 9, 6
        D, B, K = rng.normal(size=(d, m)), scale * rng.normal(size=(d, n)), scale * rng.normal(size=(m, n))
        right = D.T @ B + K
        Z = np.linalg.solve(D.T @ D + 2 * np.eye(m), right)
        assert np.isclose(_largest_error(B, Z, K, right), np.linalg.norm(B - D @ Z, axis=0).max(), rtol=1e-9)


@pytest.mark.parametrize("ridge", [0.5, 1e-9])
def test_solve_with_a_gram_matrix(ridge: float) -> None:
    """Also with an almost singular matrix, as ZZ' + gamma/mu I is late in a run: by the residual."""
    rng = np.random.default_rng(0)
    A = rng.normal(size=(6, 9)) if ridge == 0.5 else rng.normal(size=(6, 3)) @ rng.normal(size=(3, 9))
    gram = A @ A.T
    full = gram + ridge * np.eye(6)
    right, left = rng.normal(size=(6, 4)), rng.normal(size=(4, 6))
    above = np.triu(np.full((6, 6), 7.0), 1)  # is not read
    solution = _solve(np.asfortranarray(np.tril(gram) + above), ridge, np.asfortranarray(right))
    assert np.abs(full @ solution - right).max() < 1e-14 * np.linalg.norm(full) * np.linalg.norm(solution)
    solution = _solve(np.asfortranarray(np.tril(gram) + above), ridge, np.asfortranarray(left), side=1)
    assert np.abs(solution @ full - left).max() < 1e-14 * np.linalg.norm(full) * np.linalg.norm(solution)


@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_solve_refuses_a_matrix_that_is_not_positive_definite(bad: float) -> None:
    with pytest.raises(FloatingPointError, match="positive definite"):
        _solve(np.asfortranarray(bad * np.eye(3)), 0.5, np.ones((3, 2), order="F"))


# --- Memory ---


def peak_entries(problem: Problem, schedule: Schedule) -> float:
    """Return the largest number of float64 entries that `solve` allocates, including its result."""
    X, D = np.asfortranarray(problem.X), np.asfortranarray(problem.D)
    R = np.asfortranarray(locality_weights(X, D))
    tracemalloc.start()
    try:
        solve(X, D, R, **problem.weights, schedule=schedule)
        return tracemalloc.get_traced_memory()[1] / 8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["paper", "fast"])
@pytest.mark.parametrize("shape", [(315, 200, 125), (1008, 152, 95), (160, 200, 125), (200, 200, 200)])
def test_memory_is_four_matrices_like_x_and_ten_like_z(shape: tuple[int, int, int], name: str) -> None:
    d, n, m = shape
    peak = peak_entries(low_rank(0, d, n, m, classes=20), replace(SCHEDULES[name], max_iterations=25))
    assert peak <= 4 * d * n + 10 * m * n
    if m < 0.7 * n:  # as in the paper: 5 atoms for 8 photos
        assert peak <= 12 * max(d, m) * n
