"""Check whether a face is good enough to be recognised, and if not, why.

Sunglasses, scarves and light from the side pass: the recogniser can handle them. All is measured on the aligned crop and the
landmarks, which takes little time.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import ParameterError
from edge.vision.detect import Face
from edge.vision.preprocess import LANDMARKS, SIZE, align, crop_to_frame

CUT_OFF, TOO_SMALL, TURNED_AWAY = "face cut off", "face too small", "face turned away"
TOO_DARK, TOO_BRIGHT, LOW_CONTRAST, BLURRED = "face too dark", "face too bright", "low contrast", "face blurred"
TOO_CLOSE = "face too close"
REASONS = (CUT_OFF, TOO_SMALL, TURNED_AWAY, TOO_DARK, TOO_BRIGHT, LOW_CONTRAST, BLURRED, TOO_CLOSE)
"""Why a face is not good enough, in the order in which they are checked. Only a liveness model finds a face too close."""

# The depth of the nose, in eye distances, and its position between eyes and mouth in a frontal face.
_NOSE_DEPTH, _NOSE_AT = 0.5, (LANDMARKS[2, 1] - LANDMARKS[0, 1]) / (LANDMARKS[3, 1] - LANDMARKS[0, 1])
_EYE_DISTANCE = float(LANDMARKS[1, 0] - LANDMARKS[0, 0])  # in crop heights
_GRID = np.stack(np.meshgrid((np.arange(8) + 0.5) / 8, (np.arange(8) + 0.5) / 8), axis=-1).reshape(-1, 2)  # x, y
FULL_SIZE, _FULL_SHARPNESS = 32.0, 0.3  # eye distance and sharpness from which a face gains little
_INNER = (slice(12, 68), slice(10, 54))  # the part of a crop of SIZE with almost no background


@dataclass(frozen=True, kw_only=True)
class QualityLimits:
    """Limits that a face must meet to be recognised."""

    min_size: float = 16.0
    """Minimum distance of the eyes in pixels, corrected for turned heads."""
    min_sharpness: float = 0.14
    """Minimum ratio of fine to coarse detail. A face in focus has 0.17 to 0.45."""
    min_brightness: float = 32.0
    """Minimum grey level of the brightest 5 % of the face. Light on one side is enough."""
    max_glare: float = 0.4
    """Maximum part of the face that is white."""
    min_contrast: float = 16.0
    """Minimum difference of the grey levels of the darkest and the brightest 5 %."""
    max_yaw: float = 40.0
    """Maximum turn of the head to a side, in degrees."""
    max_pitch: float = 30.0
    """Maximum turn of the head up or down, in degrees."""
    max_roll: float = 35.0
    """Maximum tilt of the head to a shoulder, in degrees."""
    max_outside: float = 0.3
    """Maximum part of the crop outside the frame."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < np.inf:
                raise ParameterError(f"the limit {field.name} must be a number, 0 or more")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Measurements of a face, as in QualityLimits. Angles are rough, because they come from five points."""

    reason: str | None = None
    """Why the face is not good enough: one of REASONS, or None if it is."""
    size: float
    sharpness: float
    brightness: float
    glare: float
    contrast: float
    yaw: float
    """Degrees. Above 0, the nose points to the right of the frame."""
    pitch: float
    """Degrees. Above 0, the nose points down."""
    roll: float
    """Degrees. Above 0, the head is tilted clockwise in the frame."""
    outside: float

    @property
    def grade(self) -> float:
        """Size, sharpness and direction as one number from 0 to 1, to find the better of two frames."""
        size, sharpness = min(self.size / FULL_SIZE, 1.0), min(self.sharpness / _FULL_SHARPNESS, 1.0)
        ahead = float(np.prod(np.cos(np.radians([self.yaw, self.pitch, self.roll]))))
        return size * sharpness * max(ahead, 0.0)


def assess(
    grey: NDArray[np.uint8], face: Face, limits: QualityLimits | None = None, crop: NDArray[np.uint8] | None = None
) -> Quality:
    """Measure a face in a grey frame. `crop` is its aligned crop, if it exists already."""
    limits = limits or QualityLimits()
    if crop is None or crop.shape != SIZE:
        crop = align(grey, face.landmarks, SIZE)  # always the same size: sharpness depends on the scale
    share = np.cumsum(np.bincount(crop.ravel(), minlength=256)) / crop.size  # of pixels up to a grey level
    darkest, brightest = map(float, np.searchsorted(share, (0.05, 0.95)))
    to_frame = crop_to_frame(face.landmarks, SIZE)
    points = (_GRID * SIZE[::-1]) @ to_frame[:, :2].T + to_frame[:, 2]
    yaw, pitch, roll = pose(face.landmarks)
    found = Quality(
        size=float(np.hypot(*to_frame[:, 0]) * _EYE_DISTANCE * SIZE[0]),
        sharpness=_sharpness(crop),
        brightness=brightest,
        glare=float(1 - share[249]),
        contrast=brightest - darkest,
        yaw=yaw,
        pitch=pitch,
        roll=roll,
        outside=float(1 - np.mean(((points >= 0) & (points <= grey.shape[::-1])).all(axis=1))),
    )
    return replace(found, reason=next(iter(all_reasons(found, limits)), None))


def all_reasons(found: Quality, limits: QualityLimits) -> tuple[str, ...]:
    """Return all of REASONS that measurements give, in their order."""
    failed: dict[str, bool] = {
        CUT_OFF: found.outside > limits.max_outside,
        TOO_SMALL: found.size < limits.min_size,
        TURNED_AWAY: abs(found.yaw) > limits.max_yaw
        or abs(found.pitch) > limits.max_pitch
        or abs(found.roll) > limits.max_roll,
        TOO_DARK: found.brightness < limits.min_brightness,
        TOO_BRIGHT: found.glare > limits.max_glare,
        LOW_CONTRAST: found.contrast < limits.min_contrast,
        BLURRED: found.sharpness < limits.min_sharpness,
    }
    return tuple(reason for reason, holds in failed.items() if holds)


def pose(landmarks: NDArray[Any]) -> tuple[float, float, float]:
    """Return (yaw, pitch, roll) in degrees, from the position of the nose between the eyes and the mouth."""
    eyes, mouth = landmarks[:2].mean(axis=0), landmarks[3:].mean(axis=0)
    across = landmarks[1] - landmarks[0]
    width = max(float(np.hypot(*across)), 1e-6)
    along = across / width
    down = np.array([-along[1], along[0]])
    nose, chin = landmarks[2] - eyes, mouth - eyes
    height = max(float(chin @ down), 1e-6)
    aside = (nose @ along - chin @ along * _NOSE_AT) / width
    below = (nose @ down) / height - _NOSE_AT
    yaw, pitch = np.degrees(np.arctan(np.array([aside, below]) / _NOSE_DEPTH))
    return float(yaw), float(pitch), float(np.degrees(np.arctan2(across[1], across[0])))


def _sharpness(crop: NDArray[np.uint8]) -> float:
    """Return the ratio of details of one or two pixels to details of several pixels, in the inner face.

    A ratio, because both grow with the light. Not single pixels, because those contain the noise of a dark image.
    """
    grey = crop[_INNER].astype(np.float32)
    fine, middle, coarse = (cv2.blur(grey, (side, side)) for side in (3, 5, 25))
    return float((fine - middle).std() / max(float((middle - coarse).std()), 1e-3))
