"""LRSR: the coder and LRRS equal an independent solver; RBDS has small residuals and block-diagonal codes."""

from __future__ import annotations

from itertools import pairwise

import cvxpy
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from edge.errors import ParameterError, TrainingError
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import file_of
from tests.fixtures.small import assert_sklearn_accepts, dictionary, faces, minimiser, objective, vectors
from trainer.baselines.lclrr import LCLRR
from trainer.baselines.lrr import LRR, represent
from trainer.baselines.lrrs import LRRS, RBDS, SparseCoding, block_diagonal, code_faces, code_sparsely
from trainer.method import coding as module
from trainer.method.result import SolverResult
from trainer.paper.experiments import Cell, load_arrays
from trainer.types import Array

pytestmark = pytest.mark.slow

# --- One face ---


def of_each_face(X: Array, D: Array, Z: Array, coding: SparseCoding) -> Array:
    error = np.abs(X - D @ Z).sum(axis=0)
    return np.linalg.norm(Z, axis=0) + coding.beta * np.abs(Z).sum(axis=0) + coding.lam * error


@pytest.mark.parametrize("beta", [0.0, 0.03, 0.3])
def test_code_equals_an_independent_solver(beta: float) -> None:
    D = dictionary(0, d=20, m=10)
    X = faces(0, D, n=2)
    lam = 1.0
    found = code_sparsely(D, X, SparseCoding(lam=lam, beta=beta, iterations=3000, rho=1.0, relaxation=1.6))
    for j in range(2):
        z = cvxpy.Variable(10)
        cost = cvxpy.norm(z, 2) + beta * cvxpy.norm(z, 1) + lam * cvxpy.norm(X[:, j] - D @ z, 1)
        assert np.abs(found[:, j] - minimiser(cost, z)[0]).max() < 1e-4


def test_fixed_iterations_are_close_to_the_optimum() -> None:
    D = dictionary(0)
    X = faces(0, D)
    coding = SparseCoding(lam=0.5)
    codes: list[Array] = []
    Z = code_sparsely(D, X, coding, lambda k, z: codes.append(z.copy()))
    assert len(codes) == coding.iterations
    assert np.array_equal(codes[-1], Z)
    best = of_each_face(X, D, code_sparsely(D, X, SparseCoding(lam=0.5, iterations=3000, rho=1.0, relaxation=1.6)), coding)
    gaps = [float(of_each_face(X, D, codes[k - 1], coding).sum() / best.sum() - 1) for k in (1, 6, 24)]
    assert all(late < early for early, late in pairwise(gaps)), gaps
    assert -1e-9 < gaps[-1] < 0.02


def test_code_is_sparser_with_a_larger_beta() -> None:
    D = dictionary(3)
    X = faces(3, D)

    def used(beta: float) -> int:
        return int((np.abs(code_sparsely(D, X, SparseCoding(lam=0.5, beta=beta, iterations=1000, rho=1.0))) > 1e-4).sum())

    assert used(0.5) < used(0.1) < used(0.0)


def test_code_depends_neither_on_other_faces_nor_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    D = dictionary(4)
    X = faces(4, D, n=9)
    coding = SparseCoding(lam=0.5)
    whole = code_faces(D, X, coding)
    assert whole.dtype == np.float32
    assert np.abs(whole - code_sparsely(D, X, coding)).max() < 1e-5
    monkeypatch.setattr(module, "CHUNK", 4)
    assert np.abs(code_faces(D, X, coding) - whole).max() < 1e-6
    blank = np.hstack([np.zeros((40, 1)), X])
    assert not code_faces(D, blank, coding)[:, 0].any()


@pytest.mark.parametrize("wrong", [{"lam": 0}, {"beta": -1}, {"iterations": 0}, {"rho": 0.9}, {"relaxation": 2}, {"kappa": 0}])
def test_invalid_coding_is_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError, match="coding needs"):
        SparseCoding(**wrong)  # type: ignore[arg-type]


# --- LRRS ---


def test_codes_of_all_samples_equal_an_independent_solver() -> None:
    D = dictionary(5, d=12, m=8)
    X = faces(5, D, n=7)
    lam, beta = 0.5, 0.05
    Z = cvxpy.Variable((8, 7))
    cost = cvxpy.normNuc(Z) + beta * cvxpy.sum(cvxpy.abs(Z)) + lam * cvxpy.sum(cvxpy.abs(X - D @ Z))
    _, best = minimiser(cost, Z)
    R = np.full((8, 7), beta)
    found = represent(X, D, lam=lam, R=R, rho=1.02, tol=1e-6).Z
    assert abs(objective(X, D, found, lam, "l1", R) / best - 1) < 1e-4


@pytest.mark.parametrize("method", [LRRS, RBDS])
@pytest.mark.parametrize("classifier_codes", ["coder", "training"])
def test_held_out_samples_are_recognised(method: type[LRRS | RBDS], classifier_codes: str) -> None:
    X, y = vectors()
    held_out = np.arange(len(y)) % 2 == 1
    model = method(classifier_codes=classifier_codes).fit(X[~held_out], y[~held_out])
    assert model.score(X[held_out], y[held_out]) == 1


