"""The choice of features: pixels are dropped if the light misleads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces, write_photos
from tests.fixtures.trainer_command import TrainerCommand
from trainer import own_features as light
from trainer.method.classifier import one_hot, ridge
from trainer.model import Model
from trainer.own_features import PIXELS_MISLEAD, without_misleading_pixels
from trainer.types import Array

PEOPLE, PHOTOS = 12, 4
SPEC = FeatureSpec(height=24, width=20, gradient_cell=2)


def lit(images: Array) -> Array:
    """Return the photos with light from another side in each."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1 : 1 : images.shape[1] * 1j, -1 : 1 : images.shape[2] * 1j]
    angle = rng.uniform(0, 2 * np.pi, (len(images), 1, 1))
    shown = images * np.exp(2 * (np.cos(angle) * x + np.sin(angle) * y))
    return (255 * shown / shown.max(axis=(1, 2), keepdims=True)).astype(np.uint8)


def test_pixels_are_dropped_only_if_light_misleads() -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    assert without_misleading_pixels(images, labels, SPEC) is SPEC
    assert without_misleading_pixels(lit(images), labels, SPEC) == replace(SPEC, kind="gradient")
    for kind in ("pixels", "gradient"):
        assert without_misleading_pixels(lit(images), labels, replace(SPEC, kind=kind)).kind == kind


@pytest.mark.parametrize("photos", [1, 2])
def test_few_photos_change_nothing(photos: int) -> None:
    images, labels = faces(2, photos)
    assert without_misleading_pixels(lit(images), labels, SPEC) is SPEC


def test_lead_is_that_of_a_classifier_without_the_photo() -> None:
    images, classes = faces(4, 3)
    X = replace(SPEC, kind="pixels", cell=2).vectors(images).astype(np.float64)
    H = one_hot(classes, 4)
    leads = light.own_class_leads(X, classes)
    for i in range(len(X)):
        others = np.arange(len(X)) != i
        scores = ridge(X[others].T, H[:, others], light.RIDGE) @ X[i]
        best = np.delete(scores, classes[i]).max()
        assert np.isclose(leads[i], (scores[classes[i]] - best) / np.linalg.norm(scores), atol=1e-6)


def test_fit_chooses_features_unless_they_are_given(trainer: TrainerCommand, tmp_path: Path) -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    write_photos(tmp_path / "photos", lit(images), labels)
    output = tmp_path / "door.npz"
    options = "fit", tmp_path / "photos", "--cropped", "--preset", "tiny", "--no-calibrate", "-o", output
    for words, kind in (((), "gradient"), (("--features", "both"), "both")):
        code, _, err = trainer(*options, *words)
        assert (code, Model.load(output).spec.kind, PIXELS_MISLEAD in err) == (0, kind, kind == "gradient")
