"""Training: from a gallery to a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.errors import TrainingError
from tests.fixtures.data import SPEC, small_gallery
from trainer.data.gallery import Gallery
from trainer.method.coding import Coding
from trainer.method.estimator import LCLRRDL
from trainer.method.solver import Schedule, Step
from trainer.model import Model
from trainer.training import fit

pytestmark = pytest.mark.slow


def test_fit_learns_the_people_of_a_gallery() -> None:
    photos, steps = small_gallery(), list[Step]()
    model = fit(photos, SPEC, {"atoms_per_class": 3}, steps.append)
    assert model.labels == ("anna", "ben", "çelik")
    assert model.training["accuracy"] == 1
    assert model.fingerprint == photos.fingerprint
    assert np.array_equal(model.crops, photos.images)
    assert np.array_equal(model.gallery().labels, photos.labels)
    assert (model.D.shape, model.W.shape) == ((SPEC.length, 9), (3, 9))
    assert model.D.dtype == model.W.dtype == np.float32
    assert model.atom_people.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(steps) == model.training["iterations"]
    assert steps[-1].rank == model.training["rank"] > 0
    noise = np.random.default_rng(9).normal(0, 10, photos.images.shape)
    noisy = np.clip(photos.images + noise, 0, 255).astype(np.uint8)
    assert np.array_equal(model.predict(noisy), photos.labels)


@pytest.mark.parametrize("coding", ["l1", "l21"])
def test_model_scores_like_its_estimator(coding: str) -> None:
    photos = small_gallery(1)
    model = fit(photos, SPEC, {"coding": coding, "random_state": 3})
    estimator = LCLRRDL(features=SPEC, coding=coding, random_state=3).fit(photos.images, photos.labels)
    wanted = estimator.decision_function(photos.images)
    assert np.abs(model.scores(photos.images) - wanted).max() < 1e-4 * np.abs(wanted).max()
    assert model.coding == Coding.default(coding)
    assert (model.parameters["coding"], model.parameters["random_state"]) == (coding, 3)
    assert not {"features", "callback"} & set(model.parameters)


def test_order_of_the_photos_does_not_change_labels() -> None:
    photos = small_gallery()
    order = np.random.default_rng(0).permutation(len(photos.labels))
    sources = tuple(photos.sources[i] for i in order)
    shuffled = Gallery(images=photos.images[order], labels=photos.labels[order], sources=sources)
    model = fit(shuffled, SPEC, {})
    assert model.labels == ("anna", "ben", "çelik")
    assert model.fingerprint == photos.fingerprint
    assert np.array_equal(model.predict(photos.images), photos.labels)
    assert np.array_equal(model.gallery().labels, shuffled.labels)


def test_failed_training_raises_training_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise FloatingPointError("a matrix of the update is not positive definite")

    with pytest.raises(TrainingError, match="only one class"):
        fit(small_gallery(people=("anna",)), SPEC, {})
    monkeypatch.setattr("trainer.method.estimator.solve", broken)
    with pytest.raises(TrainingError, match=r"Training failed.*positive definite.*gamma"):
        fit(small_gallery(), SPEC, {})


@pytest.mark.parametrize(
    "parameters",
    [
        {"schedule": Schedule(rho=2.0, tol=1e-4), "random_state": np.int64(3)},
        {"coding": Coding(kind="l21", lam=3.0, iterations=7)},
        {"atoms_per_class": np.int64(3), "lam": np.float32(20)},
    ],
    ids=["schedule", "coding", "numpy numbers"],
)
def test_every_parameter_can_be_saved(parameters: dict[str, Any], tmp_path: Path) -> None:
    model = fit(small_gallery(), SPEC, parameters)
    model.save(tmp_path / "door.npz")
    again = Model.load(tmp_path / "door.npz")
    assert again.coding == model.coding
    assert np.array_equal(again.scores(model.crops), model.scores(model.crops))
