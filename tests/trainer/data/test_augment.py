"""Altered copies of crops: order, seed and covers; only W is learned from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.errors import ParameterError
from edge.kit.manifest import EYES_ALIGNMENT
from edge.vision.preprocess import LANDMARK_TEMPLATES, FeatureSpec
from tests.fixtures.data import SPEC, faces, small_gallery
from trainer.data import augment
from trainer.data.augment import COVERS, copies, covered, harden
from trainer.method.classifier import one_hot, ridge
from trainer.method.estimator import LCLRRDL
from trainer.thresholds import stranger_confidences
from trainer.training import fit

EYES = slice(26, 34), slice(14, 50)  # of 80 x 64
MOUTH = slice(56, 72), slice(20, 44)
FOREHEAD = slice(0, 16), slice(8, 56)


def smooth(n: int, seed: int = 0, size: tuple[int, int] = (80, 64)) -> np.ndarray:
    """Return crops without noise, black or white, so that covers can be detected."""
    height, width = size
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    phase = np.random.default_rng(seed).uniform(0, 3, (n, 1, 1))
    return (140 + 25 * np.sin(4 * x + phase) + 20 * np.cos(5 * y - phase)).astype(np.uint8)


@given(
    n=st.integers(0, 3),
    number=st.integers(0, 9),
    size=st.sampled_from([(10, 8), (42, 30), (80, 64), (112, 112), (30, 60), (10, 8, 3), (112, 112, 3)]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)
def test_copies_keep_the_shape_and_depend_on_the_seed(n: int, number: int, size: tuple[int, ...], seed: int) -> None:
    crops = np.random.default_rng(seed).integers(0, 256, (n, *size)).astype(np.uint8)
    before = crops.copy()
    made = copies(crops, number, np.random.default_rng(seed))
    assert made.shape == (n * number, *size)
    assert made.dtype == np.uint8
    assert np.array_equal(crops, before)
    assert np.array_equal(made, copies(crops, number, np.random.default_rng(seed)))
    assert harden(crops, np.random.default_rng(seed)).shape == crops.shape


@pytest.mark.parametrize("alter", [lambda crops, rng: copies(crops, 8, rng), harden])
def test_light_is_the_same_on_all_channels_and_covers_have_a_colour(alter: Any) -> None:
    grey = smooth(6)
    made = alter(grey[..., None].repeat(3, axis=3), np.random.default_rng(0)).astype(int)
    equal = (made == made[..., :1]).all(axis=3).mean(axis=(1, 2))
    assert (equal > 0.1).all(), "no cover hides a whole face"
    assert 0.2 < np.mean(equal < 0.95) < 0.8, "some crops are covered"
    tinted = np.stack([grey // 2, grey, grey], axis=3)
    bare = alter(tinted, np.random.default_rng(0))[equal > 0.999].astype(int)
    assert np.array_equal(bare[..., 1], bare[..., 2])
    assert (bare[..., 0] <= bare[..., 1]).all()


def test_copies_are_in_the_order_of_their_crops() -> None:
    """First copies of all crops, then second copies. A black crop gives black copies if nothing covers it."""
    crops = np.stack([np.zeros((80, 64), np.uint8), smooth(1)[0]])
    made = copies(crops, 8, np.random.default_rng(0)).reshape(8, 2, 80, 64)
    bare = [k for k, cover in enumerate(COVERS) if cover is None]
    assert (made[bare, 0] == 0).all()
    assert (made[bare, 1].mean(axis=(1, 2)) > 10).all()


GLASSES, SCARF, BLOCK = filter(None, COVERS)


def difference(cover: Any, place: tuple[slice, slice], monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the share of the pixels of a region that a cover changes, over many copies without light or movement."""
    monkeypatch.setattr(augment, "_moved", lambda crop, rng, strength: crop)
    monkeypatch.setattr(augment, "_relit", lambda face, rng: face.astype(float))
    monkeypatch.setattr(augment, "COVERS", (cover,))
    crops = smooth(1)
    made = copies(crops, 40, np.random.default_rng(3)).astype(int)
    made[::2] = made[::2, :, ::-1]  # every second one is mirrored, from the first on
    return float(np.mean(made[:, *place] != crops[0][place]))