@pytest.mark.parametrize("method", [LRRS, RBDS, LRR, LCLRR])
def test_lam_does_not_depend_on_the_image_size(method: type[LRRS | RBDS | LRR | LCLRR]) -> None:
    """A face with each pixel twice has the same code."""
    X, y = vectors()
    doubled = np.hstack([X, X])
    for classifier_codes in ("coder", "training"):
        once, twice = (method(classifier_codes=classifier_codes).fit(A, y) for A in (X, doubled))
        assert np.abs(once.codes_).max() > 0.1
        assert np.abs(once.codes_ - twice.codes_).max() < 1e-2
        assert np.abs(once.decision_function(X) - twice.decision_function(doubled)).max() < 1e-2


@pytest.mark.parametrize("method", [LRRS, RBDS])
def test_zero_codes_are_an_error(method: type[LRRS | RBDS]) -> None:
    X, y = vectors()
    with pytest.raises(TrainingError, match="collapsed"):
        method(lam=1e-6, classifier_codes="training").fit(X, y)


@pytest.mark.parametrize("estimator", [LRRS(), RBDS()], ids=["LRRS", "RBDS"])
def test_estimator_passes_the_checks_of_scikit_learn(estimator: LRRS | RBDS) -> None:
    assert_sklearn_accepts(estimator)


def test_grid_search_finds_the_better_parameters() -> None:
    X, y = vectors()
    search = GridSearchCV(LRRS(atoms_per_class=2), {"lam": [4.0], "eta": [1e-3, 1e6], "beta": [0.01, 0.1]}, cv=2).fit(X, y)
    assert search.best_params_["eta"] == 1e-3
    assert search.best_score_ > 0.9


