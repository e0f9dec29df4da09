"""Many people for benchmarks: real people first, then morphs, new people who are mixes of real ones.

- A real person with fewer than PHOTOS photos also gets altered copies of them, moved and relit.
- A morph of crops is a mix of three real people, bent by a smooth warp. Mix and warp belong to the person; the photos of the
  three, the position and the light change with every photo.
- A morph of a network's vectors is a mix of three real people, plus the way in which some photo of a real person differs from
  that person's mean. Covered copies of the photos are mixed in the same way.

A person depends on the seed and on their own number alone: the first 100 of 10,000 people are those of a run with 100.
Morphs are for time and memory. They all descend from the same real people, so error rates say nothing about a real crowd.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.vision.preprocess import unit_rows
from trainer.data import augment
from trainer.types import Array

PHOTOS = 5
PARENTS = 3
WARP, GRID = 0.03, 4  # largest shift as a share of the width, about; cells of the warp in a side
Crops = NDArray[np.uint8]


def unpack_people(archive: Path, folder: Path, people: int, most: int) -> list[str]:
    """Unpack the people with the most photos, and at most `most` photos of each. Return their names in this order."""
    with ZipFile(archive) as packed:
        photos: dict[str, list[str]] = {}
        for name in sorted(name for name in packed.namelist() if not name.endswith("/")):
            photos.setdefault(Path(name).parent.name, []).append(name)
        chosen = sorted(photos, key=lambda person: (-len(photos[person]), person))[:people]
        for person in chosen:
            (folder / person).mkdir(parents=True)
            for name in photos[person][:most]:
                (folder / person / Path(name).name).write_bytes(packed.read(name))
    return chosen


def filled_up(crops: Crops, number: int, seed: int = 0) -> Crops:
    """Return PHOTOS crops of person `number`: the first of `crops` (n, ...), then altered copies of them."""
    missing = PHOTOS - len(crops)
    if missing <= 0:
        return crops[:PHOTOS]
    again = np.resize(np.arange(len(crops)), missing)
    return np.concatenate([crops, _altered(crops[again], np.random.default_rng([seed, number]))])


class Morphs:
    """People made of crops of real people."""

    def __init__(self, real: Sequence[Crops], seed: int = 0) -> None:
        self.real, self.seed = real, seed
        self.mean = np.mean([own.mean(axis=0) for own in real], axis=0, dtype=np.float32)

    def crops(self, number: int) -> Crops:
        """Return the photos (PHOTOS, ...) of person `number`, a real one if there are more."""
        if number < len(self.real):
            return filled_up(self.real[number], number, self.seed)
        rng = np.random.default_rng([self.seed, number])
        parents, weights = _mix(len(self.real), rng)
        warp = _warp(self.mean.shape[:2], rng)
        photos = []
        for _ in range(PHOTOS):
            of_parents = [self.real[parent][rng.integers(len(self.real[parent]))] for parent in parents]
            face = self.mean + np.tensordot(weights, np.stack(of_parents) - self.mean, 1)
            photos.append(cv2.remap(face.astype(np.float32), *warp, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
        return _altered(np.clip(np.stack(photos), 0, 255).astype(np.uint8), rng)


class VectorMorphs:
    """People made of a network's vectors of real people."""

    def __init__(self, real: Array, seed: int = 0) -> None:
        """`real` are (people, PHOTOS, 1 + k, d): the vectors of photos and of their k covered copies."""
        self.real, self.seed = _unit(real), seed
        self.means = self.real.mean(axis=1)
        self.deviations = (self.real - self.means[:, None]).reshape(-1, *real.shape[2:])

    def vectors(self, number: int) -> Array:
        """Return vectors (PHOTOS, 1 + k, d) of unit length of person `number`, a real one if there are more."""
        if number < len(self.real):
            return self.real[number]
        rng = np.random.default_rng([self.seed, number])
        parents, weights = _mix(len(self.real), rng)
        person = np.tensordot(weights, self.means[parents], 1)
        return _unit(person + self.deviations[rng.choice(len(self.deviations), PHOTOS, replace=False)])


def _altered(crops: Crops, rng: np.random.Generator) -> Crops:
    """Return a copy of each crop, moved and relit, neither covered nor mirrored."""
    made = augment.copies(crops, 1, rng)
    made[::2] = made[::2, :, ::-1].copy()  # these are mirrored
    return made


def _mix(people: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return different people, and their weights, whose squares sum to 1: a mix has as much contrast as a person."""
    parents = rng.choice(people, min(PARENTS, people), replace=False)
    weights = rng.uniform(0.2, 1, len(parents)).astype(np.float32)
    return parents, weights / np.linalg.norm(weights)


def _warp(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Array, Array]:
    """Return x and y (H, W) from where each pixel is taken."""
    height, width = shape
    shifts = WARP / 2 * width * rng.standard_normal((2, GRID, GRID)).astype(np.float32)
    x, y = (cv2.resize(shift, (width, height), interpolation=cv2.INTER_CUBIC) for shift in shifts)
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    return columns + x, rows + y


def _unit(vectors: Array) -> Array:
    return unit_rows(vectors.reshape(-1, vectors.shape[-1])).reshape(vectors.shape).astype(np.float32)