@pytest.mark.parametrize(("cover", "hidden", "seen"), [(GLASSES, EYES, (MOUTH, FOREHEAD)), (SCARF, MOUTH, (EYES, FOREHEAD))])
def test_glasses_cover_the_eyes_and_scarves_the_mouth(
    cover: Any, hidden: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(cover, hidden, monkeypatch) > 0.6
    for place in seen:
        assert difference(cover, place, monkeypatch) == 0


def test_blocks_cover_all_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (EYES, MOUTH, FOREHEAD):
        assert 0.05 < difference(BLOCK, place, monkeypatch) < 0.6


def test_every_second_copy_is_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "_moved", lambda crop, rng, strength: crop)
    monkeypatch.setattr(augment, "_relit", lambda face, rng: face.astype(float))
    monkeypatch.setattr(augment, "COVERS", (None,))
    crops = smooth(2)
    made = copies(crops, 4, np.random.default_rng(0)).reshape(4, 2, 80, 64)
    for i, crop in enumerate(crops):
        same = [np.array_equal(copy, crop) for copy in made[:, i]]
        assert sum(same) == 2
        assert [np.array_equal(copy, crop[:, ::-1]) for copy in made[:, i]] == [not each for each in same]


def test_light_keeps_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Light is smooth: nearly all gradients of a relit face keep their sign."""
    monkeypatch.setattr(augment, "COVERS", (None,))
    monkeypatch.setattr(augment, "_moved", lambda crop, rng, strength: crop)
    rng = np.random.default_rng(0)
    crop = np.clip(smooth(1) + rng.normal(0, 25, (1, 80, 64)), 0, 255).astype(np.uint8)
    for k, copy in enumerate(copies(crop, 16, rng).astype(float)):
        relit = copy[:, ::-1] if k % 2 == 0 else copy
        rising = np.diff(crop[0].astype(float), axis=1)
        clear = np.abs(rising) > 20
        assert np.mean(np.sign(np.diff(relit, axis=1))[clear] == np.sign(rising)[clear]) > 0.9


# --- In training ---


def test_only_the_classifier_is_learned_from_copies() -> None:
    photos = small_gallery()
    plain, augmented = (LCLRRDL(features=SPEC, copies=n).fit(photos.images, photos.labels) for n in (0, 4))
    assert np.array_equal(plain.D_, augmented.D_)
    assert augmented.codes_.shape[1] == 5 * len(photos.images)
    assert not np.allclose(plain.W_, augmented.W_)
    assert augmented.score(photos.images, photos.labels) == 1


def test_all_copies_of_a_photo_weigh_as_much_as_the_photo() -> None:
    """W of eq. 9 with a weight of 1/4 for each of the four copies."""
    photos = small_gallery()
    augmented = LCLRRDL(features=SPEC, copies=4).fit(photos.images, photos.labels)
    labels = np.tile(np.searchsorted(augmented.classes_, photos.labels), 5)
    scale = np.where(np.arange(len(labels)) < len(photos.labels), 1, 0.5)
    assert np.allclose(augmented.W_, ridge(augmented.codes_ * scale, one_hot(labels, 3) * scale, augmented.eta), atol=1e-6)


@pytest.mark.slow
def test_copies_improve_recognition_of_covered_faces() -> None:
    """The faces are symmetric, like real ones."""
    spec = FeatureSpec(height=40, width=32, kind="both", cell=2, gradient_cell=2)
    rng = np.random.default_rng(1)
    halves = rng.integers(40, 220, (30, 10, 4)).repeat(4, axis=1).repeat(4, axis=2)
    patterns = np.concatenate([halves, halves[:, :, ::-1]], axis=2)

    def seen(people: np.ndarray) -> np.ndarray:
        return np.clip(patterns[people] + rng.normal(0, 90, (len(people), 40, 32)), 0, 255).astype(np.uint8)

    who, truth = np.arange(30).repeat(3), np.arange(30).repeat(5)
    train, test = seen(who), copies(seen(truth), 8, rng).reshape(8, len(truth), 40, 32)
    hidden = test[[cover is not None for cover in COVERS]].reshape(-1, 40, 32)
    plain, augmented = (
        LCLRRDL(features=spec, coding="l21", copies=n).fit(train, who).score(hidden, np.tile(truth, 3)) for n in (0, 8)
    )
    assert augmented > plain + 0.01


def test_model_stores_photos_and_no_copies() -> None:
    photos = small_gallery()
    model = fit(photos, SPEC, {"copies": 3})
    assert np.array_equal(model.crops, photos.images)
    assert model.parameters["copies"] == 3
    assert model.D.shape[1] == len(model.atom_people) <= len(photos.images)


def test_copies_are_not_counted_as_strangers() -> None:
    photos = small_gallery(people=tuple("abcdef"))
    confidence = stranger_confidences(photos, SPEC, {"copies": 2})
    assert confidence.shape == (len(photos.images),)


def test_copies_depend_on_the_seed_of_the_estimator() -> None:
    photos = small_gallery()
    one, again, other = (
        LCLRRDL(features=SPEC, copies=2, random_state=seed).fit(photos.images, photos.labels).W_ for seed in (1, 1, 2)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize("wrong", [{"copies": -1}, {"copies": 1.5}, {"copies": 2, "classifier_codes": "training"}])
def test_unusable_number_of_copies_is_rejected(wrong: dict[str, Any]) -> None:
    photos = small_gallery()
    with pytest.raises(ParameterError, match="copies"):
        LCLRRDL(features=SPEC, **wrong).fit(photos.images, photos.labels)
    with pytest.raises(ParameterError, match="features"):
        LCLRRDL(copies=2).fit(np.eye(4), np.array([0, 0, 1, 1]))


def test_one_photo_per_person_gives_no_warning(recwarn: pytest.WarningsRecorder) -> None:
    photos = small_gallery()
    LCLRRDL(features=SPEC).fit(photos.images[::5], photos.labels[::5])
    assert not recwarn.list


def test_hardened_faces_are_changed_but_similar() -> None:
    images, _ = faces()
    harder = harden(images, np.random.default_rng(0))
    assert harder.shape == images.shape
    assert harder.dtype == np.uint8
    changed = np.abs(harder.astype(int) - images).mean(axis=(1, 2))
    assert (changed > 1).all()
    assert np.median(changed) < 60
    assert np.array_equal(harder, harden(images, np.random.default_rng(0)))


# --- Painted masks, sunglasses and scarves ---

TEMPLATE = LANDMARK_TEMPLATES[EYES_ALIGNMENT]


def marked(landmark: int) -> tuple[slice, slice]:
    """Return the 9 x 9 pixels around a landmark in a crop of 112 x 112."""
    x, y = np.round(112 * TEMPLATE[landmark] + (56, 0)).astype(int)
    return slice(y - 4, y + 5), slice(x - 4, x + 5)


@pytest.mark.parametrize("colour", [False, True])
def test_covers_hide_the_lower_face_or_the_eyes(colour: bool) -> None:
    crops = smooth(24, size=(112, 112))
    crops = crops[..., None].repeat(3, axis=3) if colour else crops
    before = crops.copy()
    made = covered(crops, TEMPLATE)
    assert made.shape == (3 * len(crops), *crops.shape[1:])
    assert made.dtype == np.uint8
    assert np.array_equal(crops, before)
    mask, glasses, scarf = (made.reshape(3, *crops.shape).astype(int) != crops).reshape(3, 24, 112, 112, -1).any(axis=4)
    left_eye, right_eye, _, left_mouth, right_mouth = ((slice(None), *marked(i)) for i in range(5))
    for cover, hidden, seen in (
        (mask, (left_mouth, right_mouth), (left_eye, right_eye)),
        (scarf, (left_mouth, right_mouth), (left_eye, right_eye)),
        (glasses, (left_eye, right_eye), (left_mouth, right_mouth)),
    ):
        assert min(cover[place].mean() for place in hidden) > 0.9
        assert max(cover[place].mean() for place in seen) < 0.05
        assert not cover[:, :20].any(), "the forehead"
    assert mask[:, 70:].mean() > 0.5
    assert len({copy.tobytes() for copy in made}) == len(made), "no two paints are equal"
    if colour:
        assert (np.ptp(made[:24], axis=3).max(axis=(1, 2)) > 8).any(), "some masks have a colour"


@given(st.integers(0, 2**32 - 1), st.sampled_from([(112, 112), (112, 112, 3), (24, 20)]))
@settings(max_examples=10)
def test_paint_depends_on_its_crop_alone(seed: int, size: tuple[int, ...]) -> None:
    """A photo has the same copies in every fold of a calibration, and after another person was forgotten."""
    crops = np.random.default_rng(seed).integers(0, 256, (3, *size)).astype(np.uint8)
    made = covered(crops, TEMPLATE).reshape(3, 3, *size)
    for order in ([0], [2, 0], [1, 2, 0]):
        assert np.array_equal(covered(crops[order], TEMPLATE).reshape(3, len(order), *size), made[:, order])
    assert covered(crops[:0], TEMPLATE).shape == (0, *size)