@pytest.mark.parametrize(("method", "printed"), [(LRRS, 75.3), (RBDS, 80.3)])
def test_accuracy_reaches_the_published_figure(method: type[LRRS | RBDS], printed: float) -> None:
    """Yale B, 8 images each, at 1/8, on a split that no table uses, with a fifth of the test images."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    train, test = cell.split(labels, np.random.default_rng([777, 0]))
    test = test[::5]
    model = method(features=cell.spec("pixels")).fit(images[train], labels[train])
    assert 100 * model.score(images[test], labels[test]) > printed - 2


# --- As printed: all faces of a call are coded together ---


@pytest.mark.parametrize("method", [LRRS, RBDS])
def test_faces_coded_together_solve_the_low_rank_problem(method: type[LRRS | RBDS]) -> None:
    X, y = vectors(classes=3, each=4, d=12)
    lam, beta = 3.0, 0.05
    model = method(2, lam=lam, beta=beta, together=True).fit(X, y)
    faces_ = (X[::2] / np.linalg.norm(X[::2], axis=1, keepdims=True)).T
    Z = cvxpy.Variable((6, 6))
    D, weight = model.D_, lam / np.sqrt(12)
    cost = cvxpy.normNuc(Z) + beta * cvxpy.sum(cvxpy.abs(Z)) + weight * cvxpy.sum(cvxpy.abs(faces_ - D @ Z))
    _, best = minimiser(cost, Z)
    found = objective(faces_, D, model.code(faces_), weight, "l1", np.full((6, 6), beta))
    assert found / best - 1 < 0.02
    alone = np.hstack([model.code(faces_[:, [j]]) for j in range(6)])
    assert objective(faces_, D, alone, weight, "l1", np.full((6, 6), beta)) > found, "the codes depend on the other faces"


@pytest.mark.parametrize("method", [LRRS, RBDS])
def test_maximum_scales_by_the_training_data(method: type[LRRS | RBDS]) -> None:
    """A common factor changes nothing; brighter faces at test time do."""
    X, y = vectors()
    model = method(3, together=True, scaling="maximum", lam=0.3, classifier_codes="training")
    scores = clone(model).fit(X, y).decision_function(X)
    assert np.abs(clone(model).fit(7 * X, y).decision_function(7 * X) - scores).max() < 1e-6
    assert np.abs(clone(model).fit(X, y).decision_function(2 * X) - scores).max() > 1e-2


@pytest.mark.parametrize("kind", ["pixels", "both"])
def test_maximum_divides_pixels_and_needs_them(kind: str) -> None:
    images = np.random.default_rng(0).integers(0, 200, (12, 13, 11)).astype(np.uint8)
    images[0] = 0
    y = np.arange(12) % 3
    model = LRRS(2, together=True, scaling="maximum", lam=0.3, features=FeatureSpec(height=13, width=11, kind=kind, cell=2))
    if kind == "both":
        with pytest.raises(ParameterError, match="needs the features"):
            model.fit(images[1:], y[1:])
        return
    model.fit(images[3:], y[3:])
    means = images[:, :12, :10].reshape(12, 6, 2, 5, 2).mean(axis=(2, 4)).reshape(12, -1)
    assert np.abs(model._rows(images)[0] - means / means[3:].max()).max() < 1e-5


def test_a_device_does_not_code_faces_together() -> None:
    with pytest.raises(ParameterError, match="one face at a time"):
        _ = LRRS(together=True).coding
    X, y = vectors()
    with pytest.raises(ParameterError, match="needs together"):
        LRRS(scaling="maximum").fit(X, y)


@pytest.mark.parametrize("scaling", ["unit", "maximum"])
@pytest.mark.parametrize("method", [LRRS, RBDS])
def test_printed_form_passes_the_checks_of_scikit_learn(method: type[LRRS | RBDS], scaling: str) -> None:
    assert_sklearn_accepts(method(together=True, scaling=scaling, classifier_codes="training"))


# --- RBDS ---


def trained(alpha: float, seed: int = 0) -> tuple[Array, Array, SolverResult]:
    """Return X, same and the result for similar people: with a small alpha their codes use all atoms."""
    rng = np.random.default_rng(seed)
    people = rng.normal(size=(40, 1)) + 0.5 * rng.normal(size=(40, 4))
    y = np.repeat(np.arange(4), 10)
    X = people[:, y] + 0.3 * rng.normal(size=(40, 40))
    X /= np.linalg.norm(X, axis=0)
    atoms = np.flatnonzero(np.arange(40) % 10 < 4)
    same = y[atoms][:, None] == y
    return X, same, block_diagonal(X, X[:, atoms], same, alpha=alpha, lam=0.8, beta=0.05, gamma=0.2)


@pytest.mark.parametrize("alpha", [0.01, 10.0])
def test_residuals_vanish(alpha: float) -> None:
    X, _, result = trained(alpha)
    assert result.converged
    assert result.residuals[-1].max() < 1e-4 < result.residuals[0].max()
    assert np.abs(X - result.D @ result.Z - result.E).max() < 1e-4
    assert np.abs(result.Z).max() > 0.05


def test_codes_with_atoms_of_others_fall_as_alpha_grows() -> None:
    shares = []
    for alpha in (0.01, 1.0, 10.0, 100.0):
        _, same, result = trained(alpha)
        shares.append(np.linalg.norm(result.Z[~same]) / np.linalg.norm(result.Z))
    assert all(late < early for early, late in pairwise(shares)), shares
    assert shares[-1] < 0.7 * shares[0]


def test_first_iterations_equal_the_published_updates() -> None:
    """The reference uses the printed updates, with an SVD and inverses."""
    X, same, _ = trained(1.0)
    D = D0 = X[:, :: len(X) // len(same)][:, : len(same)]
    alpha, lam, beta, gamma, rho = 1.0, 0.8, 0.05, 0.2, 1.5
    mu = 0.2 * lam * np.sqrt(len(X))
    eye = np.eye(len(same))
    Z, L, Q, Y2, Y3 = (np.zeros(same.shape) for _ in range(5))
    E, Y1 = np.zeros_like(X), np.zeros_like(X)
    ranks = []

    def shrunk(A: Array, t: float) -> Array:
        return np.sign(A) * np.maximum(np.abs(A) - t, 0)

    for k in range(1, 9):
        U, s, Vt = np.linalg.svd(Z + Y2 / mu, full_matrices=False)
        J = U @ np.diag(shrunk(s, 1 / mu)) @ Vt
        ranks.append(int((s > 1 / mu).sum()))
        right = D.T @ (X - E) + J + L + (D.T @ Y1 - Y2 - Y3 + alpha * Q) / mu
        Z = np.linalg.inv(D.T @ D + (2 + alpha / mu) * eye) @ right
        L = shrunk(Z + Y3 / mu, beta / mu)
        E = shrunk(X - D @ Z + Y1 / mu, lam / mu)
        D = (X - E + Y1 / mu) @ Z.T @ np.linalg.inv(Z @ Z.T + gamma / mu * eye)
        Q = Z * same
        Y1, Y2, Y3 = Y1 + mu * (X - D @ Z - E), Y2 + mu * (Z - J), Y3 + mu * (Z - L)
        mu *= rho
        result = block_diagonal(X, D0, same, alpha=alpha, lam=lam, beta=beta, gamma=gamma, rho=rho, max_iterations=k)
        for found, expected in ((result.Z, Z), (result.E, E), (result.D, D)):
            assert np.abs(found - expected).max() < 1e-8
    assert any(0 < rank < len(same) for rank in ranks), "some singular values, but not all, are above the threshold"
    assert (L == 0).any()


def test_codes_use_atoms_of_the_same_class() -> None:
    X, y = vectors()
    model = RBDS(beta=0.2).fit(X, y)
    assert model.coding == SparseCoding(lam=8 / np.sqrt(30), beta=0.2)
    own = model.atom_classes_[:, None] == y
    assert np.linalg.norm(model.result_.Z[own]) > 3 * np.linalg.norm(model.result_.Z[~own])
