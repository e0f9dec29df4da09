"""What the exporter measures before it decides: how many iterations, what a precision costs, where the thresholds lie.

Calibration faces are the model's own training crops, made harder (moved, relit, half of them with a block held before them),
and held-out faces where the user has some. Where nobody is mistaken nothing can be measured, and where most are it means
little, so as many are made harder as it takes until the model fails on a few. Nothing here depends on a clock: the same model
gives the same kit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import cv2
import numpy as np

from edge.errors import GalleryError, UsageError
from edge.manifest import Thresholds
from edge.preprocess import features
from edge.runtime import session
from export.graph import Factors
from trainer.augment import harden
from trainer.coding import Coding, code_by_factors
from trainer.gallery import Gallery
from trainer.model import Model
from trainer.prox import Array

FACES = 1024  # one of them is just less than 0.1 points
HARD_ENOUGH = 0.97  # accuracy: that of a good model on the occluded faces of AR
HARDNESSES = (0.25, 0.5, 0.75, 1, 1.0625, 1.125, 1.25, 1.5, 2)  # 1.25: all made harder, a quarter of them twice
AGREEMENT = 0.995
STEADY = 3
ACCURACY_SHIFT = 0.001
LOSS = 0.002  # of accuracy, that a precision may cost
LONGEST = {"l1": 20, "l21": 10}
RELAXATION = 1.8
# Schedules of the penalty that are tried, over-relaxed, beside the trainer's own; the slow one, with its length, if they fail.
SCHEDULES = [*product((20.0, 40.0), (1.0, 1.1, 1.2)), (10.0, 1.4), (80.0, 1.0)]
SLOW = (5.0, 1.1, 60)
NEVER = 10**6  # iterations
CEILING = 0.98  # of the threshold: with few people even noise has a clear winner, and the residual must catch it


@dataclass(frozen=True, kw_only=True, eq=False)
class Faces:
    """Crops of known people."""

    crops: Array
    """(N, H, W) uint8."""
    people: Array
    """(N,) index into the model's labels."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of iterations."""

    iterations: int
    agreement: float
    """Share of faces with the label of the converged coder."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A number of iterations, and why."""

    coding: Coding
    rows: tuple[Row, ...]
    """For 1, 2, 3... iterations of the chosen schedule."""
    faces: int
    converged_accuracy: float

    @property
    def row(self) -> Row:
        return self.rows[self.coding.iterations - 1]


