"""Measurements that distinguish a head from a picture of a head. edge/decision/challenge.py decides with them.

Relief: five points of a plane keep two numbers however the plane is turned or moved: the position of the fifth point after a
homography has put the other four into fixed positions. Here the four are the eyes and the corners of the mouth, and the fifth
is the nose, which is in front of their plane. It stays in place in a photo that is moved, and moves when a head turns.

Surface: the regular pattern of a screen, and straight edges around the face.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

CORNERS = np.array([[-0.5, 0], [0.5, 0], [-0.36, 1.1], [0.36, 1.1]], np.float32)  # of eyes and mouth, in eye distances
NOD = 0.8  # the nose moves less in a nod than in a turn to a side
MAX_SQUARE, MIN_SQUARE = 128, 64  # side of the part of the face in which ripples are measured, in pixels


class Relief(NamedTuple):
    """The depth of a face, from its five landmarks. x and y of a flat picture are the same in every view."""

    x: float
    """Position of the nose to the right of the middle between the eyes, in eye distances."""
    y: float
    """Position of the nose below the eyes, in eye distances."""
    slim: float
    """Logarithm of height over width of the four points of eyes and mouth."""

    def moved(self, rest: "Relief") -> tuple[float, float]:
        """Return the movement of the nose since `rest`: to the right, and down."""
        return self.x - rest.x, (self.y - rest.y) / NOD


def relief(landmarks: NDArray[Any] | None) -> Relief | None:
    """Measure landmarks (5, 2). Return None if they cannot be a face."""
    points = np.asarray(landmarks, np.float32)  # nan for None
    if points.shape != (5, 2) or not np.isfinite(points).all():
        return None
    eyes_and_mouth = points[[0, 1, 3, 4]]
    if not cv2.isContourConvex(eyes_and_mouth[[0, 1, 3, 2]]):
        return None
    x, y, w = map(float, cv2.getPerspectiveTransform(eyes_and_mouth, CORNERS) @ (*points[2], 1.0))
    eyes, mouth = points[1] - points[0], points[4] - points[3]
    across = math.hypot(*eyes) + math.hypot(*mouth)
    down = math.hypot(*(points[3] + points[4] - points[0] - points[1]))
    found = Relief(x / (w or math.nan), y / (w or math.nan), math.log(down / across))
    return found if all(map(math.isfinite, found)) else None


class Surface(NamedTuple):
    """Signs in one frame that the face is on a screen or on paper."""

    ripple: float
    """The highest peak in the spectrum of the face, relative to its surroundings."""
    width: float
    """Width of the face in pixels."""
    sides: tuple[float, float, float, float]
    """Nearest straight edges around the face: x to the left and right, y above and below. nan if there is none."""


def surface(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> Surface:
    """Measure a face in a grey frame."""
    return Surface(_ripple(grey, box_xyxy), max(box_xyxy[2] - box_xyxy[0], 1.0), _sides(grey, box_xyxy))


def _ripple(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> float:
    left, top, right, bottom = np.clip(np.rint(box_xyxy), 0, grey.shape[::-1] * 2).astype(int)
    side = min(MAX_SQUARE, right - left, bottom - top)
    if side < MIN_SQUARE:
        return 0.0
    x, y = (left + right - side) // 2, (top + bottom - side) // 2
    face = grey[y : y + side, x : x + side].astype(np.float32)
    window = np.hanning(side).astype(np.float32)
    fine = (face - cv2.GaussianBlur(face, (0, 0), 2.0)) * np.outer(window, window)
    spectrum = np.abs(np.fft.fftshift(np.fft.fft2(fine))).astype(np.float32)
    across, down = np.meshgrid(*[np.arange(side) - side // 2] * 2)
    radius = np.hypot(across, down) / side  # in cycles per pixel
    ring = (radius > 0.09) & (radius < 0.5)
    around = cv2.medianBlur(spectrum, 5) + 0.3 * spectrum[ring].mean()
    return float((spectrum[ring] / np.maximum(around[ring], 1e-6)).max())


def _sides(grey: NDArray[np.uint8], box_xyxy: Sequence[float]) -> tuple[float, float, float, float]:
    """Find the nearest lines on each side of the face that may be the edges of a picture."""
    left, top, right, bottom = box_xyxy
    size, middle = np.array([right - left, bottom - top]), np.array([left + right, top + bottom]) / 2
    nearest = np.array([[-np.inf, np.inf]] * 2)
    found = cv2.HoughLinesP(
        cv2.Canny(grey, 40, 120), 1, np.pi / 360, 40, minLineLength=0.7 * float(size[1]), maxLineGap=0.06 * float(size[1])
    )
    for ends in [] if found is None else found.reshape(-1, 2, 2).astype(float):
        along = ends[1] - ends[0]
        axis = int(abs(along[0]) > abs(along[1]))  # 0: a vertical line
        other = 1 - axis
        slanted = abs(along[axis]) > 0.36 * abs(along[other])
        past = np.abs(np.clip(middle[other], *sorted(ends[:, other])) - middle[other]) < 0.3 * size[other]
        if slanted or not past:
            continue
        at = ends[0, axis] + along[axis] * (middle[other] - ends[0, other]) / along[other]
        away = (at - middle[axis]) / size[axis]
        if -2 < away < -0.45:
            nearest[axis, 0] = max(nearest[axis, 0], at)
        elif 0.45 < away < 2:
            nearest[axis, 1] = min(nearest[axis, 1], at)
    one, two, three, four = np.where(np.isfinite(nearest), nearest, np.nan).ravel().tolist()
    return one, two, three, four
