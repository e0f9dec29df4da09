"""Experts: the cosine, the network's codes and our own features, added up in one score."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.errors import ParameterError
from edge.kit.manifest import ABSOLUTE, RELATIVE
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import LANDMARK_TEMPLATES, FeatureSpec
from tests.fixtures.data import SPEC, faces, small_gallery
from tests.fixtures.embedding import EXPERTS, LENGTH, SIDE, embedding_model, network_crops, network_model
from trainer.data.augment import covered
from trainer.features.network import Network
from trainer.method.classifier import one_hot
from trainer.method.estimator import LCLRRDL
from trainer.method.experts import OWN_ETA, WEIGHTS, expert_rows, person_means, scaled, unit_ridge
from trainer.method.parts import unit_part
from trainer.thresholds import stranger_confidences
from trainer.types import Array

BESIDE = FeatureSpec.for_crop(SIDE, SIDE, "both")


def weighted(rng: np.random.Generator, people: int = 3, photos: int = 12) -> Array:
    """Return H (C,n): each person has photos, of different weights, and some photos have none."""
    labels = np.concatenate([np.arange(people), rng.integers(people, size=photos - people)])
    weights = np.where(np.arange(photos) < people, 1, rng.choice([0, 1 / 3, 1], photos))
    return one_hot(labels, people) * weights


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.1, 3.0]))
def test_rows_have_unit_length_in_the_metric_of_the_ridge(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    Z, H = rng.standard_normal((8, 12)), weighted(rng)
    W = unit_ridge(Z, H, eta)
    A = (Z * H.sum(axis=0)) @ Z.T
    np.testing.assert_allclose(np.diag(W @ (A + eta * np.eye(8)) @ W.T), 1, rtol=1e-6)
    used = H.any(axis=0)
    np.testing.assert_allclose(unit_ridge(Z[:, used], H[:, used], eta), W, atol=1e-9)


def test_person_without_a_code_scores_zero() -> None:
    Z = np.array([[1.0, 0.5, 0.0], [0.0, 0.5, 0.0]])
    W = unit_ridge(Z, one_hot(np.array([0, 0, 1]), 2), 0.1)
    assert np.isfinite(W).all()
    assert not W[1].any()


@pytest.mark.parametrize("number", [2, 3])
def test_training_photos_score_one_on_average(number: int) -> None:
    rng = np.random.default_rng(0)
    H = weighted(rng)
    inputs = [np.abs(rng.standard_normal((k, 12))) for k in (5, 7, 4)[:number]]
    raw = [np.abs(rng.standard_normal((3, len(X)))) for X in inputs]
    found = scaled(raw, inputs, H)
    means = [np.sum(H * (expert @ X)) / H.sum() for expert, X in zip(found, inputs, strict=True)]
    assert sum(means) == pytest.approx(1)
    np.testing.assert_allclose(means, np.array(WEIGHTS[:number]) / sum(WEIGHTS[:number]))
    for before, after in zip(raw, found, strict=True):
        assert np.ptp(after / before) == pytest.approx(0, abs=1e-12), "one factor for all people"


@pytest.mark.parametrize("own", ["", "both"])
def test_scores_are_the_sum_of_the_experts(own: str) -> None:
    model, crops = network_model(own, experts=True), network_crops()[0]
    assert model.templates is not None
    X = model.spec.vectors(crops).T
    x = X[:LENGTH] / np.linalg.norm(X[:LENGTH], axis=0)
    wanted = model.templates @ x + model.W @ model.coder.code(x)
    for W, (rows, coder) in zip(model.W_parts, model.part_coders, strict=True):
        assert np.array_equal(rows, np.arange(LENGTH, model.spec.length))
        wanted = wanted + W @ coder.code(X[LENGTH:] / np.linalg.norm(X[LENGTH:], axis=0))
    assert len(model.W_parts) == (own != "")
    np.testing.assert_allclose(model.scores(crops), wanted.T, atol=1e-5)
    parameters = {name: model.parameters[name] for name in ("atoms_per_class", "coding", *EXPERTS)}
    estimator = LCLRRDL(features=model.spec, **parameters).fit(model.crops, np.array(model.labels)[model.crop_people])
    np.testing.assert_allclose(estimator.decision_function(crops), model.scores(crops), atol=1e-4)
    assert np.mean(model.predict(crops) == network_crops()[1]) > 0.9


def test_each_expert_is_learned_by_itself() -> None:
    """With our own features beside it, the network's dictionary, and its scores up to one factor, stay the same."""
    alone, beside = network_model(experts=True), network_model("both", experts=True)
    np.testing.assert_allclose(beside.D[:LENGTH], alone.D, atol=1e-5)
    assert alone.templates is not None
    assert beside.templates is not None
    share = (1 + WEIGHTS[1] / WEIGHTS[0]) / (sum(WEIGHTS) / WEIGHTS[0])
    np.testing.assert_allclose(beside.templates, share * alone.templates, atol=1e-5)
    np.testing.assert_allclose(beside.W, share * alone.W, atol=1e-3 * np.abs(alone.W).max())


