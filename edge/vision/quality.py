"""Is a face good enough to be recognised? Each refusal has its reason, so that a person can be told what to do.

The gate keeps out what can only be guessed at. Sunglasses, scarves and light from the side are no reason: they are what the
recogniser is made for. Everything is measured on the canonical crop and the landmarks, which costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import ParameterError
from edge.vision.detect import Face
from edge.vision.preprocess import LANDMARKS, SIZE, align, crop_to_frame

REASONS = ("cut off", "too small", "turned away", "too dark", "too bright", "flat light", "blurred")

# How far the nose stands out, in eye distances, and where it lies between eyes and mouth in a face that looks straight ahead.
_NOSE, _NOSE_AT = 0.5, (LANDMARKS[2, 1] - LANDMARKS[0, 1]) / (LANDMARKS[3, 1] - LANDMARKS[0, 1])
_EYES = float(LANDMARKS[1, 0] - LANDMARKS[0, 0])  # their distance, in parts of the crop's height
_GRID = np.stack(np.meshgrid((np.arange(8) + 0.5) / 8, (np.arange(8) + 0.5) / 8), axis=-1).reshape(-1, 2)  # x, y
_INNER = (slice(12, 68), slice(10, 54))  # of a crop of SIZE: face, hardly any background


@dataclass(frozen=True, kw_only=True)
class QualityLimits:
    """What a face must be to be recognised."""

    min_size: float = 16.0
    """Pixels between the eyes, at least."""
    min_sharpness: float = 0.14
    """Fine detail over coarse detail, at least. A face in focus has 0.17 to 0.45."""
    min_brightness: float = 32.0
    """Grey level that the brightest twentieth of the face reaches, at least: light on one side is enough."""
    max_glare: float = 0.4
    """Part of the face that is plain white, at most."""
    min_contrast: float = 16.0
    """Grey levels between the darkest and the brightest twentieth, at least."""
    max_yaw: float = 40.0
    """Degrees by which the head may be turned to a side."""
    max_pitch: float = 30.0
    """Degrees by which it may look up or down."""
    max_roll: float = 35.0
    """Degrees by which it may be tilted to a shoulder."""
    max_outside: float = 0.3
    """Part of the crop that may lie outside the frame."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not 0 <= getattr(self, field.name) < np.inf:
                raise ParameterError(f"the limit {field.name} must be a number, 0 or more")


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What was measured of a face. Degrees are rough: they come from five points."""

    reason: str | None
    """Why the face is not good enough, one of REASONS; None where it is."""
    size: float
    """Pixels between the eyes, as if the face looked straight ahead."""
    sharpness: float
    """Fine detail over coarse detail."""
    brightness: float
    """Grey level that the brightest twentieth of the face reaches."""
    glare: float
    """Part of the face that is plain white."""
    contrast: float
    """Grey levels between the darkest and the brightest twentieth."""
    yaw: float
    """Degrees; above 0 the nose points to the right of the frame."""
    pitch: float
    """Degrees; above 0 it points down."""
    roll: float
    """Degrees; above 0 the head is tilted clockwise, as seen in the frame."""
    outside: float
    """Part of the crop that lies outside the frame."""


def assess(
    grey: NDArray[np.uint8], face: Face, limits: QualityLimits | None = None, crop: NDArray[np.uint8] | None = None
) -> Quality:
    """Measure a face of a grey frame. `crop` is its canonical crop, where it is there already."""
    limits = limits or QualityLimits()
    if crop is None or crop.shape != SIZE:
        crop = align(grey, face.landmarks, SIZE)  # always of one size: sharpness is a matter of scale
    yaw, pitch, roll = pose(face.landmarks)
    to_frame = crop_to_frame(face.landmarks, SIZE)
    darkest, brightest, glare = _exposure(crop)
    found: dict[str, Any] = {
        "size": float(np.hypot(*to_frame[:, 0]) * _EYES * SIZE[0]),
        "sharpness": _sharpness(crop),
        "brightness": brightest,
        "glare": glare,
        "contrast": brightest - darkest,
        "yaw": yaw,
        "pitch": pitch,
        "roll": roll,
        "outside": _outside(to_frame, grey.shape),
    }
    refusals = {
        "cut off": found["outside"] > limits.max_outside,
        "too small": found["size"] < limits.min_size,
        "turned away": abs(yaw) > limits.max_yaw or abs(pitch) > limits.max_pitch or abs(roll) > limits.max_roll,
        "too dark": brightest < limits.min_brightness,
        "too bright": glare > limits.max_glare,
        "flat light": found["contrast"] < limits.min_contrast,
        "blurred": found["sharpness"] < limits.min_sharpness,
    }
    return Quality(reason=next((reason for reason, holds in refusals.items() if holds), None), **found)


def pose(landmarks: NDArray[Any]) -> tuple[float, float, float]:
    """(yaw, pitch, roll) in degrees, from where the nose lies between the eyes and the mouth."""
    eyes, mouth = landmarks[:2].mean(axis=0), landmarks[3:].mean(axis=0)
    across = landmarks[1] - landmarks[0]
    width = max(float(np.hypot(*across)), 1e-6)
    along = across / width
    down = np.array([-along[1], along[0]])
    nose, chin = landmarks[2] - eyes, mouth - eyes
    height = max(float(chin @ down), 1e-6)
    aside = (nose @ along - chin @ along * _NOSE_AT) / width
    below = (nose @ down) / height - _NOSE_AT
    yaw, pitch, roll = np.degrees([np.arctan(aside / _NOSE), np.arctan(below / _NOSE), np.arctan2(across[1], across[0])])
    return float(yaw), float(pitch), float(roll)


def _exposure(crop: NDArray[np.uint8]) -> tuple[float, float, float]:
    """The grey levels that a twentieth of the pixels is below and above, and the part that is white."""
    share = np.cumsum(np.bincount(crop.ravel(), minlength=256)) / crop.size
    darkest, brightest = np.searchsorted(share, (0.05, 0.95))
    return float(darkest), float(brightest), float(1 - share[249])


def _sharpness(crop: NDArray[np.uint8]) -> float:
    """Detail of one or two pixels over detail of several, in the inner face.

    A ratio, because both grow with the light alike; not of single pixels, because there the noise of a dark picture is.
    """
    grey = crop[_INNER].astype(np.float32)
    fine, middle, coarse = (cv2.blur(grey, (side, side)) for side in (3, 5, 25))
    return float((fine - middle).std() / max(float((middle - coarse).std()), 1e-3))


def _outside(to_frame: NDArray[np.float64], shape: tuple[int, ...]) -> float:
    """The part of the crop's area that is not in the frame."""
    points = (_GRID * SIZE[::-1]) @ to_frame[:, :2].T + to_frame[:, 2]
    return float(1 - np.mean(((points >= 0) & (points <= shape[1::-1])).all(axis=1)))
