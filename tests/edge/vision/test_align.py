"""Aligned crops show every face in the same position and size."""

from __future__ import annotations

from functools import partial
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.kit.manifest import ARCFACE_ALIGNMENT, EYES_ALIGNMENT
from edge.vision.preprocess import LANDMARK_TEMPLATES, LANDMARKS, SIZE, align, crop_to_frame, resize_crop


def template(size: tuple[int, int] = SIZE) -> np.ndarray:
    """The landmarks in a crop."""
    return LANDMARKS * size[0] + (size[1] / 2, 0)


def scene(height: int = 240, width: int = 320, seed: int = 0) -> np.ndarray:
    rough = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    smooth = cv2.GaussianBlur(rough, (0, 0), 6).astype(np.float32)
    return cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)  # type: ignore[call-overload]


def moved(points: np.ndarray, degrees: float, scale: float, x: float, y: float) -> np.ndarray:
    a = scale * np.exp(1j * np.radians(degrees))
    z = a * (points @ (1, 1j)) + x + 1j * y
    return np.stack([z.real, z.imag], axis=1)


@pytest.mark.parametrize("size", [SIZE, (112, 92), (24, 40)])
def test_aligned_face_is_not_changed(size: tuple[int, int]) -> None:
    picture = scene(*size)
    np.testing.assert_array_equal(align(picture, template(size), size), picture)


def test_shifted_face_is_cut_out() -> None:
    frame = scene()
    np.testing.assert_array_equal(align(frame, template() + np.array([100, 50]), SIZE), frame[50:130, 100:164])


@settings(max_examples=40)
@given(st.floats(-60, 60), st.floats(0.3, 5), st.sampled_from([SIZE, (112, 112)]), st.integers(0, 2**32 - 1))
def test_channels_do_not_change_each_other(degrees: float, scale: float, size: tuple[int, int], seed: int) -> None:
    frame = np.random.default_rng(seed).integers(0, 256, (200, 260, 3), np.uint8)
    points = moved(template(size), degrees, scale, 20, 10)
    for made in (partial(align, landmarks=points, size=size), partial(resize_crop, size=size)):
        alone = [made(np.ascontiguousarray(frame[..., channel])) for channel in range(3)]
        np.testing.assert_array_equal(made(frame), np.stack(alone, axis=2))


def test_large_face_is_scaled_down() -> None:
    frame = scene()
    crop = align(frame, 2 * template() + (60, 40), SIZE)
    np.testing.assert_allclose(crop, resize_crop(frame[40:200, 60:188], SIZE), atol=4)


@settings(max_examples=60)
@given(st.floats(-180, 180), st.floats(0.2, 5), st.floats(-500, 500), st.floats(-500, 500), st.sampled_from([SIZE, (30, 60)]))
def test_similarity_transform_is_exact(degrees: float, scale: float, x: float, y: float, size: tuple[int, int]) -> None:
    points = moved(template(size), degrees, scale, x, y)
    to_frame = crop_to_frame(points, size)
    np.testing.assert_allclose(template(size) @ to_frame[:, :2].T + to_frame[:, 2], points, atol=1e-6)
    assert np.linalg.det(to_frame[:, :2]) == pytest.approx(scale**2), "no mirror image"


@settings(max_examples=40)
@given(st.integers(0, 10**6))
def test_similarity_transform_is_the_least_squares_solution(seed: int) -> None:
    """No small change of the four numbers comes closer to the landmarks."""
    rng = np.random.default_rng(seed)
    points = moved(template(), 12, 1.7, 40, 60) + rng.normal(0, 4, (5, 2))

    def error(to_frame: np.ndarray) -> float:
        return float(np.sum((template() @ to_frame[:, :2].T + to_frame[:, 2] - points) ** 2))

    best = crop_to_frame(points, SIZE)
    turn = np.array([[0.0, -1, 0], [1, 0, 0]])
    grow = np.array([[1.0, 0, 0], [0, 1, 0]])
    for step in (turn, grow, np.eye(2, 3, 2), np.roll(np.eye(2, 3, 2), 1, axis=0)):
        for sign in (-1e-3, 1e-3):
            assert error(best + sign * step) >= error(best)


@pytest.mark.parametrize(("degrees", "scale"), [(0, 1.0), (25, 1.0), (-40, 1.6), (10, 3.0), (90, 1.3)])
def test_rotated_and_scaled_face_gives_the_same_crop(degrees: float, scale: float) -> None:
    crop = scene(*SIZE, seed=3)
    a = scale * np.exp(1j * np.radians(degrees))
    middle = np.array([300, 300]) - moved(np.array([[SIZE[1] / 2, SIZE[0] / 2]]), degrees, scale, 0, 0)[0]
    forward = np.array([[a.real, -a.imag, middle[0]], [a.imag, a.real, middle[1]]])
    forward[:, 2] += forward[:, :2] @ (0.5, 0.5) - 0.5  # warpAffine counts from pixel centres
    frame: Any = cv2.warpAffine(crop, forward, (600, 600), borderMode=cv2.BORDER_REPLICATE)
    found = align(frame, moved(template(), degrees, scale, *middle), SIZE)
    difference = np.abs(found.astype(int) - crop)[4:-4, 4:-4]
    assert difference.mean() < 2
    assert difference.max() < 20