def test_classifiers_are_learned_from_photos_and_painted_copies() -> None:
    model = network_model("both", experts=True)
    H = one_hot(model.crop_people, len(model.labels))
    network, own = expert_rows(model.spec)
    x, beside = (unit_part(model.spec.vectors(model.crops).T, rows) for rows in (network, own))
    painted = model.spec.vectors(covered(model.crops, LANDMARK_TEMPLATES[model.spec.alignment])).T
    ((_, coder),) = model.part_coders
    codes, own_codes = model.coder.code(x), coder.code(beside)
    Z = np.hstack([codes, model.coder.code(unit_part(painted, network))])
    W = unit_ridge(Z, np.hstack([H, *3 * [H / 3]]), model.parameters["eta"])
    wanted = scaled([person_means(x, H), W, unit_ridge(own_codes, H, OWN_ETA)], [x, codes, own_codes], H)
    for found, expert in zip((model.templates, model.W, model.W_parts[0]), wanted, strict=True):
        np.testing.assert_allclose(found, expert, atol=1e-3 * np.abs(expert).max())


def test_strangers_score_lower_than_enrolled_people() -> None:
    images, names = network_crops()
    gallery = network_model(experts=True).gallery()
    spec = Network(model=embedding_model(), mean=20, scale=0.5)
    strangers = stranger_confidences(gallery, spec, {"atoms_per_class": 4, "coding": "l21", **EXPERTS})
    held_out = np.arange(len(images)) % 8 >= 5
    scores = network_model(experts=True).scores(images[held_out])
    own = scores[np.arange(len(scores)), np.searchsorted(network_model(experts=True).labels, names[held_out])]
    assert np.median(own) > np.quantile(strangers, 0.9)
    assert np.all(strangers <= 1)


def test_confidence_does_not_depend_on_the_number_of_people() -> None:
    """The cosine of a person is the same in a large and in a small group, up to the common scale."""
    model = network_model(experts=True)
    gallery = model.gallery()
    few = LCLRRDL(features=model.spec, atoms_per_class=4, coding="l21", **EXPERTS)
    three = np.isin(gallery.labels, model.labels[:3])
    few.fit(gallery.images[three], gallery.labels[three])
    assert (few.confidence, model.confidence, LCLRRDL().confidence) == (ABSOLUTE, ABSOLUTE, RELATIVE)
    crops = network_crops()[0][5:24:8]  # held-out photos of the three
    of_few, of_all = (score_confidence(scores, ABSOLUTE) for scores in (few.decision_function(crops), model.scores(crops)))
    np.testing.assert_allclose(of_few, of_all, atol=0.15)


def test_suspected_photos_are_in_no_expert() -> None:
    images, names = faces(people=12, photos=5, size=(SIDE, SIDE))
    wrong = names.copy()
    wrong[[2, 13, 31]] = 7, 0, 5
    spec = Network(model=embedding_model(), mean=20, scale=0.5, channels="grey", own=BESIDE)
    parameters: dict[str, Any] = {"features": spec, "coding": "l21", "atoms_per_class": 3, **EXPERTS}
    model = LCLRRDL(**parameters).fit(images, wrong)
    trusted = model.looks_like_ == wrong
    assert np.flatnonzero(~trusted).tolist() == [2, 13, 31]
    assert np.array_equal(model.looks_like_, names)
    atoms = model.classes_[model.atom_classes_]
    again = LCLRRDL(**parameters, doubt=False).fit_classifier(images[trusted], wrong[trusted], model.D_, atoms)
    np.testing.assert_allclose(model.decision_function(images), again.decision_function(images), atol=1e-5)


def test_two_people_with_one_photo_each_are_enough() -> None:
    images, names = network_crops()
    spec = Network(model=embedding_model(), mean=20, scale=0.5)
    model = LCLRRDL(features=spec, coding="l21", **EXPERTS).fit(images[[0, 8]], names[[0, 8]])
    assert np.mean(model.predict(images[:16]) == names[:16]) > 0.9


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"parts": (2, 2)}, "parts=None"),
        ({"copies": 2}, "copies=0"),
        ({"classifier_codes": "training"}, "classifier_codes"),
        ({"coding": "batch"}, "coding l1 or l21"),
        ({"features": SPEC}, "features of a network"),
        ({"features": None}, "features of a network"),
        ({"experts": False}, "covered needs experts"),
    ],
)
def test_parameters_that_experts_cannot_use_are_rejected(changes: dict[str, Any], match: str) -> None:
    photos = small_gallery()
    parameters: dict[str, Any] = {"features": Network(model=embedding_model()), "coding": "l21", **EXPERTS}
    with pytest.raises(ParameterError, match=match):
        LCLRRDL(**parameters | changes).fit(photos.images, photos.labels)


def test_grey_network_has_experts_too() -> None:
    images, labels = faces(3, 4, size=(SIDE, SIDE))
    spec = Network(model=embedding_model(), channels="grey", own=replace(BESIDE, kind="gradient"))
    assert LCLRRDL(features=spec, coding="l21", **EXPERTS).fit(images, labels).score(images, labels) > 0.9
