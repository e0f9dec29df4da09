"""Wrong labels: they are found, reported and not used; correct labels are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces, write_photos
from tests.fixtures.trainer_command import TrainerCommand
from trainer.data.gallery import Gallery
from trainer.method.classifier import one_hot, ridge
from trainer.method.estimator import LCLRRDL
from trainer.method.label_noise import apparent_classes, leave_one_out_scores
from trainer.model import Model
from trainer.thresholds import stranger_confidences
from trainer.types import Array

pytestmark = pytest.mark.slow

PEOPLE, PHOTOS = 12, 6
SPEC = FeatureSpec(height=24, width=20, kind="both", gradient_cell=2)


def with_wrong_labels(share: float = 0.15, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return photos, labels with some wrong ones, and the right labels."""
    images, labels = faces(PEOPLE, PHOTOS)
    rng = np.random.default_rng(seed)
    wrong = rng.permutation(len(labels))[: round(share * len(labels))]
    noisy = labels.copy()
    noisy[wrong] = (labels[wrong] + rng.integers(1, PEOPLE, len(wrong))) % PEOPLE
    return images, noisy, labels


@given(st.integers(0, 2**32 - 1), st.sampled_from([1e-3, 0.1, 3.0]))
def test_leave_one_out_scores_are_those_of_a_classifier_without_the_sample(seed: int, eta: float) -> None:
    rng = np.random.default_rng(seed)
    Z, H = rng.standard_normal((5, 12)), one_hot(np.arange(12) % 3, 3)
    trusted = np.arange(12) != rng.integers(12)
    scores = leave_one_out_scores(Z, H, eta, trusted)
    for i in range(12):
        others = trusted & (np.arange(12) != i)
        assert np.allclose(scores[:, i], ridge(Z[:, others], H[:, others], eta) @ Z[:, i], atol=1e-6)


@pytest.mark.parametrize("parts", [None, (2, 2)])
def test_wrong_labels_are_found_and_cost_little(parts: tuple[int, int] | None) -> None:
    images, noisy, labels = with_wrong_labels()
    model = LCLRRDL(features=SPEC, parts=parts, coding="l21").fit(images, noisy)
    suspected, wrong = model.looks_like_ != noisy, noisy != labels
    assert suspected[wrong].mean() > 0.8
    assert not suspected[~wrong].any()
    assert (model.looks_like_[suspected] == labels[suspected]).all()
    left = LCLRRDL(features=SPEC, parts=parts, coding="l21").fit(images, np.where(suspected, model.looks_like_, noisy))
    assert np.mean(model.predict(images) == labels) > np.mean(left.predict(images) == labels) - 0.02


def test_correct_labels_are_trusted() -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    images[::PHOTOS, 4:9] = 20  # one photo of each in sunglasses
    trusting, doubting = (LCLRRDL(features=SPEC, parts=(2, 2), doubt=doubt).fit(images, labels) for doubt in (False, True))
    assert np.array_equal(doubting.looks_like_, labels)
    assert np.array_equal(doubting.W_, trusting.W_)
    assert np.array_equal(doubting.W_parts_, trusting.W_parts_)


def test_suspected_photos_and_their_copies_are_not_used() -> None:
    images, noisy, _ = with_wrong_labels()
    model = LCLRRDL(features=SPEC, copies=2).fit(images, noisy)
    trusted = np.tile(model.looks_like_ == noisy, 3)
    assert not trusted.all()
    weights = np.repeat([1, 0.5], [len(noisy), 2 * len(noisy)])[trusted]
    H = one_hot(np.tile(noisy, 3), PEOPLE)
    assert np.allclose(model.W_, ridge(model.codes_[:, trusted], H[:, trusted], model.eta, weights), atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6))
def test_person_keeps_at_least_two_photos(seed: int, classes: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(classes), rng.integers(classes, size=12)])
    true = rng.integers(classes, size=len(labels))
    Z = np.eye(classes)[:, true] + 0.01 * rng.standard_normal((classes, len(labels)))
    trusted = apparent_classes([Z], labels, classes, 1e-3) == labels
    had, kept = np.bincount(labels, minlength=classes), np.bincount(labels[trusted], minlength=classes)
    assert (kept >= np.minimum(had, 2)).all()


def test_wrong_label_is_not_counted_as_stranger() -> None:
    images, noisy, labels = with_wrong_labels()
    wrong = int(np.sum(noisy != labels))
    gallery = Gallery(images=images, labels=noisy.astype(str), sources=tuple(map(str, range(len(noisy)))))
    trusting, doubting = (
        stranger_confidences(gallery, SPEC, {"coding": "l21", "parts": (2, 2), "doubt": doubt}) for doubt in (False, True)
    )
    assert len(trusting) - len(doubting) >= 0.8 * wrong
    assert np.quantile(doubting, 0.9) < np.quantile(trusting, 0.9)


def test_fit_lists_suspected_photos(trainer: TrainerCommand, tmp_path: Path) -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    labels[2] = 7
    write_photos(tmp_path / "photos", images, np.array([f"p{label}" for label in labels]))
    options = "fit", tmp_path / "photos", "--cropped", "--preset", "tiny", "--no-calibrate", "-o", tmp_path / "door.npz"
    code, _, err = trainer(*options)
    assert code == 0
    assert "p7/2.png (looks like p0)" in err
    assert Model.load(tmp_path / "door.npz").training["doubted"]
    code, _, err = trainer(*options, "--no-doubt")
    assert (code, "looks like" in err) == (0, False)
