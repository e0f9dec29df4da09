"""Every method of the registry: it learns, can be tuned, and the commands of `trainer` accept it."""

from __future__ import annotations

import json
import math
import tomllib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score

from edge.errors import UsageError
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces
from tests.fixtures.trainer_command import TrainerCommand
from trainer.baselines.registry import METHODS, method_of, with_printed
from trainer.method.base import CodeClassifier
from trainer.paper.experiments import Cell, reproduce, tuned_parameters
from trainer.paper.typeset import METHODS_OF_THE_PAPER
from trainer.tuning import tune

SPEC = FeatureSpec.for_crop(24, 20, "pixels")
each_method = pytest.mark.parametrize("name", METHODS)
PRINTED = tuple(name for name in with_printed(METHODS) if name not in METHODS)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three people in the shape of AR."""
    images, labels = faces(people=3, photos=26, size=(42, 30))
    file = tmp_path_factory.mktemp("data") / "ar_42x30.npz"
    np.savez(file, images=images, labels=labels)
    return file


@each_method
def test_method_recognises_people_from_few_faces(name: str) -> None:
    method = method_of(name)
    images, labels = faces()
    estimator = method.estimator(**method.settings(3), **method.usual, features=SPEC, random_state=0)
    train = np.arange(len(labels)) % 3 != 0
    estimator.fit(images[train], labels[train])
    assert estimator.score(images[~train], labels[~train]) > 0.8
    assert isinstance(estimator, CodeClassifier) == ("eta" in method.grid)


@each_method
def test_grids_have_similar_sizes_and_hold_the_usual_values(name: str) -> None:
    """LCLRRDL and the two methods that come near it have 16 candidates, the others half as many."""
    method = method_of(name)
    size = math.prod(len(values) for name, values in method.grid.items() if name != "eta")
    assert size == 16 if name in ("lclrrdl", "lrrs", "slrr") else 6 <= size <= 12
    assert set(method.grid) == set(method.usual)
    for parameter, value in method.usual.items():
        assert value in method.grid[parameter], "choose() must be able to keep it"


@each_method
def test_swept_eta_gives_the_accuracy_of_a_training_with_it(name: str) -> None:
    method = method_of(name)
    images, labels = faces()
    swept = {"eta": (method.usual["eta"], 1e3)} if "eta" in method.usual else {}
    candidates = tune(
        images,
        labels,
        spec_for=partial(FeatureSpec.for_crop, 24, 20),
        estimator=partial(method.estimator, **method.settings(3)),
        grid={"features": ("pixels",)} | {parameter: (value,) for parameter, value in method.usual.items()} | swept,
        folds=2,
        hard=False,
        jobs=1,
    )
    assert len(candidates) == (2 if swept else 1)
    for candidate in candidates:
        chosen = {parameter: candidate.parameters[parameter] for parameter in method.usual}
        estimator = method.estimator(**method.settings(3), **chosen, features=SPEC, random_state=0)
        scores = cross_val_score(estimator, images, labels, cv=StratifiedKFold(2, shuffle=True, random_state=0))
        assert candidate.accuracy == pytest.approx(100 * scores.mean())


def test_grid_search_of_scikit_learn_tunes_a_baseline() -> None:
    images, labels = faces()
    method = method_of("srs")
    search = GridSearchCV(method.estimator(3, features=SPEC), {"lam": (1e-3, 1e3)}, cv=2, error_score="raise")
    search.fit(images, labels)
    assert search.best_params_ == {"lam": 1e-3}, "the other makes every code zero"
    assert search.best_score_ > 0.6


@each_method
def test_reproduce_accepts_the_method(trainer: TrainerCommand, data: Path, name: str) -> None:
    words = ("reproduce", "--dataset", "ar", "--data", data, "--method", name, "--splits", "1", "--json")
    code, out, err = trainer(*words)
    assert code == 0, err
    result = json.loads(out)
    assert (result["method"], result["cell"]) == (name, "ar-sunglasses")
    assert result["accuracy_mean"] > 60
    assert result["parameters"].items() >= tuned_parameters(Cell(dataset="ar"), "pixels", name).items()


@pytest.mark.parametrize("name", PRINTED)
def test_form_as_printed_recognises_people_and_differs(name: str) -> None:
    form, method = method_of(name), method_of(name.partition("/")[0])
    images, labels = faces()
    train = np.arange(len(labels)) % 3 != 0
    scores = []
    for one in (form, method):
        estimator = one.estimator(**one.settings(3) | one.usual, features=SPEC, random_state=0)
        scores.append(estimator.fit(images[train], labels[train]).decision_function(images[~train]))
    assert (scores[0].argmax(axis=1) == labels[~train]).mean() > 0.8
    same = name == "llc/as printed"  # the usual parameters of LLC are the printed ones; tuning changes them
    assert (np.abs(scores[0] - scores[1]).max() > 1e-3) != same


def test_every_method_of_the_paper_has_a_form_as_printed_or_is_one() -> None:
    assert all(METHODS[name].printed is not None for name in METHODS_OF_THE_PAPER)
    assert {"lclrrdl/as printed", "rbds/as printed"} < set(PRINTED)
    assert not {"srw/as printed", "lrr/as printed"} & set(PRINTED)


@pytest.mark.parametrize("name", ["svm", "srw/as printed", "svm/as printed", "lrrs/as tuned"])
def test_unknown_method_is_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=f"no method {name}"):
        method_of(name)


def test_given_parameters_are_used_and_reported(data: Path) -> None:
    with np.load(data) as archive:
        images, labels = archive["images"], archive["labels"]
    result = reproduce(images, labels, Cell(dataset="ar"), method="srs", splits=1, iterations=7)
    tuned = tuned_parameters(Cell(dataset="ar"), "pixels", "srs")
    assert (result["iterations"], result["parameters"]) == (7, {"atoms_per_class": 5} | tuned)


def test_tune_writes_parameters_that_fit_reads(
    trainer: TrainerCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i, (image, label) in enumerate(zip(*faces(), strict=True)):
        (tmp_path / "photos" / f"p{label}").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "photos" / f"p{label}" / f"{i}.png"), image)
    options = ("--cropped", "--method", "srw", "-o", tmp_path / "t.toml", "--folds", "2", "--jobs", "1")
    words = ("tune", tmp_path / "photos", *options)
    code, out, err = trainer(*words, "--features", "pixels,both", "--lam", "0.001,0.01")
    assert code == 0, err
    assert len(out.splitlines()) == 1 + 4 + 1, "two features, two lam, and the choice"
    assert set(tomllib.loads((tmp_path / "t.toml").read_text())) == {"features", "lam"}
    config = ("--method", "srw", "--config", tmp_path / "t.toml")
    assert trainer("fit", tmp_path / "photos", "--cropped", *config, "-o", tmp_path / "m.npz")[0] == 0
    code, out, err = trainer(*words, "--gamma", "0.5")
    assert (code, out) == (2, "")
    assert "SRW is tuned by lam, not by gamma" in err
