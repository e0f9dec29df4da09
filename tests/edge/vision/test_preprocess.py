"""Feature vectors: unit length, little effect of light, and exactly as defined."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge.vision import preprocess
from edge.vision.preprocess import (
    DIRECTIONS,
    KINDS,
    FeatureSpec,
    _average,
    _directions,
    direction_vectors,
    features,
    resize_crop,
    unit_rows,
)

Image = NDArray[Any]


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def face(seed: int, height: int = 30, width: int = 24) -> Image:
    """A smooth image with slopes everywhere, with grey levels from 20 to 120."""
    coarse = np.random.default_rng(seed).uniform(20, 120, (6, 5)).astype(np.float32)
    return np.clip(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC), 20, 120)


def faces(n: int, height: int = 30, width: int = 24) -> NDArray[np.uint8]:
    return np.stack([face(seed, height, width) for seed in range(n)]).astype(np.uint8)


def noise(seed: int, height: int, width: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.uint8)


# --- Vectors ---


@given(
    st.sampled_from(KINDS),
    st.integers(4, 20),
    st.integers(4, 20),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.3, 0.5, 1.0, 2.0]),
    st.integers(0, 10**6),
)
@settings(max_examples=50)
def test_features_are_unit_vectors_of_the_stated_length(
    kind: str, height: int, width: int, cell: int, gradient_cell: int, blur: float, seed: int
) -> None:
    spec = FeatureSpec(height=height, width=width, kind=kind, cell=cell, gradient_cell=gradient_cell, blur=blur)
    crops = np.stack([noise(seed, height, width), noise(seed + 1, height, width)])
    rows = features(crops, spec)
    assert rows.shape == (2, spec.length)
    assert rows.dtype == np.float32
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-6
    assert rows.min() >= 0
    assert spec.length == 1 or not np.array_equal(rows[0], rows[1])


def test_length_counts_whole_cells() -> None:
    assert FeatureSpec(height=30, width=24, kind="pixels").length == 720
    assert FeatureSpec(height=30, width=24, kind="pixels", cell=4).length == 7 * 6
    assert FeatureSpec(height=30, width=24, kind="gradient", gradient_cell=7).length == 8 * 4 * 3
    assert FeatureSpec(height=30, width=24, cell=5, gradient_cell=7).length == 6 * 4 + 8 * 4 * 3


@pytest.mark.parametrize("kind", KINDS)
def test_blank_crop_gives_a_zero_row(kind: str) -> None:
    spec = FeatureSpec(height=30, width=24, kind=kind)
    crops = faces(3)
    crops[1] = 0
    rows = features(crops, spec)
    assert not rows[1].any()
    assert np.abs(np.linalg.norm(rows[[0, 2]], axis=1) - 1).max() < 1e-6
    assert np.array_equal(rows[0], features(crops[:1], spec)[0])


def test_grey_crop_without_slopes_has_no_directions() -> None:
    for grey in (1, 77, 255):
        crops = np.full((1, 30, 24), grey, np.uint8)
        assert not features(crops, FeatureSpec(height=30, width=24, kind="gradient")).any()
        both = features(crops, FeatureSpec(height=30, width=24))
        assert np.isclose(np.linalg.norm(both), 1)
        assert not both[:, 720:].any()


@pytest.mark.parametrize("shape", [(30, 24), (2, 24, 30), (2, 30, 25), (2, 30, 24, 3), (720,)])
def test_crops_of_another_shape_are_rejected(shape: tuple[int, ...]) -> None:
    spec = FeatureSpec(height=30, width=24)
    with pytest.raises(ValueError, match="30 x 24"):
        features(np.zeros(shape, np.uint8), spec)
    assert features(np.zeros((0, 30, 24), np.uint8), spec).shape == (0, spec.length)


def test_both_stacks_pixels_and_gradient_with_equal_weight() -> None:
    crops = faces(4)
    pixels = features(crops, FeatureSpec(height=30, width=24, kind="pixels", cell=3))
    gradient = features(crops, FeatureSpec(height=30, width=24, kind="gradient", gradient_cell=4))
    both = features(crops, FeatureSpec(height=30, width=24, cell=3, gradient_cell=4))
    assert np.abs(both - np.hstack([pixels, gradient]) / np.sqrt(2)).max() < 1e-6


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_batch_size_does_not_matter(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FeatureSpec(height=30, width=24, cell=2)
    crops = faces(7)
    whole = features(crops, spec)
    monkeypatch.setattr(preprocess, "CHUNK", chunk)
    assert np.abs(features(crops, spec) - whole).max() < 1e-6
    assert np.abs(features(crops[::-1], spec)[::-1] - whole).max() < 1e-6


def test_crops_are_not_changed_and_their_memory_layout_does_not_matter() -> None:
    spec = FeatureSpec(height=30, width=24)
    crops = faces(3)
    before = crops.copy()
    rows = features(crops, spec)
    assert np.array_equal(crops, before)
    assert np.abs(features(np.asfortranarray(crops), spec) - rows).max() < 1e-6
    larger = np.zeros((3, 40, 40), np.uint8)
    larger[:, 5:35, 8:32] = crops
    assert np.abs(features(larger[:, 5:35, 8:32], spec) - rows).max() < 1e-6  # a part of a frame


# --- Light ---


def lit(crops: Image, gain: float, offset: float = 0) -> Image:
    """Without rounding to grey levels, whose effect is not the subject."""
    return gain * crops + offset


@pytest.mark.parametrize("gain", [0.1, 0.5, 2.0])
def test_pixels_ignore_gain(gain: float) -> None:
    spec = FeatureSpec(height=30, width=24, kind="pixels", cell=2)
    crop = face(0)[None]
    assert np.abs(features(lit(crop, gain), spec) - features(crop, spec)).max() < 1e-6


@pytest.mark.parametrize("gain", [0.5, 2.0])
@pytest.mark.parametrize("offset", [-10, 15])
def test_directions_almost_ignore_gain_and_offset(gain: float, offset: int) -> None:
    spec = FeatureSpec(height=30, width=24, kind="gradient")
    crop = face(0)[None]
    one, other = features(crop, spec), features(lit(crop, gain, offset), spec)
    assert np.sum(one * other) > 0.995
    another = features(face(10)[None], spec)
    assert np.sum(one * another) < 0.9


def test_directions_change_less_than_pixels_under_light_from_the_side() -> None:
    lamp = np.linspace(0.3, 1.7, 24)
    similarity = {}
    for kind in ("pixels", "gradient"):
        spec = FeatureSpec(height=30, width=24, kind=kind)
        rows = features(np.stack([noise(s, 30, 24) for s in range(4)]), spec)
        relit = features(np.stack([noise(s, 30, 24) * lamp for s in range(4)]), spec)
        similarity[kind] = float(np.sum(rows * relit, axis=1).mean())
    assert similarity["gradient"] > similarity["pixels"]


def test_negative_image_reverses_every_direction() -> None:
    spec = FeatureSpec(height=30, width=24, kind="gradient", gradient_cell=1)
    crops = faces(2)
    rows = features(crops, spec).reshape(2, DIRECTIONS, -1)
    negative = features(255 - crops, spec).reshape(2, DIRECTIONS, -1)
    assert np.abs(np.roll(negative, DIRECTIONS // 2, axis=1) - rows).max() < 1e-5


# --- Directions ---


def literal_directions(image: Image, blur: float, flat: float) -> Image:
    """(8, H, W) by loops: blur and Sobel with a replicated border, then the eight directions."""
    height, width = image.shape
    radius = int(np.ceil(2.5 * blur))
    gauss = {i: np.exp(-(i**2) / (2 * blur**2)) if blur else 1.0 for i in range(-radius, radius + 1)}
    total = sum(gauss.values())

    def at(y: int, x: int) -> float:
        return float(image[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])

    def blurred(y: int, x: int) -> float:
        return sum(a * b * at(y + i, x + j) for i, a in gauss.items() for j, b in gauss.items()) / total**2

    result = np.zeros((8, height, width))
    smooth = {-1: 0.25, 0: 0.5, 1: 0.25}
    for y in range(height):
        for x in range(width):
            gx = sum(w * (blurred(y + i, x + 1) - blurred(y + i, x - 1)) for i, w in smooth.items())
            gy = sum(w * (blurred(y + 1, x + i) - blurred(y - 1, x + i)) for i, w in smooth.items())
            length = np.sqrt(gx**2 + gy**2 + flat**2)
            for k in range(8):
                angle = 2 * np.pi * k / 8
                result[k, y, x] = max((np.cos(angle) * gx + np.sin(angle) * gy) / length, 0) ** 2
    return result


@pytest.mark.parametrize("blur", [0.0, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("shape", [(6, 5), (3, 7)])
def test_directions_follow_the_definition(blur: float, shape: tuple[int, int]) -> None:
    image = noise(1, *shape).astype(np.float32)
    image[:2, :2] = 40  # a flat corner
    spec = FeatureSpec(height=shape[0], width=shape[1], blur=blur, flat=0.7)
    found = _directions(image[None], spec)
    assert found.shape == (1, DIRECTIONS, *shape)
    assert found.dtype == np.float32
    assert np.abs(found[0] - literal_directions(image, blur, 0.7)).max() < 1e-5


def test_directions_point_to_the_brighter_side() -> None:
    """x points right, y points down."""
    y, x = np.mgrid[:20, :20]
    spec = FeatureSpec(height=20, width=20)
    vectors = direction_vectors()
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    for k, (right, down) in enumerate(vectors):
        ramp = (128 + 5 * (right * (x - 10) + down * (y - 10))).astype(np.float32)
        inner = _directions(ramp[None], spec)[0, :, 5:-5, 5:-5].mean(axis=(1, 2))
        assert inner.argmax() == k
        assert inner[k] > 0.98
        assert inner[(k + 4) % 8] == 0


def test_flat_is_the_slope_at_which_half_is_left() -> None:
    spec = FeatureSpec(height=20, width=20, flat=3.0)
    ramp = np.broadcast_to(1.5 * np.arange(20, dtype=np.float32), (1, 20, 20))
    assert np.allclose(_directions(ramp, spec)[0, 0, 5:-5, 5:-5], 0.5, atol=1e-4)


def test_kernels_of_blur_and_slope() -> None:
    for blur in (0.0, 0.5, 1.3):
        along, across = FeatureSpec(height=20, width=20, blur=blur).slope_kernels
        assert len(along) == len(across) == 2 * int(np.ceil(2.5 * blur)) + 3
        assert np.abs(along + along[::-1]).max() < 1e-7  # a flat image has no slope
        assert np.isclose(across.sum(), 1)
        centre = np.arange(len(along)) - len(along) // 2
        assert np.isclose(np.sum(along * centre), 2, rtol=1e-5)  # grey levels per two pixels


# --- Cells ---


def test_cells_are_averaged() -> None:
    channels = np.random.default_rng(0).normal(size=(2, 3, 7, 8)).astype(np.float32)
    found = _average(channels, 3).reshape(2, 3, 2, 2)
    for i in range(2):
        for j in range(2):
            wanted = channels[:, :, 3 * i : 3 * i + 3, 3 * j : 3 * j + 3].mean(axis=(2, 3))
            assert np.abs(found[:, :, i, j] - wanted).max() < 1e-6
    assert np.array_equal(_average(channels, 1), channels.reshape(2, -1))


def test_incomplete_cells_are_left_out() -> None:
    spec = FeatureSpec(height=34, width=28, cell=10, gradient_cell=10)
    crops = faces(2, 34, 28)
    changed = crops.copy()
    changed[:, 33:] = 255  # three pixels from the last cell: outside the reach of blur and slope
    changed[:, :, 27:] = 255
    assert np.array_equal(features(changed, spec), features(crops, spec))
    changed[:, 28] = 255
    assert not np.array_equal(features(changed, spec), features(crops, spec))


def test_pixels_with_cell_1_are_the_image() -> None:
    crops = faces(2)
    wanted = crops.reshape(2, -1) / np.linalg.norm(crops.reshape(2, -1).astype(float), axis=1, keepdims=True)
    assert np.abs(features(crops, FeatureSpec(height=30, width=24, kind="pixels")) - wanted).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_unit_rows_scales_to_unit_length(dtype: type) -> None:
    rows: Image = np.array([[3, 4], [0, 0], [1e-9, 0], [-5, 0], [1e8, 1e8]], dtype)
    before = rows.copy()
    unit = unit_rows(rows)
    assert unit.dtype == dtype
    assert np.array_equal(rows, before)
    assert np.allclose(unit, [[0.6, 0.8], [0.0, 0.0], [0.0, 0.0], [-1.0, 0.0], [np.sqrt(0.5), np.sqrt(0.5)]])
    assert np.allclose(unit_rows(unit), unit)
    assert unit_rows(rows[:0]).shape == (0, 2)


# --- The spec ---


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "edges"},
        {"kind": ""},
        {"cell": 0},
        {"gradient_cell": -1},
        {"blur": -0.1},
        {"blur": float("nan")},
        {"flat": 0.0},
        {"flat": -1.0},
        {"flat": float("nan")},
        {"cell": 25},
        {"gradient_cell": 31},
        {"height": 0},
        {"width": -24},
    ],
    ids=str,
)
def test_invalid_spec_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"features|cell|blur|flat"):
        FeatureSpec(**({"height": 30, "width": 24} | wrong))


@pytest.mark.parametrize("size", [(1, 1), (8, 8), (42, 30), (112, 92), (480, 640)])
def test_for_crop_gives_about_20_cells(size: tuple[int, int]) -> None:
    spec = FeatureSpec.for_crop(*size)
    assert (spec.height, spec.width, spec.kind) == (*size, "both")
    if min(size) >= 40:
        assert 13 <= min(size) // spec.cell <= 30
        assert 11 <= min(size) // spec.gradient_cell <= 24
    assert features(noise(0, *size)[None], spec).shape == (1, spec.length)


# --- Resizing ---


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (96, 84)])
def test_same_size_is_the_same_image(shape: tuple[int, int]) -> None:
    image = noise(0, *shape)
    assert np.array_equal(resize_crop(image, shape), image)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.integers(1, 60), st.sampled_from([0, 1, 128, 255]))
@settings(max_examples=40)
def test_constant_image_stays_constant(height: int, width: int, rows: int, columns: int, grey: int) -> None:
    resized = resize_crop(np.full((height, width), grey, np.uint8), (rows, columns))
    assert resized.shape == (rows, columns)
    assert resized.dtype == np.uint8
    assert np.all(resized == grey)


SHRINKS = [((96, 84), (48, 42)), ((200, 180), (64, 64)), ((96, 84), (50, 33))]


@pytest.mark.parametrize(("old", "new"), SHRINKS)
def test_shrinking_averages(old: tuple[int, int], new: tuple[int, int]) -> None:
    smooth, rough = face(0, *old).astype(np.uint8), noise(0, *old)
    for image in (smooth, rough):
        assert abs(resize_crop(image, new).mean() - image.mean()) < 1
    area = cv2.resize(smooth, new[::-1], interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(resize_crop(smooth, new) - area).max() <= 6
    assert np.abs(resize_crop(smooth, new) - area).mean() < 1
    # Noise is averaged over about the area of a cell, not sampled.
    cell = np.sqrt(old[0] * old[1] / (new[0] * new[1]))
    assert resize_crop(rough, new).std() < 1.6 * rough.std() / cell


def test_shrinking_does_not_alias() -> None:
    """Stripes too fine for the new size become grey, not wider stripes."""
    stripes = np.zeros((90, 90), np.uint8)
    stripes[:, ::2] = 255
    shrunk = resize_crop(stripes, (25, 25))
    assert shrunk.std() < 6
    assert abs(shrunk.mean() - 127.5) < 2


@pytest.mark.parametrize(("old", "new"), [*SHRINKS, ((40, 40), (80, 80)), ((90, 30), (30, 60)), ((41, 33), (29, 47))])
def test_resizing_does_not_shift(old: tuple[int, int], new: tuple[int, int]) -> None:
    image = noise(0, *old)
    for axis in (0, 1):
        double = np.concatenate([image, np.flip(image, axis)], axis)
        size = (2 * new[0], new[1]) if axis == 0 else (new[0], 2 * new[1])
        resized = resize_crop(double, size).astype(int)
        assert np.abs(resized - np.flip(resized, axis)).max() <= 2
    # A ramp stays in place: pixel centres are at (i + 1/2) of the old width over the new.
    width = old[1]
    ramp = np.broadcast_to(np.linspace(0, 250, width), old).round().astype(np.uint8)
    centres = (np.arange(new[1]) + 0.5) * width / new[1] - 0.5
    wanted = centres * 250 / (width - 1)
    inner = (centres > 0.2 * width) & (centres < 0.8 * width)
    assert np.abs(resize_crop(ramp, new) - wanted)[:, inner].max() <= 1.5


def test_enlarging_keeps_the_range_of_the_image() -> None:
    image = np.clip(noise(0, 12, 9), 50, 200)
    large = resize_crop(image, (60, 50))
    assert large.min() >= 50
    assert large.max() <= 200
    assert np.abs(cv2.resize(image, (50, 60), interpolation=cv2.INTER_LINEAR).astype(int) - large).max() <= 3


def test_resizing_does_not_change_its_input() -> None:
    image = noise(0, 40, 30)
    before = image.copy()
    small = resize_crop(image, (20, 15))
    assert np.array_equal(image, before)
    assert np.array_equal(resize_crop(np.asfortranarray(image), (20, 15)), small)
