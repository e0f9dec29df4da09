"""The choice of features: pixels are dropped if the light misleads; beside a network, all that do not help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.errors import UsageError
from edge.kit.manifest import ABSOLUTE
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces, write_photos
from tests.fixtures.embedding import SIDE, embedding_model
from tests.fixtures.trainer_command import TrainerCommand
from trainer import own_features as light
from trainer.downloads import SFACE
from trainer.features.network import Channels, Network
from trainer.method.classifier import one_hot, ridge
from trainer.model import Model
from trainer.own_features import NOT_USEFUL, PIXELS_MISLEAD, chosen_features, recognised_share, without_misleading_pixels
from trainer.presets import PRESETS
from trainer.training import NOT_ALIGNED
from trainer.types import Array

PEOPLE, PHOTOS = 12, 4
SPEC = FeatureSpec(height=24, width=20, gradient_cell=2)


def lit(images: Array, strength: float = 2.0) -> Array:
    """Return the photos with light from another side in each."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[-1 : 1 : images.shape[1] * 1j, -1 : 1 : images.shape[2] * 1j]
    angle = rng.uniform(0, 2 * np.pi, (len(images), 1, 1))
    shown = images * np.exp(strength * (np.cos(angle) * x + np.sin(angle) * y))
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


# --- Beside a network ---


def hopeless(images: Array) -> Array:
    """Return the photos with so much noise that our own features cannot tell people apart."""
    return np.random.default_rng(0).integers(0, 256, images.shape, np.uint8)


@pytest.mark.parametrize("channels", ["rgb", "grey"])
def test_own_features_beside_a_network_are_chosen_by_the_photos(channels: Channels) -> None:
    own = FeatureSpec.for_crop(SIDE, SIDE)
    network = Network(model=embedding_model(), channels=channels, own=own)
    images, labels = faces(PEOPLE, PHOTOS, size=(SIDE, SIDE))
    for photos, chosen, notes in (
        (images, own, ()),
        (lit(images, 1.0), replace(own, kind="gradient"), (PIXELS_MISLEAD,)),
        (hopeless(images), None, (NOT_USEFUL,)),
    ):
        crops = photos if channels == "grey" else photos[..., None].repeat(3, axis=3)
        assert chosen_features(crops, labels, network) == (replace(network, own=chosen), notes)


def test_without_a_second_photo_of_a_person_the_network_is_used_alone() -> None:
    network = Network(model=embedding_model(), channels="grey", own=FeatureSpec.for_crop(SIDE, SIDE))
    images, labels = faces(PEOPLE, PHOTOS, size=(SIDE, SIDE))
    single = np.arange(len(labels)) % PHOTOS == 0
    assert chosen_features(images[single], labels[single], network) == (replace(network, own=None), (NOT_USEFUL,))
    assert recognised_share(network.vectors(images[single]), labels[single]) == 0


def test_features_without_choice_are_kept() -> None:
    images, labels = faces(PEOPLE, PHOTOS)
    for own in (SPEC, replace(SPEC, kind="pixels")):
        assert chosen_features(hopeless(images), labels, own) == (own, ())
    network = Network(model=embedding_model(), channels="grey")
    assert chosen_features(hopeless(faces(3, 2, size=(SIDE, SIDE))[0]), np.arange(6) // 2, network) == (network, ())


def test_share_counts_photos_that_the_others_recognise() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 4)
    X = np.eye(6)[labels] + 0.1 * rng.standard_normal((24, 6))
    assert recognised_share(X, labels) == 1
    wrong = labels.copy()
    wrong[[0, 9, 20]] = (labels[[0, 9, 20]] + 1) % 6
    assert recognised_share(X, wrong) == pytest.approx(21 / 24)


@pytest.mark.slow
def test_fit_uses_the_network_of_the_default_preset(trainer: TrainerCommand, tmp_path: Path) -> None:
    """Training with SFace, without an option: the network alone, as each person has one photo."""
    try:
        SFACE.read()
    except UsageError as error:
        pytest.skip(str(error))
    images, labels = faces(4, 1, size=(SIDE, SIDE))
    write_photos(tmp_path / "photos", images, labels)
    code, _, err = trainer("fit", tmp_path / "photos", "--cropped", "-o", tmp_path / "door.npz")
    assert code == 0, err
    assert NOT_ALIGNED in err
    assert NOT_USEFUL in err
    assert "--augment" not in err, "the preset paints its own copies"
    model = Model.load(tmp_path / "door.npz")
    assert (model.spec.network is not None, model.spec.own, model.confidence) == (True, None, ABSOLUTE)
    assert {name: model.parameters[name] for name in PRESETS["network"] if name != "features"} == {
        name: value for name, value in PRESETS["network"].items() if name != "features"
    }
    for option in (("--augment",), ("--parts", "4x2"), ("--preset", "network", "--features", "both")):
        code, _, err = trainer("fit", tmp_path / "photos", "--cropped", "-o", tmp_path / "door.npz", *option)
        assert (code, "--preset tiny" in err) == (2, True)
