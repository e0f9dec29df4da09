"""Cross-validation: every photo is left out once, people keep a photo, and the network is not run again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.vision.preprocess import FeatureSpec
from tests.fixtures.crowd import SIZE, crowd
from tests.fixtures.embedding import EXPERTS, embedding_model, network_crops
from trainer import training
from trainer.data.gallery import Gallery
from trainer.evaluation.cross_validation import NOT_TESTED, cross_validate, folds_of, one_split
from trainer.features.network import Network, checked
from trainer.model import Model
from trainer.types import Array

SPEC = FeatureSpec.for_crop(*SIZE, "pixels")
TINY = {"coding": "l21", "atoms_per_class": 3}


def labels_with(*photos: int) -> Array:
    return np.repeat([f"person {number}" for number in range(len(photos))], photos)


@pytest.mark.parametrize("photos", [(2, 2), (5, 2, 7, 1), (1, 2), (3, 3, 3)])
def test_every_photo_is_left_out_once_and_people_keep_one(photos: tuple[int, ...]) -> None:
    labels = labels_with(*photos)
    fold = folds_of(labels, np.ones(len(labels), bool))
    several = np.isin(labels, [name for name in np.unique(labels) if np.sum(labels == name) > 1])
    assert (fold[several] >= 0).all()
    assert (fold[~several] == NOT_TESTED).all()
    assert fold.max() < 5
    for k in range(fold.max() + 1):
        assert (fold == k).any()
        assert set(labels[fold != k]) == set(labels)


def test_suspected_photos_are_in_no_fold() -> None:
    labels, trusted = labels_with(3, 2), np.array([True, False, True, True, False])
    fold = folds_of(labels, trusted)
    assert fold[1] == fold[4] == NOT_TESTED
    assert fold[3] == NOT_TESTED, "the only photo that is left"
    assert sorted(fold[[0, 2]]) == [0, 1]


def test_nobody_with_two_photos_has_no_folds() -> None:
    labels = labels_with(1, 1, 1)
    assert (folds_of(labels, np.ones(3, bool)) == NOT_TESTED).all()
    assert (one_split(labels, np.ones(3, bool)) == NOT_TESTED).all()


def test_one_split_leaves_out_one_photo_of_some_people() -> None:
    labels = labels_with(3, 1, 2, 4, 2)
    fold = one_split(labels, np.ones(len(labels), bool), most=3)
    assert np.unique(labels[fold == 0], return_counts=True)[1].tolist() == [1, 1, 1]
    assert set(labels[fold != 0]) == set(labels)
    assert "person 1" not in labels[fold == 0]


def test_result_counts_photos_and_people() -> None:
    gallery = crowd(8, photos=4)
    model = training.fit(gallery, SPEC, TINY, fpir=0.01)
    found = cross_validate(model, gallery, training.retrained(model, gallery))
    assert found is not None
    assert found.folds == 4
    assert found.recognised.of == 32
    assert found.own is not None
    assert found.own.threshold == (model.calibration and model.calibration.confidence)
    assert [person.name for person in found.people] == list(model.labels)
    assert {person.photos for person in found.people} == {person.tested for person in found.people} == {4}
    assert sum(person.recognised for person in found.people) == found.own.fnir.of - found.own.fnir.count


def test_photos_of_two_people_under_one_name_are_weak() -> None:
    gallery = crowd(8, photos=4)
    labels = gallery.labels.copy()
    mixed = np.flatnonzero(labels == labels[0])[1:3]
    gallery = replace(gallery, images=gallery.images.copy())
    gallery.images[mixed] = crowd(20, photos=4, seed=9).images[[30, 50]]
    model = training.fit(gallery, SPEC, TINY, fpir=0.01)
    found = cross_validate(model, gallery, training.retrained(model, gallery))
    assert found is not None
    shares = [person.recognised / max(person.tested, 1) for person in found.people]
    assert int(np.argmin(shares)) == list(model.labels).index(str(labels[0]))


def test_two_people_and_no_threshold() -> None:
    gallery = crowd(2, photos=3)
    model = training.fit(gallery, SPEC, TINY)
    found = cross_validate(model, gallery, training.retrained(model, gallery))
    assert found is not None
    assert found.own is None
    assert found.recognised.of == 6
    assert sum(person.recognised for person in found.people) == found.recognised.count


def test_nobody_has_two_photos() -> None:
    gallery = crowd(4, photos=1)
    model = training.fit(gallery, SPEC, TINY)
    assert cross_validate(model, gallery, training.retrained(model, gallery)) is None


def test_sharded_model_is_trained_again_once() -> None:
    gallery = crowd(205, photos=2)
    model = training.train(gallery, SPEC, TINY)
    assert model.sharded is not None
    learn = training.retrained(model, gallery)
    calls: list[int] = []

    def counted(chosen: Array) -> Model:
        calls.append(int(chosen.sum()))
        return learn(chosen)

    found = cross_validate(model, gallery, counted)
    assert found is not None
    tested = found.recognised.of
    assert calls == [len(gallery.labels) - len(model.training["doubted"]) - tested]
    assert tested > 190
    assert found.recognised.count > 0.5 * tested


def test_network_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    images, names = network_crops()
    gallery = Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))
    network = checked(embedding_model(), mean=3)
    model = training.train(gallery, network, {"coding": "l21", "atoms_per_class": 3, **EXPERTS})
    monkeypatch.setattr(Network, "embedding", lambda *_: pytest.fail("the network was run"))
    found = cross_validate(model, gallery, training.retrained(model, gallery))
    assert found is not None
    assert found.recognised.of > 0
