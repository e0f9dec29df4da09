"""Bad faces are rejected with a reason. Glasses, scarves and bad light are not a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import cv2
import numpy as np
import pytest

from edge.errors import ParameterError
from edge.vision.detect import Face
from edge.vision.preprocess import LANDMARKS, SIZE, align
from edge.vision.quality import BLURRED, REASONS, TOO_SMALL, Quality, QualityLimits, all_reasons, assess, pose
from tests.fixtures.portraits import each, finder, grey, orl

pytestmark = pytest.mark.slow


def reasons(photos: list[Any]) -> Counter[str | None]:
    """Count the reasons; `no face` where none is found."""
    found: Counter[str | None] = Counter()
    for photo in photos:
        faces = finder().detect(photo)
        found[assess(grey(photo), faces[0]).reason if faces else "no face"] += 1
    return found


def side_light(photo: Any) -> Any:
    return photo * np.linspace(0.08, 1, photo.shape[1])[None, :, None]


def test_real_photos_are_accepted() -> None:
    found = reasons(list(orl(4)))
    assert found[None] >= 0.99 * found.total(), found


@pytest.mark.parametrize(
    ("photos", "reason", "least"),
    [
        (lambda: [cv2.GaussianBlur(photo, (0, 0), 3) for photo in orl(8)], "face blurred", 0.95),
        (lambda: each(lambda photo: photo * 0.1, orl(8)), "face too dark", 0.95),
        # In some of these no face is found at all.
        (lambda: each(lambda photo: photo * 3, orl(8)), "face too bright", 0.5),
        (lambda: [photo[:, 46:] for photo in orl(8)], "face cut off", 0.6),
        (lambda: [photo[:68] for photo in orl(8)], "face cut off", 0.6),
        (
            lambda: [cv2.resize(photo, None, fx=0.4, fy=0.4, interpolation=cv2.INTER_AREA) for photo in orl(8)],
            "face too small",
            0.9,
        ),
    ],
    ids=["blurred", "dark", "bright", "cut at the side", "cut below", "small"],
)
def test_bad_photos_are_rejected(photos: Callable[[], list[Any]], reason: str, least: float) -> None:
    found = reasons(photos())
    assert found[reason] >= least * found.total(), found
    assert found[None] <= 0.1 * found.total(), found


@pytest.mark.parametrize(
    "change",
    [side_light, lambda photo: side_light(photo)[:, ::-1], lambda photo: photo * 0.25, lambda photo: photo * 0.5 + 90],
    ids=["light from the right", "light from the left", "a dark room", "haze"],
)
def test_bad_light_is_accepted(change: Callable[[Any], Any]) -> None:
    found = reasons(each(change, orl(8)))
    assert found[None] >= 0.98 * found.total(), found


def test_sunglasses_and_scarves_are_accepted() -> None:
    glasses, scarves = [], []
    for photo in orl(8):
        (face,) = finder().detect(photo)
        points = face.landmarks
        eyes = float(points[1, 0] - points[0, 0])
        worn = photo.copy()
        for x, y in points[:2]:
            cv2.ellipse(worn, (round(x), round(y)), (round(0.42 * eyes), round(0.28 * eyes)), 0, 0, 360, (25, 25, 25), -1)
        glasses.append(worn)
        scarf = photo.copy()
        scarf[round(float(points[2, 1]) + 4) :] = 90 + 60 * (np.arange(photo.shape[1]) // 6 % 2)[None, :, None]
        scarves.append(scarf)
    for photos in (glasses, scarves):
        found = reasons(photos)
        assert sum(found[reason] for reason in REASONS) <= 0.05 * found.total(), found
        assert found[None] >= 0.9 * found.total(), found


def landmarks_of(yaw: float = 0, pitch: float = 0, roll: float = 0) -> np.ndarray:
    """The landmarks of the mean face, turned by these degrees, seen from far away."""
    x, y = (LANDMARKS * 100).T
    points = np.stack([x, y - y.mean(), np.array([0, 0, 17.0, 0, 0])])
    a, b, c = np.radians([yaw, pitch, roll])
    about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(b), np.sin(b)], [0, -np.sin(b), np.cos(b)]])
    about_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return (150 + (about_z @ about_x @ about_y @ points)[:2].T).astype(np.float32)


@pytest.mark.parametrize("degrees", [-60, -20, 0, 45])
def test_pose_of_a_turned_head(degrees: float) -> None:
    assert pose(landmarks_of(yaw=degrees))[0] == pytest.approx(degrees, abs=4)
    assert pose(landmarks_of(roll=degrees))[2] == pytest.approx(degrees, abs=0.5)
    if abs(degrees) <= 45:
        assert pose(landmarks_of(pitch=degrees))[1] == pytest.approx(degrees, abs=12)
    assert pose(landmarks_of(roll=degrees))[:2] == pytest.approx((0, 0), abs=0.5)


def test_turned_heads_are_rejected() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)

    def reason(**turned: float) -> str | None:
        return assess(frame, Face(box_xyxy=(100, 100, 200, 200), landmarks=landmarks_of(**turned))).reason

    assert reason() is None
    assert reason(yaw=25) is None
    assert reason(pitch=-15, roll=20) is None
    for turned in ({"yaw": 60.0}, {"yaw": -60.0}, {"pitch": 55.0}, {"pitch": -55.0}, {"roll": 50.0}, {"roll": 180.0}):
        assert reason(**turned) == "face turned away", turned


def test_landmarks_in_one_point_are_rejected() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (300, 300), dtype=np.uint8)
    face = Face(box_xyxy=(10, 10, 10, 10), landmarks=np.full((5, 2), 10, np.float32))
    assert assess(frame, face).reason is not None


def test_each_limit_is_used() -> None:
    """A photo that was accepted is rejected when one limit is just not met."""
    photo = orl()[0]
    (face,) = finder().detect(photo)
    good = assess(grey(photo), face)
    assert good.reason is None
    assert all(type(getattr(good, field.name)) is float for field in fields(Quality) if field.name != "reason")
    for limit in fields(QualityLimits):
        way, _, name = limit.name.partition("_")
        value = abs(getattr(good, name))
        if way == "min":
            assert assess(grey(photo), face, QualityLimits(**{limit.name: value + 0.01})).reason in REASONS
            assert assess(grey(photo), face, QualityLimits(**{limit.name: value})).reason is None
        elif value > 0:
            assert assess(grey(photo), face, QualityLimits(**{limit.name: value * 0.99})).reason in REASONS
            assert assess(grey(photo), face, QualityLimits(**{limit.name: value})).reason is None


def test_grade_is_higher_for_a_larger_sharper_or_more_frontal_face() -> None:
    photo = orl()[0]
    (face,) = finder().detect(photo)
    good = replace(assess(grey(photo), face), size=30.0, sharpness=0.25, yaw=5.0, pitch=0.0, roll=0.0)
    assert 0 < good.grade < 1
    worse: tuple[dict[str, Any], ...] = ({"size": 20.0}, {"sharpness": 0.15}, {"yaw": -35.0}, {"pitch": 25.0}, {"roll": 30.0})
    for change in worse:
        assert replace(good, **change).grade < good.grade
    assert replace(good, yaw=170.0).grade == 0
    assert replace(good, size=500.0, sharpness=9.0, yaw=0.0).grade == 1


def test_given_crop_is_used_if_it_has_the_right_size() -> None:
    photo = grey(orl()[0])
    (face,) = finder().detect(orl()[0])
    wanted = assess(photo, face)
    assert assess(photo, face, crop=align(photo, face.landmarks, SIZE)) == wanted
    assert assess(photo, face, crop=align(photo, face.landmarks, (40, 40))) == wanted


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_invalid_limits_are_rejected(wrong: float) -> None:
    with pytest.raises(ParameterError, match="max_yaw"):
        QualityLimits(max_yaw=wrong)


def test_all_limits_that_are_not_met_are_reasons() -> None:
    photo = orl()[0]
    (face,) = finder().detect(photo)
    found = assess(grey(photo), face)
    assert all_reasons(found, QualityLimits()) == ()
    assert all_reasons(found, QualityLimits(min_sharpness=9.0, min_size=999.0)) == (TOO_SMALL, BLURRED)