def hardened(model: Model, seed: int = 0, limit: int = FACES) -> Faces:
    """Training crops made harder, at most `limit`, evenly chosen; few crops are taken several times.

    First a growing share of them, then a growing share a second time: as many as bring the model's own coder nearest to 97 %.
    """
    rng = np.random.default_rng(seed)
    times = min(4, -(-limit // len(model.crops)))
    chosen = np.linspace(0, times * len(model.crops) - 1, min(limit, times * len(model.crops))).astype(int) % len(model.crops)
    people = model.crop_people[chosen]
    levels = [model.crops[chosen]]
    for _ in range(2):
        levels.append(harden(levels[-1], rng))
    right = [model.scores(crops).argmax(axis=1) == people for crops in levels]
    rank = rng.permutation(len(chosen)) / len(chosen)

    def level_at(hardness: float) -> Array:
        return int(hardness) + (rank < hardness % 1)

    level = min(map(level_at, HARDNESSES), key=lambda level: abs(np.choose(level, right).mean() - HARD_ENOUGH))
    return Faces(crops=np.choose(level[:, None, None], levels), people=people)


def held_out(model: Model, gallery: Gallery) -> Faces:
    """The faces of a gallery whose people the model knows."""
    size = (model.spec.height, model.spec.width)
    if gallery.images.shape[1:] != size:
        shown, wanted = ("x".join(map(str, shape)) for shape in (gallery.images.shape[1:], size))
        raise GalleryError(
            f"The faces of --data are {shown}, and the model's {wanted}.", "Crop them as the training photos were."
        )
    index = {label: i for i, label in enumerate(model.labels)}
    known = np.array([label in index for label in gallery.labels])
    if not known.any():
        raise GalleryError("--data shows nobody whom the model knows.", "Name its people as in training.")
    return Faces(crops=gallery.images[known], people=np.array([index[label] for label in gallery.labels[known]]))


def together(*faces: Faces) -> Faces:
    return Faces(crops=np.concatenate([f.crops for f in faces]), people=np.concatenate([f.people for f in faces]))


def choose(
    model: Model, factors: Factors, faces: Faces, iterations: int | None = None, report: Callable[[str], None] = lambda _: None
) -> Choice:
    """The smallest number of iterations at which at least 99.5 % of the faces keep the label of the converged coder, and
    accuracy moves by less than 0.1 points, as they do with one and two more. For l1, of several schedules of the penalty the
    one that gets there first is taken.

    With `iterations` the number is fixed, and the schedule that agrees best at it is taken.
    """
    U, s, B = factors.U, factors.s, factors.B
    X = np.ascontiguousarray(features(faces.crops, model.spec).T)
    report("converged coder")
    goal = (B @ code_by_factors(U, s, X, converged(model.coding))).argmax(axis=0)
    converged_accuracy = float(np.mean(goal == faces.people))

    def choice(coding: Coding) -> Choice:
        rows: list[Row] = []

        def look(k: int, w: Array) -> None:
            labels = (B @ w).argmax(axis=0)
            agreement, right = (float(np.mean(labels == wanted)) for wanted in (goal, faces.people))
            rows.append(Row(iterations=k, agreement=agreement, accuracy=right))

        report(f"penalty {coding.mu0:g} x {coding.rho:g}^k" if coding.kind == "l1" else "iterations")
        code_by_factors(U, s, X, coding, look)
        return Choice(
            coding=replace(coding, iterations=iterations or _enough(rows, converged_accuracy) or NEVER),
            rows=tuple(rows),
            faces=len(faces.crops),
            converged_accuracy=converged_accuracy,
        )

    own = replace(model.coding, iterations=iterations or LONGEST[model.coding.kind])
    found = [choice(own)]
    if own.kind == "l1":
        # No schedule is followed for much longer than the best so far has needed.
        for mu0, rho in SCHEDULES:
            shortest = min(option.coding.iterations for option in found) + STEADY
            length = iterations or min(shortest, own.iterations)
            found.append(choice(replace(own, mu0=mu0, rho=rho, relaxation=RELAXATION, iterations=length)))
        if min(option.coding.iterations for option in found) == NEVER:
            mu0, rho, longest = SLOW
            found.append(choice(replace(own, mu0=mu0, rho=rho, relaxation=RELAXATION, iterations=longest)))
    chosen = min(found, key=_preference)
    if chosen.coding.iterations == NEVER:
        raise UsageError(
            f"Not even {len(found[-1].rows)} iterations give the labels of the converged coder.", "Pass --iterations."
        )
    return chosen


def _preference(choice: Choice) -> tuple[int, float]:
    """Few iterations first; of as many, the better agreement there and after."""
    first = min(choice.coding.iterations, len(choice.rows)) - 1
    return choice.coding.iterations, -float(np.mean([row.agreement for row in choice.rows[first:]]))


def _enough(rows: list[Row], converged_accuracy: float) -> int | None:
    """The first row that is good enough, as are the next ones: among many schedules a single one would be luck."""
    good = [row.agreement >= AGREEMENT and abs(row.accuracy - converged_accuracy) < ACCURACY_SHIFT for row in rows]
    return next((row.iterations for i, row in enumerate(rows) if all(good[i : i + STEADY])), None)


def converged(coding: Coding) -> Coding:
    """The reference. For l1 with a third of the iterations of Coding.converged, and (measured on AR) nearer to the limit."""
    if coding.kind == "l21":
        return coding.converged()
    return replace(coding, mu0=20.0, rho=1.02, relaxation=RELAXATION, iterations=120)


def microseconds(graph: bytes, coding: Coding, crop: Array, seconds: float = 0.2) -> float:
    """Median time of one face, with 1 thread, as on the device."""
    run = session(graph, "the graph", pack=coding.kind != "l1")
    feeds = {"crops": crop[None]}
    taken: list[float] = []
    while sum(taken) < seconds or len(taken) < 20:
        start = time.perf_counter()
        run.run(None, feeds)
        taken.append(time.perf_counter() - start)
    return float(np.median(taken[5:]) * 1e6)


def accuracy(graph: bytes, faces: Faces) -> float:
    """Share of faces that the graph itself labels rightly."""
    return float(np.mean(_outputs(graph, faces.crops, "label") == faces.people))


def thresholds(graph: bytes, faces: Faces) -> tuple[Thresholds, dict[str, float]]:
    """Provisional ones, and what they do: strangers are not known yet, so they lie where nothing that is no face passes.

    residual: a little above what the calibration faces leave unexplained. confidence: one deviation above that of every
    noise, texture or ramp that the residual lets through, and above nearly all of those that it does not.
    """
    confidence, residual = _outputs(graph, faces.crops, "confidence", "residual")
    noise_confidence, noise_residual = _outputs(graph, non_faces(faces.crops.shape[1:]), "confidence", "residual")
    most = _rounded(1.1 * np.quantile(residual, 0.995))
    through = noise_residual <= most
    highest = max(noise_confidence[through].max(initial=0) + noise_confidence.std(), np.quantile(noise_confidence, 0.99))
    least = _rounded(min(highest, CEILING))
    if np.any((noise_confidence >= least) & through):
        least = 2.0  # nothing can tell this model's people from noise, so nobody is let in
    passed = float(np.mean((confidence >= least) & (residual <= most)))
    return Thresholds(confidence=least, residual=most, provisional=True), {
        "faces_passed": passed,
        "non_faces_passed": 0.0,
        "non_faces": len(noise_confidence),
    }


def non_faces(size: tuple[int, int], number: int = 100, seed: int = 0) -> Array:
    """(8 number, H, W) uint8 crops that show nobody: white and coloured noise, ramps, stripes, even grey."""
    height, width = size
    rng = np.random.default_rng(seed)
    kinds = [rng.uniform(0, 255, (number, height, width))]
    for blur in (0.03, 0.08, 0.2):  # of the width
        rough = rng.standard_normal((number, height, width))
        smooth = np.stack([cv2.GaussianBlur(image, (0, 0), max(blur * width, 0.5)) for image in rough])
        low, high = smooth.min(axis=(1, 2), keepdims=True), smooth.max(axis=(1, 2), keepdims=True)
        kinds.append((smooth - low) / (high - low) * rng.uniform(64, 255, (number, 1, 1)))
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    angle, strength = rng.uniform(0, 2 * np.pi, (number, 1, 1)), rng.uniform(5, 120, (number, 1, 1))
    across = np.cos(angle) * x + np.sin(angle) * y
    grain = rng.standard_normal((number, height, width)) * 3
    kinds.append(128 + strength * across + grain)
    kinds.append(128 + strength * np.sin(across * rng.uniform(2, 20, (number, 1, 1))) + grain)
    even = rng.uniform(0, 255, (number, 1, 1)) + np.zeros((number, height, width))
    kinds += [even, even + grain]
    return np.clip(np.concatenate(kinds), 0, 255).astype(np.uint8)


def _outputs(graph: bytes, crops: Array, *names: str) -> Any:
    """Outputs of a graph for many crops, a few at a time."""
    run = session(graph, "the graph")
    chunks = [run.run(names, {"crops": crops[i : i + 64]}) for i in range(0, len(crops), 64)]
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    return columns if len(names) > 1 else columns[0]


def _rounded(value: float) -> float:
    return round(float(value), 4)
