"""Corrupted training images: the loss of accuracy of our recogniser and of others.

AR, 100 people: the seven images of session 1 without sunglasses and scarves train, those of session 2 test. A share of the
training images, drawn from all of them, gets a block over a quarter of the face, painted sunglasses, or a wrong label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from scripts.research.accuracy import AR_POINTS, ONCE, Answers, Faces, Task, align_all, mean_results, measure_missing
from scripts.research.results import ResultsFile
from trainer.paper.experiments import Cell, load_arrays
from trainer.types import Array

SHARES = (0.1, 0.2, 0.3, 0.5)
KINDS = ("blocks", "sunglasses", "wrong labels")
BLOCK = (21, 15)  # pixels, of 42 x 30
LENS = (6, 5)  # half of its width and height


def measure(
    data: Path, say: Callable[[str], None], results: ResultsFile, *, splits: int = 1, cells: str = ""
) -> dict[str, Any]:
    cell = Cell(dataset="ar")
    images, labels = load_arrays(data / "ar_42x30.npz", cell)
    place = np.arange(len(labels)) % 26
    train, test = np.flatnonzero(place < 7), np.flatnonzero((place >= 13) & (place < 20))
    rng = np.random.default_rng(0)
    crops = np.concatenate([images, blocks(images[train], rng), sunglasses(images[train], rng)])
    sets = {"AR": Faces(crops=crops, aligned=align_all(crops, AR_POINTS), spec=cell.spec("both"))}
    measure_missing("spoiled", sets, list(_tasks(labels, train, test, splits)), _accuracy, results, say, cells)
    return {"splits": splits, "accuracy": mean_results("spoiled", results, splits)}


def _accuracy(answer: Answers, people: Array) -> float:
    return round(100 * float(np.mean(answer.labels == people)), 3)


def _tasks(labels: Array, train: Array, test: Array, splits: int) -> Iterator[Task]:
    n, people = len(train), np.unique(labels)

    def task(name: str, split: int, chosen: Array, given: Array) -> Task:
        return Task(name=name, split=split, faces="AR", train=chosen, labels=given, test=test, people=labels[test])

    yield task(ONCE, 0, train, labels[train])
    for k in range(splits):
        rng = np.random.default_rng([0, k])
        order = rng.permutation(n)
        others = people[(np.searchsorted(people, labels[train]) + rng.integers(1, len(people), n)) % len(people)]
        for share in SHARES:
            bad = np.isin(np.arange(n), order[: round(share * n)])
            for number, kind in enumerate(KINDS[:2]):
                spoiled = np.where(bad, len(labels) + number * n + np.arange(n), train)
                yield task(f"{kind} {share:.0%}", k, spoiled, labels[train])
            yield task(f"{KINDS[2]} {share:.0%}", k, train, np.where(bad, others, labels[train]))


def blocks(images: Array, rng: np.random.Generator) -> Array:
    """Images with a rectangle of one grey level at a random position."""
    spoiled, (height, width) = images.copy(), BLOCK
    for image in spoiled:
        top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
        image[top : top + height, left : left + width] = rng.integers(256)
    return spoiled


def sunglasses(images: Array, rng: np.random.Generator) -> Array:
    """Images with two dark lenses over the eyes and a bridge between them."""
    spoiled = images.copy()
    for image in spoiled:
        left, right = [(round(x), round(y) + int(rng.integers(0, 2))) for x, y in AR_POINTS[:2]]
        shade = int(rng.integers(10, 50))
        for eye in (left, right):
            cv2.ellipse(image, eye, LENS, 0, 0, 360, shade, -1)
        cv2.line(image, left, right, shade, 2)
    return spoiled


def table(result: dict[str, Any]) -> str:
    """Format the accuracy without corrupted images and with each share of them; empty if not measured."""
    names = [ONCE, *(f"{kind} {share:.0%}" for kind in KINDS for share in SHARES)]
    heads = " | ".join(name.replace("%", " %") for name in names)
    lines = [f"| recognised, %; splits: {result['splits']} | {heads} |", "|---" * (len(names) + 1) + "|"]
    for method, own in result["accuracy"].items():
        lines.append(f"| {method} | {' | '.join(f'{own[name]:.1f}' if name in own else '' for name in names)} |")
    return "\n".join(lines)
