"""LCLRRDL as a scikit-learn classifier: conventions, clear errors, and never an empty model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from edge.errors import EdgeError, ParameterError, TrainingError
from edge.vision.preprocess import FeatureSpec, features, unit_rows
from tests.fixtures import oracle
from tests.fixtures.small import assert_sklearn_accepts, vectors
from trainer.method.base import random_atoms
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.estimator import LCLRRDL, check_solution
from trainer.method.locality import locality_weights
from trainer.method.result import SolverResult
from trainer.method.solver import Schedule, Step
from trainer.types import Array

pytestmark = pytest.mark.slow

HEIGHT, WIDTH = 12, 10
SPEC = FeatureSpec(height=HEIGHT, width=WIDTH)


def crops(seed: int = 0, people: int = 3, each: int = 6) -> tuple[Array, Array]:
    """(n, H, W) uint8 and names."""
    rng = np.random.default_rng(seed)
    faces = rng.integers(0, 256, (people, HEIGHT, WIDTH))
    y = np.repeat(np.arange(people), each)
    noisy = faces[y] + rng.normal(0, 15, (len(y), HEIGHT, WIDTH))
    return np.clip(noisy, 0, 255).astype(np.uint8), np.array(["zoe", "anna", "ben", "cleo"])[y]


# --- scikit-learn ---


@pytest.mark.parametrize(
    "estimator",
    [
        LCLRRDL(),
        LCLRRDL(coding="l21", schedule=Schedule(rho=1.5, tol=1e-4), atoms_per_class=3),
        LCLRRDL(coding=Coding(kind="batch", iterations=40, mu0=1e-2), classifier_codes="training", locality="squared"),
    ],
    ids=["default", "l21", "batch, as printed"],
)
def test_estimator_passes_the_checks_of_scikit_learn(estimator: LCLRRDL) -> None:
    assert_sklearn_accepts(estimator)


@pytest.mark.parametrize("coding", ["l1", "l21"])
def test_score_does_not_depend_on_other_samples(coding: str) -> None:
    X, y = vectors()
    model = LCLRRDL(coding=coding).fit(X, y)
    together = model.decision_function(X)
    alone = np.vstack([model.decision_function(X[[i]]) for i in range(len(X))])
    assert np.abs(together - alone).max() < 1e-4
    order = np.random.default_rng(0).permutation(len(X))
    assert np.abs(model.decision_function(X[order]) - together[order]).max() < 1e-4


@pytest.mark.parametrize("coding", ["l1", "l21", "batch"])
def test_held_out_samples_are_recognised(coding: str) -> None:
    X, y = vectors()
    model = LCLRRDL(coding=Coding(kind="batch", lam=1.0) if coding == "batch" else coding)
    train = np.arange(len(y)) % 2 == 0
    assert model.fit(X[train], y[train]).score(X[~train], y[~train]) == 1


def test_grid_search_finds_the_better_parameters() -> None:
    X, y = vectors()
    grid = {"lam": [1e-6, 25.0], "coding": ["l1", "l21"], "atoms_per_class": [2]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn reports the fits that collapse
        search = GridSearchCV(LCLRRDL(), grid, cv=2, error_score=0.0).fit(X, y)
    assert search.best_params_["lam"] == 25.0
    assert search.best_score_ > 0.9
    assert search.best_estimator_.D_.shape == (30, 8)
    collapsed = [p["lam"] < 1 for p in search.cv_results_["params"]]
    assert not search.cv_results_["mean_test_score"][collapsed].any()


def test_estimator_works_in_a_pipeline_and_in_cross_validation() -> None:
    X, y = vectors()
    twice = make_pipeline(FunctionTransformer(lambda A: 2 * A), LCLRRDL(atoms_per_class=3))
    assert cross_val_score(twice, X, y, cv=2).min() > 0.9
    one = LCLRRDL(atoms_per_class=3).fit(X, y)
    assert np.allclose(twice.fit(X, y).decision_function(X), one.decision_function(X), atol=1e-4)


def test_clone_and_set_params_carry_every_parameter() -> None:
    parameters: dict[str, Any] = {
        "atoms_per_class": 3,
        "lam": 7.0,
        "alpha": 0.2,
        "gamma": 0.1,
        "eta": 0.5,
        "locality": "squared",
        "label_weight": 0.2,
        "schedule": Schedule(rho=1.7),
        "coding": Coding(kind="l21", lam=3.0),
        "code_lam": 0.7,
        "classifier_codes": "training",
        "features": SPEC,
        "parts": (2, 2),
        "experts": True,
        "copies": 4,
        "covered": True,
        "doubt": False,
        "random_state": 9,
        "callback": print,
    }
    model = LCLRRDL(**parameters)
    assert model.get_params() == parameters
    assert clone(model).get_params() == parameters
    assert LCLRRDL().set_params(**parameters).get_params() == parameters
    with pytest.raises(NotFittedError):
        clone(model).predict(crops()[0])


# --- Labels and classes ---


def test_labels_may_be_names() -> None:
    X, y = vectors()
    names = np.array(["zoe", "anna", "ben", "çelik"])[y]
    model = LCLRRDL().fit(X, names)
    assert model.classes_.tolist() == sorted({*names})
    assert np.array_equal(model.predict(X), names)
    scores = model.decision_function(X)
    assert scores.shape == (32, 4)
    assert np.array_equal(model.predict(X), model.classes_[scores.argmax(axis=1)])
    numbers = LCLRRDL().fit(X, np.searchsorted(model.classes_, names))
    assert np.array_equal(numbers.decision_function(X), scores)


def test_two_classes_have_one_score() -> None:
    X, y = vectors(classes=2)
    names = np.array(["no", "yes"])[y]
    model = LCLRRDL().fit(X, names)
    scores = model.decision_function(X)
    assert scores.shape == (16,)
    assert np.array_equal(model.predict(X), np.where(scores > 0, "yes", "no"))
    assert np.array_equal(model.predict(X), names)
    both = (model.W_ @ model.coder_.code(X.T / np.linalg.norm(X, axis=1))).T
    assert np.allclose(scores, both[:, 1] - both[:, 0], atol=1e-5)


def test_one_class_is_rejected() -> None:
    X, _ = vectors()
    with pytest.raises(TrainingError, match=r"only one class.*at least one more"):
        LCLRRDL().fit(X, np.zeros(len(X), int))


def test_classes_may_have_few_or_equal_samples() -> None:
    X, y = vectors()
    some = np.concatenate([np.flatnonzero(y == c)[:n] for c, n in enumerate([1, 2, 5, 8])])
    model = LCLRRDL(atoms_per_class=5).fit(X[some], y[some])
    assert np.bincount(model.atom_classes_).tolist() == [1, 2, 5, 5]
    assert model.D_.shape == (30, 13)
    assert model.W_.shape == (4, 13)
    assert model.score(X[some], y[some]) == 1
    single = LCLRRDL().fit(X[::8], y[::8])  # one sample of each class
    assert single.D_.shape == (30, 4)
    assert single.score(X, y) > 0.9
    X, y = np.repeat(X[::4], 4, axis=0), np.repeat(y[::4], 4)
    equal = LCLRRDL(atoms_per_class=None).fit(X, y)
    assert equal.D_.shape == (30, 32)
    assert np.isfinite(equal.W_).all()
    assert equal.score(X, y) == 1


# --- Images ---


@pytest.mark.parametrize("kind", ["pixels", "gradient", "both"])
def test_crops_may_be_images_or_flat(kind: str) -> None:
    X, y = crops()
    spec = FeatureSpec(height=HEIGHT, width=WIDTH, kind=kind)
    model = LCLRRDL(features=spec).fit(X, y)
    assert model.score(X, y) == 1
    assert model.D_.shape == (spec.length, 15)
    assert model.n_features_in_ == HEIGHT * WIDTH
    flat = LCLRRDL(features=spec).fit(X.reshape(len(X), -1), y)
    assert np.array_equal(flat.decision_function(X), model.decision_function(X.reshape(len(X), -1)))
    # The same as vectors that the shared preprocessor made.
    rows = features(X, spec)
    by_hand = LCLRRDL().fit(rows, y)
    assert np.allclose(by_hand.decision_function(rows), model.decision_function(X), atol=1e-3)


def test_crops_work_in_cross_validation() -> None:
    X, y = crops()
    assert cross_val_score(LCLRRDL(features=SPEC), X.reshape(len(X), -1), y, cv=3).min() == 1


@pytest.mark.parametrize("kind", ["pixels", "gradient", "both"])
def test_blank_training_image_is_rejected(kind: str) -> None:
    for grey in (0, 90, 255):
        X, y = crops()
        X[4] = grey
        with pytest.raises(TrainingError, match="blank"):
            LCLRRDL(features=FeatureSpec(height=HEIGHT, width=WIDTH, kind=kind)).fit(X, y)


def test_blank_test_image_has_zero_scores() -> None:
    X, y = crops()
    model = LCLRRDL(features=SPEC).fit(X, y)
    assert not model.decision_function(np.zeros_like(X[:2])).any()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((18, HEIGHT, WIDTH + 1), np.uint8),
        np.zeros((18, WIDTH, HEIGHT - 1), np.uint8),
        np.zeros((18, HEIGHT * WIDTH, 3), np.uint8),
        np.full((18, HEIGHT, WIDTH), 256.0),
        np.full((18, HEIGHT, WIDTH), -1.0),
        np.full((18, HEIGHT, WIDTH), np.nan),
        np.full((18, HEIGHT, WIDTH), np.inf),
        np.zeros((0, HEIGHT, WIDTH), np.uint8),
    ],
    ids=["wide", "low", "colour", "too bright", "negative", "NaN", "inf", "none"],
)
def test_invalid_crops_are_rejected(wrong: Array) -> None:
    X, y = crops()
    with pytest.raises(ValueError):  # noqa: PT011 - several messages, some of scikit-learn
        LCLRRDL(features=SPEC).fit(wrong, y[: len(wrong)])
    with pytest.raises(ValueError):  # noqa: PT011
        LCLRRDL(features=SPEC).fit(X, y).predict(wrong)


def test_numbers_of_crops_and_labels_must_be_equal() -> None:
    X, y = crops()
    for n in (0, 17, 19):
        with pytest.raises(ValueError, match=r"inconsistent|samples"):
            LCLRRDL(features=SPEC).fit(X, np.resize(y, n))


# --- Bad values ---


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_rejected(value: float) -> None:
    X, y = vectors()
    model = LCLRRDL().fit(X, y)
    X = X.copy()
    X[3, 4] = value
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        LCLRRDL().fit(X, y)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.predict(X)


@pytest.mark.parametrize("name", ["lam", "alpha", "gamma", "eta", "code_lam"])
def test_weights_must_be_positive_and_finite(name: str) -> None:
    X, y = vectors()
    steps: list[Step] = []
    for value in (0, -1.0, np.nan, np.inf):
        weight: dict[str, Any] = {name: value}
        with pytest.raises(ParameterError, match=name):
            LCLRRDL(**weight, callback=steps.append).fit(X, y)
    assert not steps


@pytest.mark.parametrize(
    "wrong",
    [
        {"atoms_per_class": 0},
        {"atoms_per_class": 2.5},
        {"locality": "cubed"},
        {"schedule": "slow"},
        {"schedule": None},
        {"coding": "l3"},
        {"coding": None},
        {"classifier_codes": "both"},
        {"label_weight": -0.1},
        {"label_weight": 0.1, "classifier_codes": "training"},
        {"random_state": "seed"},
        {"copies": -1},
        {"copies": 2},  # without crops
    ],
    ids=str,
)
def test_bad_parameters_are_rejected_before_training(wrong: dict[str, Any]) -> None:
    X, y = vectors()
    steps: list[Step] = []
    with pytest.raises((ValueError, TypeError)):
        LCLRRDL(**wrong, callback=steps.append).fit(X, y)
    assert not steps


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scale_of_vectors_does_not_matter(factor: float) -> None:
    X, y = vectors()
    one, other = LCLRRDL().fit(X, y), LCLRRDL().fit(factor * X, y)
    assert np.allclose(one.decision_function(X), other.decision_function(factor * X), atol=1e-3)


# --- Collapse ---


@pytest.mark.parametrize("schedule", ["fast", "paper"])
@pytest.mark.parametrize("weights", [{"lam": 1e-6}, {"lam": 1e-2}, {"lam": 0.3, "gamma": 50.0}, {"alpha": 1e9}], ids=str)
def test_collapsed_solution_is_an_error(schedule: str, weights: dict[str, Any]) -> None:
    X, y = vectors()
    with pytest.raises(TrainingError, match=r"collapsed: every code is zero.*Use a larger lam"):
        LCLRRDL(schedule=schedule, **weights).fit(X, y)


@pytest.mark.parametrize("schedule", ["fast", "paper"])
def test_model_is_never_empty(schedule: str) -> None:
    X, y = vectors(2)
    trained = 0
    for lam in np.geomspace(1e-2, 10, 6):
        try:
            model = LCLRRDL(lam=lam, schedule=schedule).fit(X, y)
        except TrainingError:
            continue
        trained += 1
        assert model.result_.rank > 0
        assert min(np.abs(A).max() for A in (model.result_.Z, model.D_, model.W_)) > 1e-3
    assert 0 < trained < 6


SLOW: dict[str, Any] = {"iterations": 400, "mu0": 1e-2, "rho": 1.05}


@pytest.mark.parametrize(
    "coding",
    [Coding(kind="l21", lam=1e-3), Coding(lam=1e-4, **SLOW), Coding(kind="batch", lam=1e-3, **SLOW)],
    ids=["l21", "l1", "batch"],
)
def test_coder_with_only_zero_codes_is_an_error(coding: Coding) -> None:
    X, y = vectors()
    with pytest.raises(TrainingError, match="zero"):
        LCLRRDL(coding=coding).fit(X, y)


def result(Z: float = 1.0, D: float = 1.0, *, rank: int = 2, converged: bool = True) -> SolverResult:
    return SolverResult(np.full((2, 3), Z), np.full((4, 2), D), np.zeros((4, 3)), np.zeros((7, 3)), rank, converged)


def test_good_solution_passes_the_check() -> None:
    check_solution(result())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (result(Z=np.nan), "diverged"),
        (result(D=np.inf), "diverged"),
        (result(Z=0.0), "collapsed"),
        (result(D=0.0), "collapsed"),
        (result(Z=5e-5, rank=0), "collapsed"),  # zero within the tolerance of the fast schedule
        (result(converged=False), "did not converge in 7"),
        (result(Z=np.nan, converged=False), "diverged"),
    ],
)
def test_bad_solution_has_its_message(bad: SolverResult, sentence: str) -> None:
    with pytest.raises(TrainingError, match=sentence) as caught:
        check_solution(bad)
    assert caught.value.hint
    assert isinstance(caught.value, EdgeError)
    assert caught.value.exit_code == 2


def test_missing_convergence_is_an_error() -> None:
    X, y = vectors()
    with pytest.raises(TrainingError, match="did not converge in 8 iterations"):
        LCLRRDL(schedule=Schedule(rho=2.0, max_iterations=8)).fit(X, y)


# --- Learned attributes ---


def test_same_seed_gives_the_same_model() -> None:
    X, y = vectors()
    one, same, other = (LCLRRDL(atoms_per_class=3, random_state=seed).fit(X, y) for seed in (4, 4, 5))
    assert np.array_equal(one.D_, same.D_)
    assert np.array_equal(one.W_, same.W_)
    assert not np.allclose(one.D_, other.D_)
    assert np.array_equal(one.fit(X, y).W_, same.W_)  # a second fit starts again


def test_first_atoms_are_samples_of_their_class() -> None:
    _, y = vectors()
    labels = y[np.random.default_rng(0).permutation(len(y))]
    atoms = random_atoms(labels, 3, 0)
    assert len(set(atoms)) == 12
    assert np.array_equal(labels[atoms], np.repeat(np.arange(4), 3))


@pytest.mark.parametrize("coding", ["l1", "l21"])
def test_classifier_is_learned_on_the_chosen_codes(coding: str) -> None:
    X, y = vectors()
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    H = one_hot(y, 4)
    on = {codes: LCLRRDL(coding=coding, classifier_codes=codes).fit(X, y) for codes in ("coder", "training")}
    device = Coder(on["coder"].D_.astype(np.float32), Coding.default(coding)).code(rows.T)
    for model, Z in ((on["coder"], device), (on["training"], on["training"].result_.Z)):
        Z = Z.astype(np.float64)
        W = H @ Z.T @ np.linalg.inv(Z @ Z.T + model.eta * np.eye(len(Z)))  # eq. 9
        assert np.allclose(model.W_, W, rtol=1e-5, atol=1e-5 * np.abs(W).max())
        assert model.score(X, y) == 1
    assert np.array_equal(on["coder"].D_, on["training"].D_)
    assert not np.allclose(on["coder"].W_, on["training"].W_)


def test_dictionary_with_labels_is_that_of_samples_with_label_rows() -> None:
    X, y = vectors()
    samples = unit_rows(X).T.astype(np.float64)
    model = LCLRRDL(atoms_per_class=2, label_weight=0.3).fit(X, y)
    atoms = random_atoms(y, 2, 0)
    labelled = np.vstack([samples, 0.3 * one_hot(y, 4)])
    R = locality_weights(samples, samples[:, atoms])
    expected = oracle.solve(labelled, labelled[:, atoms], R, lam=25.0, alpha=0.5, gamma=0.05, rho=2.0, tol=1e-4)
    assert model.D_.shape == (len(samples), 8)
    assert np.allclose(model.D_, expected.D[: len(samples)], atol=1e-3)
    assert np.allclose(model.result_.E, expected.E[: len(samples)], atol=1e-5)


@pytest.mark.parametrize("eta", [1e-3, 1.0])
def test_ridge_minimises_its_objective(eta: float) -> None:
    rng = np.random.default_rng(0)
    Z, H = rng.normal(size=(6, 20)), one_hot(rng.integers(0, 3, 20), 3)
    W = ridge(Z, H, eta)

    def objective(A: Array) -> float:
        return float(np.sum((H - A @ Z) ** 2) + eta * np.sum(A**2))

    for scale in (1e-3, 0.1, 1.0):
        for _ in range(10):
            assert objective(W + scale * rng.normal(size=W.shape)) > objective(W)
    assert np.abs((H - W @ Z) @ Z.T - eta * W).max() < 1e-10  # the gradient vanishes


def test_one_hot_has_one_row_per_class() -> None:
    H = one_hot(np.array([2, 0, 2]), 4)
    assert np.array_equal(H, [[0, 1, 0], [0, 0, 0], [1, 0, 1], [0, 0, 0]])


def test_callback_receives_all_iterations() -> None:
    X, y = vectors()
    steps: list[Step] = []
    model = LCLRRDL(callback=steps.append).fit(X, y)
    assert len(steps) == model.n_iter_ == model.result_.iterations
    assert model.result_.converged


def test_learned_matrices_explain_the_training_data() -> None:
    """X = DZ + E holds in the space of the samples."""
    X, y = vectors()
    model = LCLRRDL().fit(X, y)
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    assert np.abs(rows.T - model.D_ @ model.result_.Z - model.result_.E).max() < 1e-4
