"""Passive detection of presentation attacks: the liveness model of a kit scores a face and its surroundings in one frame.

    frame, box of a face  ->  for each network a crop, the box enlarged by its scale  ->  networks  ->  mean of their scores

The score is between 0 (a print or a screen) and 1 (a live face). The signs of a picture are often beside the face: the edge
of a phone, a hand. A face that fills the frame hides them, so it is not scored (`Liveness.context`).
"""

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.errors import KitError
from edge.kit.format import LIVENESS
from edge.kit.manifest import Liveness
from edge.vision.onnx_session import load_session

Box = tuple[float, float, float, float]


class LivenessModel:
    """Scores faces. Thread-safe."""

    def __init__(self, model: bytes, spec: Liveness, *, threads: int = 1) -> None:
        self.spec = spec
        self._session = load_session(model, LIVENESS, threads=threads)
        inputs = {(i.name, i.type, tuple(i.shape[1:])) for i in self._session.get_inputs()}
        outputs = [(o.name, o.type, len(o.shape)) for o in self._session.get_outputs()]
        wanted = {(crop_name(i), "tensor(uint8)", (side, side, 3)) for i, (side, _) in enumerate(spec.crops)}
        if inputs != wanted or outputs != [("live", "tensor(float)", 1)]:
            raise KitError("The liveness model of the kit does not match its manifest.", "Build the kit again.")

    def sees_enough(self, image: NDArray[np.uint8], box_xyxy: Box) -> bool:
        """Whether the frame shows enough around the face."""
        return all(found >= needed for found, needed in zip(context(image, box_xyxy), self.spec.context, strict=True))

    def score(self, image: NDArray[np.uint8], box_xyxy: Box) -> float:
        """Return the score of a face in a BGR frame, from 0 to 1."""
        return self.outputs([crop(image, box_xyxy, side, scale) for side, scale in self.spec.crops])

    def outputs(self, crops: list[NDArray[np.uint8]]) -> float:
        """Return the score of one crop (side, side, 3) for each network."""
        named = {crop_name(i): own[None] for i, own in enumerate(crops)}
        return float(self._session.run(["live"], named)[0][0])


def crop_name(number: int) -> str:
    """Return the name of an input of the graph. Networks count from 0."""
    return f"crops_{number + 1}"


def context(image: NDArray[Any], box_xyxy: Box) -> tuple[float, float]:
    """Return how many times the frame is as wide, and as high, as the box of a face."""
    left, top, right, bottom = box_xyxy
    height, width = image.shape[:2]
    return width / max(right - left, 1.0), height / max(bottom - top, 1.0)


def crop(image: NDArray[np.uint8], box_xyxy: Box, side: int, scale: float) -> NDArray[np.uint8]:
    """Return (side, side, 3): the box enlarged by `scale`, in each direction as far as the frame allows, inside the frame.

    A high box in a low frame becomes wide: what is beside the face counts more than its proportions (docs/guide/liveness.md).
    Made by warpAffine, which gives the same bytes on every processor.
    """
    corners, frame = np.array(box_xyxy).reshape(2, 2), np.array(image.shape[1::-1], float)
    size = np.minimum(np.maximum(corners[1] - corners[0], 1.0) * scale, frame)
    start = np.clip(corners.mean(axis=0) - size / 2, 0.0, frame - size)
    step = size / side
    # Pixel i covers i to i + 1, so its middle is at i + 0.5.
    to_frame = np.column_stack([np.diag(step), start + step / 2 - 0.5])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpAffine(image, to_frame, (side, side), flags=flags, borderMode=cv2.BORDER_REPLICATE), np.uint8)
