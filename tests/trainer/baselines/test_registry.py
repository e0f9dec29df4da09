"""Every method under its name: it learns, can be tuned and searched, and `trainer` takes it."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from edge.errors import UsageError
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces
from tests.trainer.conftest import Call
from trainer.baselines.registry import COLUMNS, METHODS, method_of
from trainer.method.base import CodeClassifier
from trainer.paper.experiments import CELLS, Cell, reproduce, tuned_parameters
from trainer.tuning import tune

SPEC = FeatureSpec.for_crop(24, 20, "pixels")
EIGHT = {"lclrrdl", "lrrs", "slrr", "lrsi", "rpca", "srw", "srs", "llc"}
names = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people in the shape of AR."""
    images, labels = faces(people=3, photos=26, size=(42, 30))
    file = tmp_path_factory.mktemp("data") / "ar_42x30.npz"
    np.savez(file, images=images, labels=labels)
    return file


def test_the_papers_eight_have_their_figures_and_every_column_is_a_cell() -> None:
    assert tuple(cell.name for cell in CELLS) == COLUMNS
    assert {name for name, method in METHODS.items() if method.of_the_paper} == EIGHT
    for name in EIGHT:
        assert set(METHODS[name].printed) == set(COLUMNS)
    assert METHODS["lrrs"].title == "LRSR"
    assert {name for name in EIGHT if METHODS[name].printed_seconds} == {"lclrrdl", "lrrs", "slrr", "lrsi", "rpca"}


@names
def test_it_learns_from_few_faces_and_knows_them_again(name: str) -> None:
    method = method_of(name)
    images, labels = faces()
    estimator = method.estimator(**method.settings(3), **method.usual, features=SPEC, random_state=0)
    train = np.arange(len(labels)) % 3 != 0
    estimator.fit(images[train], labels[train])
    assert estimator.score(images[~train], labels[~train]) > 0.8
    assert isinstance(estimator, CodeClassifier) == ("eta" in method.grid)


@names
def test_tuning_costs_about_the_same_and_may_end_where_it_began(name: str) -> None:
    method = method_of(name)
    assert 6 <= math.prod(len(values) for name, values in method.grid.items() if name != "eta") <= 12
    assert set(method.grid) == set(method.usual)
    for parameter, value in method.usual.items():
        assert value in method.grid[parameter], "choose() must be able to stay on known ground"


@names
def test_tuning_finds_what_training_with_each_eta_would(name: str) -> None:
    method = method_of(name)
    images, labels = faces()
    swept = {"eta": (method.usual["eta"], 1e3)} if "eta" in method.usual else {}
    trials = tune(
        images,
        labels,
        spec_for=partial(FeatureSpec.for_crop, 24, 20),
        estimator=method.estimator,
        grid={"features": ("pixels",)} | {parameter: (value,) for parameter, value in method.usual.items()} | swept,
        fixed=method.settings(3),
        folds=2,
        hard=False,
        jobs=1,
    )
    assert len(trials) == (2 if swept else 1)
    for trial in trials:
        chosen = {parameter: trial.parameters[parameter] for parameter in method.usual}
        estimator = method.estimator(**method.settings(3), **chosen, features=SPEC, random_state=0)
        scores = cross_val_score(estimator, images, labels, cv=StratifiedKFold(2, shuffle=True, random_state=0))
        assert trial.accuracy == pytest.approx(100 * scores.mean())


def test_a_search_of_scikit_learn_goes_over_a_baseline() -> None:
    images, labels = faces()
    method = method_of("srs")
    search = GridSearchCV(method.estimator(3, features=SPEC), {"lam": (1e-3, 1e3)}, cv=2, error_score="raise")
    search.fit(images, labels)
    assert search.best_params_ == {"lam": 1e-3}, "with the other every code is zero"
    assert search.best_score_ > 0.6


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(UsageError, match="no method svm"):
        method_of("svm")


@names
def test_reproduce_takes_it(trainer: Call, data: Path, name: str) -> None:
    words = ("reproduce", "--dataset", "ar", "--data", data, "--method", name, "--splits", "1", "--json", "--threads", "1")
    code, out, err = trainer(*words)
    assert code == 0, err
    result = json.loads(out)
    assert (result["method"], result["cell"]) == (name, "ar-sunglasses")
    assert result["accuracy_mean"] > 60
    assert result["parameters"].items() >= tuned_parameters(Cell(dataset="ar"), "pixels", name).items()


def test_reproduce_tunes_a_method_and_prints_an_entry(trainer: Call, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "srs", replace(METHODS["srs"], grid={"lam": (1e-3, 1e3)}))
    words = ("reproduce", "--dataset", "ar", "--data", data, "--method", "srs", "--tune", "--folds", "2", "--jobs", "1")
    code, out, err = trainer(*words)
    assert (code, "accuracy" in err) == (0, True)
    assert tomllib.loads(out) == {"ar-sunglasses": {"srs": {"pixels": {"lam": 1e-3}}}}
    command = "# trainer reproduce --dataset ar --scenario sunglasses --data FILE --method srs --features pixels --folds 2"
    assert command in out


def test_what_belongs_to_lclrrdl_is_not_asked_of_others(trainer: Call, data: Path) -> None:
    code, out, err = trainer("reproduce", "--dataset", "ar", "--data", data, "--method", "srw", "--schedule", "paper")
    assert (code, out) == (2, "")
    assert "srw has no --schedule." in err


def test_what_is_given_is_used_and_told(data: Path) -> None:
    with np.load(data) as archive:
        images, labels = archive["images"], archive["labels"]
    given = {"lam": 2e-3}
    result = reproduce(images, labels, Cell(dataset="ar"), method="srs", splits=1, parameters=given, iterations=7)
    assert (result["iterations"], result["parameters"]) == (7, {"atoms_per_class": 5, "lam": 2e-3})


def test_tune_compares_on_ones_own_photos(trainer: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, (image, label) in enumerate(zip(*faces(), strict=True)):
        (tmp_path / "photos" / f"p{label}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "photos" / f"p{label}" / f"{i}.png"), image)
    words = (
        "tune",
        tmp_path / "photos",
        "--cropped",
        "--method",
        "srw",
        "-o",
        tmp_path / "t.toml",
        "--folds",
        "2",
        "--jobs",
        "1",
    )
    code, out, err = trainer(*words, "--features", "pixels,both", "--lam", "0.001,0.01")
    assert code == 0, err
    assert len(out.splitlines()) == 1 + 4 + 1, "two features, two lam, and the choice"
    assert set(tomllib.loads((tmp_path / "t.toml").read_text())) == {"features", "lam"}
    config = ("--method", "srw", "--config", tmp_path / "t.toml")
    assert trainer("fit", tmp_path / "photos", "--cropped", *config, "-o", tmp_path / "m.npz")[0] == 0
    code, out, err = trainer(*words, "--gamma", "0.5")
    assert (code, out) == (2, "")
    assert "srw is tuned by lam, not by gamma" in err
