"""Does a kit compute here what it computed where it was built? Made-up crops, the same everywhere, and the answers it carries.

The crops come from whole numbers alone, so that no version of any package changes a pixel, and show nobody: a kit carries no
picture for this. The answers may differ in the last bits between machines, and not by more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from edge.errors import SelfTestError
from edge.vision.preprocess import BLANK
from edge.vision.recognize import Recognizer

CROPS = 4
DIGITS = 6
TOLERANCE = 1e-3
"""Machines differ by some 1e-6; a broken product of matrices, or other weights, by far more."""
FRAME = (480, 640, 3)

_DO_NOT = "Do not use it: build it again, or install another version of onnxruntime."
R = TypeVar("R", bound=Recognizer)


def crops(size: tuple[int, int], number: int = CROPS) -> NDArray[np.uint8]:
    """Patches of grey, coarse to fine, with some noise on them: (number, height, width)."""
    i, y, x = np.ogrid[:number, : size[0], : size[1]]
    patch = np.maximum(1, min(size) >> (i + 1))
    coarse = _hash((i * 4096 + y // patch) * 4096 + x // patch)
    fine = _hash((i * 4096 + y) * 4096 + x + 2**40)
    return ((coarse * 7 + fine) // 8).astype(np.uint8)


def _hash(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A byte for each number that looks like chance (the mixer of splitmix64)."""
    n = (numbers + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    n = (n ^ (n >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    n = (n ^ (n >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return n >> np.uint64(56)


def answers(outputs: Callable[[NDArray[np.uint8]], Mapping[str, NDArray[Any]]], size: tuple[int, int]) -> dict[str, Any]:
    """What a graph (as `Recognizer.outputs`) answers, as the manifest keeps it."""
    found = outputs(crops(size))
    length = np.maximum(np.linalg.norm(found["scores"], axis=1, keepdims=True), BLANK)
    kept = {"scores": found["scores"] / length, "confidence": found["confidence"], "residual": found["residual"]}
    return {name: np.round(values.astype(float), DIGITS).tolist() for name, values in kept.items()}


def check(recognizer: Recognizer) -> None:
    """Refuse a kit that answers otherwise here than it says."""
    wanted = recognizer.kit.manifest.selftest
    try:
        found = answers(recognizer.outputs, recognizer.kit.manifest.size)
        off = max(_distance(np.array(found[name], float), np.array(wanted[name], float)) for name in found)
    except Exception as error:  # whatever a graph or a manifest may do, it is not the right answer
        raise SelfTestError(f"The kit fails its self-test ({type(error).__name__}).", _DO_NOT) from error
    if not off <= TOLERANCE:
        raise SelfTestError(f"The kit fails its self-test: its answers are off by {off:.1e}.", _DO_NOT)


def _distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    return float(np.abs(one - other).max()) if one.shape == other.shape else math.inf


def ready(recognizer: R) -> R:
    """The recogniser, when it has shown that it can be used on frames: self-test, and a first look at an empty picture."""
    check(recognizer)
    finder = recognizer.finder
    try:
        finder.detect(np.zeros(FRAME, np.uint8))
    except Exception as error:
        raise SelfTestError(f"The kit's detector fails on an empty picture ({type(error).__name__}).", _DO_NOT) from error
    return recognizer
