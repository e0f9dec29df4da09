"""What a user would write instead of this project: YuNet and SFace of OpenCV, in colour, and the cosine to each person.

The largest face of a photo is used, and a photo is rejected only if no face is found. The name is that of the highest cosine,
and that cosine is the confidence.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from trainer.downloads import SFACE, YUNET
from trainer.types import Say, silent

COSINE = 0.363
"""The threshold of OpenCV's own example, chosen there for pairs of LFW photos."""
SCORE = 0.6
"""The lowest score of a face. OpenCV's default, 0.9, rejects many covered faces."""


class SFaceCosine:
    """The detector and the network."""

    def __init__(self, folder: Path, say: Say = silent) -> None:
        """`folder` receives the two files, because OpenCV reads them from disk."""
        for name, file in (("yunet.onnx", YUNET), ("sface.onnx", SFACE)):
            (folder / name).write_bytes(file.read(say))
        self.detector = cv2.FaceDetectorYN.create(str(folder / "yunet.onnx"), "", (320, 320), SCORE)
        self.network = cv2.FaceRecognizerSF.create(str(folder / "sface.onnx"), "")

    def crop(self, path: Path) -> NDArray[np.uint8] | None:
        """Return the aligned face of a photo (112, 112, 3), BGR, or None if there is none."""
        image = cv2.imread(str(path))
        if image is None:
            return None
        self.detector.setInputSize((image.shape[1], image.shape[0]))
        _, faces = self.detector.detect(image)
        if faces is None or not len(faces):
            return None
        return self.network.alignCrop(image, max(faces, key=lambda face: face[2] * face[3]))  # type: ignore[return-value]

    def vector(self, crop: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the embedding (128,) of a crop at unit length."""
        vector = self.network.feature(crop).ravel()
        return np.asarray(vector / np.linalg.norm(vector), np.float32)


Score = Callable[[NDArray[np.float32]], NDArray[np.float32]]


def to_means(known: NDArray[np.float32], whose: NDArray[np.intp]) -> Score:
    """Return a function: vectors (N, d) -> their cosines (N, C) with the mean vector of each person.

    `known` (n, d) are the enrolled vectors, and `whose` (n,) are the indices of their people.
    """
    means = np.stack([known[whose == person].mean(axis=0) for person in range(whose.max() + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    return lambda vectors: vectors @ means.T


def to_nearest(known: NDArray[np.float32], whose: NDArray[np.intp]) -> Score:
    """As `to_means`, with the nearest vector of each person."""
    order = np.argsort(whose, kind="stable")
    known, starts = known[order], np.searchsorted(whose[order], np.arange(whose.max() + 1))
    return lambda vectors: np.maximum.reduceat(vectors @ known.T, starts, axis=1)
