"""Face detection with YuNet, at every size."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.errors import KitError, ParameterError
from edge.vision import detect
from edge.vision.detect import YuNetDetector
from tests.fixtures.portraits import finder, in_a_room, orl, yunet
from trainer.downloads import YUNET

pytestmark = pytest.mark.slow


def test_each_portrait_has_one_face_with_plausible_landmarks() -> None:
    for photo in orl(8):
        (face,) = finder().detect(photo, detect.photo_min_face(photo))
        left, top, right, bottom = face.box_xyxy
        x, y = face.landmarks.T
        assert (x > left).all()
        assert (x < right).all()
        assert (y > top).all()
        assert (y < bottom).all()
        assert x[0] < x[2] < x[1], "the nose is between the eyes"
        assert x[3] < x[4]
        assert max(y[:2]) < y[2] < min(y[3:])


def test_outputs_are_decoded_as_in_opencv(tmp_path: Path) -> None:
    yunet()  # or skip
    (tmp_path / "yunet.onnx").write_bytes(YUNET.read())
    for photo in orl(40):
        height, width = photo.shape[:2]
        theirs = cv2.FaceDetectorYN.create(str(tmp_path / "yunet.onnx"), "", (width, height), 0.6).detect(photo)[1]
        rows = finder()._faces(photo, np.ones(2))
        level = rows[rows[:, 14] >= rows[:, 14].max() - 1e-4]  # ours are rounded, so two may have the same score
        best = level[np.abs(level[:, :2] - theirs[0, :2]).sum(axis=1).argmin()]
        np.testing.assert_allclose(best[:2], theirs[0, :2], atol=0.13)
        np.testing.assert_allclose(best[2:4] - best[:2], theirs[0, 2:4], atol=0.13)
        np.testing.assert_allclose(best[4:], theirs[0, 4:], atol=0.13)


@pytest.mark.parametrize("min_face", [30, 80, 160])
def test_smallest_wanted_face_is_found(min_face: int) -> None:
    # The head fills about 0.78 of the width of an ORL portrait.
    frames = [in_a_room(photo, width=round(min_face / 0.78)) for photo in orl(20)]
    found = [finder(min_face).detect(frame) for frame in frames]
    assert np.mean([len(faces) == 1 for faces in found]) >= 0.95
    for faces in found:
        for face in faces:
            assert face.box_xyxy[2] - face.box_xyxy[0] == pytest.approx(min_face, rel=0.3)


@pytest.mark.parametrize("width", [100, 200, 380])
def test_landmarks_are_correct_at_every_scale(width: int) -> None:
    """Landmarks in a frame are those of the portrait, shifted and scaled."""
    for photo in orl(40):
        (portrait,) = finder().detect(photo)
        (face,) = finder(60).detect(in_a_room(photo, width=width, at=(120, 10)))
        wanted = portrait.landmarks * width / photo.shape[1] + (120, 10)
        eyes = np.hypot(*(wanted[1] - wanted[0]))
        assert np.hypot(*(face.landmarks - wanted).T).mean() < 0.15 * eyes


def test_very_large_face_is_found() -> None:
    for photo in orl(80):
        large: Any = cv2.resize(photo, None, fx=15, fy=15, interpolation=cv2.INTER_CUBIC)
        (face,) = finder().detect(large, 80)
        assert face.box_xyxy[2] - face.box_xyxy[0] > 800


@pytest.mark.parametrize("degrees", [-20, 20])
def test_landmarks_follow_a_tilt(degrees: int) -> None:
    """Without the second pass they follow only by a sixth."""
    followed = []
    for photo in orl(20):
        height, width = photo.shape[:2]
        turn = cv2.getRotationMatrix2D((width / 2, height / 2), -degrees, 1)
        turn[:, 2] += 40
        tilted: Any = cv2.warpAffine(photo, turn, (width + 80, height + 80), borderMode=cv2.BORDER_REPLICATE)
        angles = []
        for image in (photo, tilted):
            eyes = finder().detect(image)[0].landmarks
            angles.append(np.degrees(np.arctan2(*(eyes[1] - eyes[0])[::-1])))
        followed.append((angles[1] - angles[0]) / degrees)
    assert 0.6 < np.median(followed) < 1.2


def test_two_faces_are_sorted_by_size() -> None:
    frame = in_a_room(orl()[0], width=120, at=(40, 60))
    frame[100:324, 300:484] = cv2.resize(orl()[30], (184, 224))
    large, small = finder(80).detect(frame)
    assert large.box_xyxy[0] > 290
    assert small.box_xyxy[2] < 170
    assert large.area > small.area


def test_second_pass_changes_only_the_landmarks() -> None:
    frame = in_a_room(orl()[0], width=120, at=(40, 60))
    frame[100:324, 300:484] = cv2.resize(orl()[30], (184, 224))
    found, detected = finder(80).find(frame), finder(80).detect(frame)
    assert [face.box_xyxy for face in found] == [face.box_xyxy for face in detected]
    for face, wanted in zip(found, detected, strict=True):
        refined = finder(80).refine(face, frame)
        assert np.array_equal(refined.landmarks, wanted.landmarks)
        assert np.array_equal(finder(80).refine(refined, frame).landmarks, wanted.landmarks), "once is enough"
        assert np.abs(face.landmarks - wanted.landmarks).max() < 0.2 * np.sqrt(face.area)


@pytest.mark.parametrize("shape", [(480, 640), (33, 2000), (1, 1), (20, 30)])
def test_images_without_a_face_give_none(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    for image in (noise, np.zeros_like(noise), np.full_like(noise, 255)):
        assert finder().detect(image) == []


def test_face_at_the_border_is_found() -> None:
    frame = in_a_room(orl()[0], width=160, at=(480, 0))
    (face,) = finder(80).detect(frame[:, :620])
    assert face.landmarks[:, 0].min() > 480


def test_memory_layout_does_not_matter() -> None:
    frame = in_a_room(orl()[0], width=160)
    (face,) = finder(80).detect(frame)
    view = np.asfortranarray(np.dstack([frame, frame]))[:, :, :3]
    assert finder(80).detect(view)[0].box_xyxy == face.box_xyxy


@pytest.mark.parametrize(
    "image", [np.zeros((9, 9), np.uint8), np.zeros((9, 9, 4), np.uint8), np.zeros((9, 9, 3)), np.zeros((0, 9, 3), np.uint8)]
)
def test_other_images_are_rejected(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8, H x W x 3"):
        finder().detect(image)


def test_min_face_below_the_limit_is_rejected() -> None:
    with pytest.raises(ParameterError, match="at least 10 pixels"):
        finder(9).detect(orl()[0])
    with pytest.raises(ParameterError):
        finder().detect(orl()[0], 3)


def test_threads_may_share_a_detector() -> None:
    frames = [in_a_room(photo, width=120, at=(40 * i, 50)) for i, photo in enumerate(orl(50))]
    alone = [finder(80).detect(frame)[0].box_xyxy for frame in frames]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda frame: finder(80).detect(frame)[0].box_xyxy, frames * 4))
    assert together == alone * 4


def test_model_with_a_fixed_input_size_is_rejected() -> None:
    yunet()  # or skip
    with pytest.raises(KitError, match="Build the kit again"):
        YuNetDetector(YUNET.read())


def test_left_point_of_each_pair_is_first() -> None:
    points = [[5, 0], [1, 0], [3, 2], [1, 4], [5, 4]]
    (face,) = detect._best_per_face(np.array([[0, 0, 9, 9, *np.ravel(points), 1]], np.float32))
    np.testing.assert_array_equal(face.landmarks, [[1, 0], [5, 0], [3, 2], [1, 4], [5, 4]])
