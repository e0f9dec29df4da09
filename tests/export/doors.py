"""Small trained models and kits of made-up people, made once for all tests that need one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from edge.manifest import Thresholds
from edge.preprocess import FeatureSpec
from export import graph
from export.graph import Factors, Precision
from export.kit import bundle
from tests.data import faces
from trainer.coding import Coding
from trainer.gallery import Gallery
from trainer.model import Model, fit
from trainer.parts import Grid
from trainer.prox import Array

SIZE = (24, 20)
NAMES = ("anna", "ben", "çelik", "dora")


def crops(seed: int = 0) -> tuple[Array, Array]:
    """Photos of the same four people; another seed gives other people."""
    images, people = faces(people=len(NAMES), photos=12, size=SIZE, seed=seed)
    return images, np.array(NAMES)[people]


@cache
def model(kind: str = "both", coding: str = "l1", cell: int = 1, parts: Grid | None = None) -> Model:
    """Trained on the first six photos of each of four people."""
    images, names = crops()
    first = np.arange(len(images)) % 12 < 6
    gallery = Gallery(images=images[first], labels=names[first], sources=tuple(f"{i}.png" for i in range(first.sum())))
    spec = FeatureSpec(height=SIZE[0], width=SIZE[1], kind=kind, cell=cell)
    # In so few pixels the usual weight of the l1 error would be too small for any code but zero.
    how = replace(Coding.default("l1"), lam=0.4) if coding == "l1" else coding
    return fit(gallery, spec, {"atoms_per_class": 3, "coding": how, "eta": 1e-2, "parts": parts})


def held_out() -> tuple[Array, Array]:
    """The other six photos of each, and who is in them."""
    images, names = crops()
    last = np.arange(len(images)) % 12 >= 6
    return images[last], names[last]


def strange_crops() -> Array:
    """What a broken camera sends: black, white, even grey, one pixel, noise, half black."""
    rng = np.random.default_rng(5)
    odd = [np.zeros(SIZE), np.full(SIZE, 255), np.full(SIZE, 7)]
    odd += [np.pad([[255.0]], [(3, SIZE[0] - 4), (9, SIZE[1] - 10)]), np.pad([[1.0]], [(3, SIZE[0] - 4), (9, SIZE[1] - 10)])]
    odd += [rng.integers(0, 256, SIZE) for _ in range(8)] + [np.eye(*SIZE) * 255, np.tri(*SIZE) * 255]
    return np.array(odd).astype(np.uint8)


@cache
def kit(
    coding: str = "l21", precision: Precision = "fp32", private_key: bytes | None = None, detector: bytes | None = None
) -> bytes:
    """The bytes of a kit, without the calibration that `build` does."""
    trained = model("pixels", coding, 4)
    return bundle(
        trained,
        graph.build(Factors.of(trained), trained.spec, trained.coding, precision),
        coding=trained.coding,
        precision=precision,
        thresholds=Thresholds(confidence=0.9, residual=0.5, provisional=True),
        calibration={},
        detector=detector,
        private_key=private_key,
    )