def test_distant_pixels_do_not_matter() -> None:
    frame = scene(600, 800)
    points = moved(template(), 10, 2.5, 200, 150)
    other = frame.copy()
    other[:, 500:] = 0
    other[480:] = 0
    np.testing.assert_array_equal(align(frame, points, SIZE), align(other, points, SIZE))


@pytest.mark.parametrize("at", [(-1000, 0), (0, 5000), (-60, -60), (310, 230)])
def test_face_outside_the_frame_gives_a_crop(at: tuple[int, int]) -> None:
    crop = align(scene(), template() + at, SIZE)
    assert crop.shape == SIZE
    assert crop.dtype == np.uint8


def test_landmarks_in_one_point_give_a_blank_crop() -> None:
    assert np.ptp(align(scene(), np.full((5, 2), 50.0), SIZE)) == 0


# --- Alignment for networks: by the eyes if the lower face is masked ---

NETWORK = (112, 112)
MIDDLE = 112 * LANDMARK_TEMPLATES[EYES_ALIGNMENT][:2].mean(axis=0) + (56, 0)  # between the eyes


def with_ratio(ratio: float) -> np.ndarray:
    """Return landmarks of a crop with this distance from the eyes to the mouth, over the distance between the eyes."""
    points = 112 * LANDMARK_TEMPLATES[EYES_ALIGNMENT] + (56, 0)
    (across, _), (_, down) = points[1] - points[0], points[3:].mean(axis=0) - MIDDLE
    return np.where(np.arange(5)[:, None] < 2, points, (points - MIDDLE) * (1, ratio * abs(across) / down) + MIDDLE)


@settings(max_examples=40)
@given(st.floats(-180, 180), st.floats(0.5, 5), st.floats(1.0, 1.6), st.integers(0, 2**32 - 1))
def test_bare_face_is_aligned_by_all_landmarks(degrees: float, scale: float, ratio: float, seed: int) -> None:
    points = moved(with_ratio(ratio + 0.1) + np.random.default_rng(seed).normal(0, 0.5, (5, 2)), degrees, scale, 30, 20)
    plain, by_eyes = (crop_to_frame(points, NETWORK, kind) for kind in (ARCFACE_ALIGNMENT, EYES_ALIGNMENT))
    np.testing.assert_allclose(by_eyes, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("degrees", [0, 35, 180])
def test_masked_face_is_aligned_by_the_eyes(degrees: float) -> None:
    """The detector places nose and mouth of a masked face too high: the crop must not shrink."""
    points = moved(with_ratio(0.85), degrees, 2.0, 30, 20)
    scales = {kind: np.linalg.det(crop_to_frame(points, NETWORK, kind)[:, :2]) ** 0.5 for kind in LANDMARK_TEMPLATES}
    assert scales[EYES_ALIGNMENT] == pytest.approx(2, rel=0.02)
    assert scales[ARCFACE_ALIGNMENT] < 1.85
    to_frame = crop_to_frame(points, NETWORK, EYES_ALIGNMENT)
    eyes = (112 * LANDMARK_TEMPLATES[EYES_ALIGNMENT] + (56, 0))[:2]
    np.testing.assert_allclose(eyes @ to_frame[:, :2].T + to_frame[:, 2], points[:2], atol=1.0)


def test_alignment_changes_without_jumps() -> None:
    ratios = np.arange(0.8, 1.2, 0.001)
    corners = np.array([[0, 0, 1], [112, 0, 1], [0, 112, 1], [112, 112, 1]])
    shown = np.array([corners @ crop_to_frame(with_ratio(ratio), NETWORK, EYES_ALIGNMENT).T for ratio in ratios])
    steps = np.abs(np.diff(shown, axis=0)).max(axis=(1, 2))
    assert steps.max() < 1, "pixels for a change of the ratio by 0.001"
    assert np.abs(shown[0] - shown[-1]).max() > 1


def test_eyes_in_one_point_give_a_finite_crop() -> None:
    points = np.array([[50.0, 50], [50, 50], [50, 60], [45, 70], [55, 70]])
    assert np.isfinite(crop_to_frame(points, NETWORK, EYES_ALIGNMENT)).all()
    assert np.ptp(align(scene(), np.full((5, 2), 50.0), NETWORK, EYES_ALIGNMENT)) == 0
