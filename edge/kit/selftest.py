"""The self-test: a kit computes on the device the results that it carries, on synthetic crops.

The crops are computed with integers only, so no version of any package changes a pixel. They show no person.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import SelfTestError
from edge.vision.confidence import BLANK
from edge.vision.presentation import LivenessModel
from edge.vision.recognize import Recognizer

CROPS = 4
DIGITS = 6
# Machines differ by about 1e-6. Kits that multiply integers (int8 with the coding l21) also round features to multiples of
# 2**-20, and another rounding error may give the next one: between NumPy and onnxruntime, scores (of unit length) of 2,040
# faces and noise images of AR differed by up to 2e-4. A faulty matrix product or other weights differ by far more.
TOLERANCE = 1e-3
FRAME_SHAPE = (480, 640, 3)

_DO_NOT_USE = "Do not use it. Build it again, or install another version of onnxruntime."
R = TypeVar("R", bound=Recognizer)


def synthetic_crops(shape: tuple[int, ...], number: int = CROPS) -> NDArray[np.uint8]:
    """Return patches, from coarse to fine, with noise: (number, *shape). Each channel of a BGR shape has its own."""
    height, width, *channels = shape
    i, y, x, channel = np.ogrid[:number, :height, :width, : math.prod(channels)]
    patch = np.maximum(1, min(height, width) >> (i + 1))
    coarse = _hash((i * 4096 + y // patch) * 4096 + x // patch + channel * 2**41)
    fine = _hash((i * 4096 + y) * 4096 + x + 2**40 + channel * 2**41)
    return ((coarse * 7 + fine) // 8).astype(np.uint8).reshape(number, *shape)


def _hash(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one pseudo-random byte for each number (the mixer of splitmix64)."""
    n = (numbers + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    n = (n ^ (n >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    n = (n ^ (n >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return n >> np.uint64(56)


def compute_results(
    outputs: Callable[[NDArray[np.uint8]], Mapping[str, NDArray[Any]]], shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return the results of a graph (`Recognizer.outputs`) on synthetic crops of this shape, as the manifest stores them."""
    found = outputs(synthetic_crops(shape))
    norm = np.maximum(np.linalg.norm(found["scores"], axis=1, keepdims=True), BLANK)
    results = {"scores": found["scores"] / norm, "confidence": found["confidence"], "residual": found["residual"]}
    return {name: np.round(values.astype(float), DIGITS).tolist() for name, values in results.items()}


def live_results(model: LivenessModel) -> list[float]:
    """Return the scores of a liveness model on synthetic crops, as the manifest stores them."""
    crops = zip(*(synthetic_crops((side, side, 3)) for side, _ in model.spec.crops), strict=True)
    return [round(model.outputs(list(own)), DIGITS) for own in crops]


def check(recognizer: Recognizer) -> None:
    """Run the self-test. Raise SelfTestError if a result differs from the one in the kit."""
    expected = recognizer.kit.manifest.selftest
    try:
        found = compute_results(lambda crops: _one_by_one(recognizer, crops), recognizer.kit.manifest.crop_shape)
        if recognizer.liveness is not None:
            found["live"] = live_results(recognizer.liveness)
        pairs = [(np.array(found[name], float), np.array(expected[name], float)) for name in found]
        difference = max(float(np.abs(one - other).max()) if one.shape == other.shape else math.inf for one, other in pairs)
    except Exception as error:  # any failure of the graph or the manifest is a failed self-test
        raise SelfTestError(f"The kit fails its self-test ({type(error).__name__}).", _DO_NOT_USE) from error
    if not difference <= TOLERANCE:
        raise SelfTestError(f"The kit fails its self-test: its results differ by {difference:.1e}.", _DO_NOT_USE)


def _one_by_one(recognizer: Recognizer, crops: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """Return the outputs of crops. All at once, a network would take memory that the runtime keeps for ever."""
    found = [recognizer.outputs(crops[i : i + 1]) for i in range(len(crops))]
    return {name: np.concatenate([outputs[name] for outputs in found]) for name in found[0]}


def check_with_detector(recognizer: R) -> R:
    """Run the self-test and the detector on an empty frame. Return the recognizer if both passed."""
    check(recognizer)
    finder = recognizer.detector  # a missing detector is its own error
    try:
        finder.detect(np.zeros(FRAME_SHAPE, np.uint8))
    except Exception as error:
        raise SelfTestError(f"The detector fails on an empty frame ({type(error).__name__}).", _DO_NOT_USE) from error
    return recognizer
