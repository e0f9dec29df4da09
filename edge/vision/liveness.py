"""The measurement that distinguishes a head from a flat picture. edge/decision/challenge.py decides with it.

Relief: five points of a plane keep two numbers however the plane is turned or moved: the position of the fifth point after a
homography has put the other four into fixed positions. Here the four are the eyes and the corners of the mouth, and the fifth
is the nose, which is in front of their plane. It stays in place in a photo that is moved, and moves when a head turns.
"""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

CORNERS = np.array([[-0.5, 0], [0.5, 0], [-0.36, 1.1], [0.36, 1.1]], np.float32)  # of eyes and mouth, in eye distances
NOD = 0.8  # the nose moves less in a nod than in a turn to a side


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
