"""Faces made harder on purpose: what a door sees that a clean photo does not show."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray


def harden(crops: NDArray[np.uint8], rng: np.random.Generator, strength: float = 1.0) -> NDArray[np.uint8]:
    """Each crop (N, H, W) moved, turned, scaled and relit a little, every second one with a block held before it.

    At strength 1 it is a careless crop: 3 % of the width, 4 degrees, 4 %; light changes by up to half across the face. All but
    the block grow with the strength.
    """
    n, height, width = crops.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    harder = np.empty_like(crops)
    for i in range(n):
        turn = cv2.getRotationMatrix2D(
            ((width - 1) / 2, (height - 1) / 2), strength * rng.uniform(-4, 4), 1 + strength * rng.uniform(-0.04, 0.04)
        )
        turn[:, 2] += strength * rng.uniform(-0.03, 0.03, 2) * width
        moved = cv2.warpAffine(crops[i], turn, (width, height), borderMode=cv2.BORDER_REPLICATE)
        angle = rng.uniform(0, 2 * np.pi)
        light = 1 + strength * rng.uniform(0, 0.5) * (np.cos(angle) * x + np.sin(angle) * y)
        face = moved * light * (1 + strength * rng.uniform(-0.2, 0.2))
        if rng.random() < 0.5:
            h, w = int(0.3 * height), int(0.6 * width)
            top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
            face[top : top + h, left : left + w] = rng.uniform(20, 200)
        harder[i] = np.clip(face, 0, 255)
    return harder
