"""Wrong names: found, told and left out; and nothing else is."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces
from tests.trainer.conftest import Call
from trainer import training as models
from trainer.data.gallery import Gallery
from trainer.data.label_noise import apparent_classes, leave_one_out_scores
from trainer.method.classifier import one_hot, ridge
from trainer.method.estimator import LCLRRDL
from trainer.thresholds import stranger_confidences
from trainer.types import Array

PEOPLE, PHOTOS = 12, 6
SPEC = FeatureSpec(height=24, width=20, kind="both", gradient_cell=2)


def spoiled(share: float = 0.15, seed: int = 0) -> tuple[Array, Array, Array]:
    """Photos, the names they are given, and the right ones."""
    images, labels = faces(PEOPLE, PHOTOS)
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(labels))[: round(share * len(labels))]
    told = labels.copy()
    told[wrong] = (labels[wrong] + rng.integers(1, PEOPLE, len(wrong))) % PEOPLE
    return images, told, labels


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.1, 3.0]))
def test_left_out_is_what_a_classifier_without_the_sample_says(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    Z, H = rng.standard_normal((5, 12)), one_hot(np.arange(12) % 3, 3)
    believed = np.arange(12) != rng.integers(12)
    scores = leave_one_out_scores(Z, H, eta, believed)
    for i in range(12):
        others = believed & (np.arange(12) != i)
        assert np.allclose(scores[:, i], ridge(Z[:, others], H[:, others], eta) @ Z[:, i], atol=1e-6)


@pytest.mark.parametrize("parts", [None, (2, 2)])
def test_wrong_names_are_found_and_cost_little(parts: tuple[int, int] | None) -> None:
    images, told, labels = spoiled()
    model = LCLRRDL(features=SPEC, parts=parts, coding="l21").fit(images, told)
    doubted, wrong = model.looks_like_ != told, told != labels
    assert doubted[wrong].mean() > 0.8
    assert not doubted[~wrong].any()
    assert (model.looks_like_[doubted] == labels[doubted]).all()
    left = LCLRRDL(features=SPEC, parts=parts, coding="l21").fit(images, np.where(doubted, model.looks_like_, told))
    assert np.mean(model.predict(images) == labels) > np.mean(left.predict(images) == labels) - 0.02


def test_with_right_names_nothing_changes() -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    images[::PHOTOS, 4:9] = 20  # one photo of each in sunglasses
    trusting, doubting = (LCLRRDL(features=SPEC, parts=(2, 2), doubt=doubt).fit(images, labels) for doubt in (False, True))
    assert np.array_equal(doubting.looks_like_, labels)
    assert np.array_equal(doubting.W_, trusting.W_)
    assert np.array_equal(doubting.W_parts_, trusting.W_parts_)


def test_a_doubted_photo_has_no_say_nor_have_its_copies() -> None:
    images, told, _ = spoiled()
    model = LCLRRDL(features=SPEC, copies=2).fit(images, told)
    believed = np.tile(model.looks_like_ == told, 3)
    assert not believed.all()
    weights = np.repeat([1, 0.5], [len(told), 2 * len(told)])[believed]
    H = one_hot(np.tile(told, 3), PEOPLE)
    assert np.allclose(model.W_, ridge(model.codes_[:, believed], H[:, believed], model.eta, weights), atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_nobody_is_left_with_less_than_two_photos_who_had_more(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=12)])
    true = rng.integers(classes, size=len(labels))
    Z = np.eye(classes)[:, true] + 0.01 * rng.standard_normal((classes, len(labels)))
    believed = apparent_classes([Z], labels, classes, 1e-3) == labels
    had, kept = np.bincount(labels, minlength=classes), np.bincount(labels[believed], minlength=classes)
    assert (kept >= np.minimum(had, 2)).all()


def test_a_wrong_name_is_no_stranger() -> None:
    images, told, labels = spoiled()
    wrong = int(np.sum(told != labels))
    gallery = Gallery(images=images, labels=told.astype(str), sources=tuple(map(str, range(len(told)))))
    trusting, doubting = (
        stranger_confidences(gallery, SPEC, {"coding": "l21", "parts": (2, 2), "doubt": doubt}) for doubt in (False, True)
    )
    assert len(trusting) - len(doubting) >= 0.8 * wrong
    assert np.quantile(doubting, 0.9) < np.quantile(trusting, 0.9)


def test_fit_tells_which_photos_to_check(trainer: Call, tmp_path: Path) -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / "photos" / f"p{7 if i == 2 else label}"
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{i}.png"), image)
    options = "fit", tmp_path / "photos", "--cropped", "--no-calibrate", "-o", tmp_path / "door.npz"
    code, _, err = trainer(*options)
    assert code == 0
    assert "p7/2.png (looks like p0)" in err
    assert models.Model.load(tmp_path / "door.npz").training["doubted"]
    code, _, err = trainer(*options, "--no-doubt")
    assert (code, "looks like" in err) == (0, False)
