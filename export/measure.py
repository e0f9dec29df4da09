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
from typing import Any

import cv2
import numpy as np

from edge.errors import GalleryError
from edge.kit.manifest import Thresholds
from edge.vision.onnx_session import load_session, uses_prepacking
from export.baseline_graph import BaselineFactors
from export.graph import Factors
from trainer.data.augment import harden
from trainer.data.gallery import Gallery
from trainer.method.coding import Coding
from trainer.model import Model
from trainer.thresholds import StrangerCalibration
from trainer.types import Array

FACES = 1024  # one of them is just less than 0.1 points
HARD_ENOUGH = 0.97  # accuracy: that of a good model on the occluded faces of AR
HARDNESSES = (0.25, 0.5, 0.75, 1, 1.0625, 1.125, 1.25, 1.5, 2)  # 1.25: all made harder, a quarter of them twice
AGREEMENT = 0.995  # with the converged coder
SURE = 0.995  # that the trainer's own coder gives the same label: test faces are harder than calibration faces
ACCURACY_SHIFT = 0.001
LOSS = 0.002  # of accuracy, that a precision may cost
EXPLAINED = (0.995, 0.98, 0.95, 0.9, 0.8, 0.7)  # of the calibration faces: their residuals may set the limit
NEAR = 1.1  # a narrower limit keeps this distance from the noise that it is to catch
CEILING = 0.98  # of the threshold: with few people even noise has a clear winner, and the residual must catch it


@dataclass(frozen=True, kw_only=True, eq=False)
class Faces:
    """Crops of known people."""

    crops: Array
    """(N, H, W) uint8."""
    people: Array
    """(N,) index into the model's labels."""


@dataclass(frozen=True)
class Row:
    """One line of the table of iterations."""

    iterations: int
    agreement: float
    """Share of faces with the label of the converged coder."""
    sure: float
    """Share of faces whose lead is more than twice what any score still moves until the trainer's own coder is done."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A number of iterations, and why."""

    coding: Any
    """The model's, with that number."""
    rows: tuple[Row, ...]
    """For 1, 2, 3... iterations."""
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
    model: Model,
    factors: Factors | BaselineFactors,
    faces: Faces,
    iterations: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Choice:
    """The smallest number of iterations of the trainer's own coder at which at least 99.5 % of the faces keep the label of the
    converged coder, 99.5 % would keep that of the trainer's with room to spare, and accuracy moves by less than 0.1 points.

    Where none will do, all of the trainer's iterations: W was learned with them. `iterations` overrides.
    """
    X = np.ascontiguousarray(model.spec.vectors(faces.crops).T)
    report("converged coder")
    goal = factors.scores(X, converged(model.coding)).argmax(axis=0)
    report("iterations")
    longest = max(iterations or 1, model.coding.iterations)
    steps = [_unit(scores) for scores in factors.steps(X, replace(model.coding, iterations=longest))]
    trainers = steps[model.coding.iterations - 1]
    second, first = np.partition(trainers, -2, axis=0)[-2:]
    converged_accuracy = float(np.mean(goal == faces.people))
    rows: list[Row] = []
    for k, found in enumerate(steps[: iterations or model.coding.iterations], start=1):
        labels, moved = found.argmax(axis=0), np.abs(found - trainers).max(axis=0)
        checks = (labels == goal, first - second > 2 * moved, labels == faces.people)
        rows.append(Row(k, *(float(np.mean(check)) for check in checks)))
    good = [
        row.agreement >= AGREEMENT and row.sure >= SURE and abs(row.accuracy - converged_accuracy) < ACCURACY_SHIFT
        for row in rows
    ]
    # As long as all later ones are good too: a single one may be luck.
    enough = next((i + 1 for i in range(len(rows)) if all(good[i:])), len(rows))
    return Choice(
        coding=replace(model.coding, iterations=iterations or enough),
        rows=tuple(rows),
        faces=len(faces.crops),
        converged_accuracy=converged_accuracy,
    )


def converged(coding: Any) -> Any:
    """The reference. For l1 with a third of the iterations of Coding.converged, and (measured on AR) nearer to the limit."""
    if not isinstance(coding, Coding):
        return coding.converged()
    if coding.kind == "l21":
        return coding.converged()
    return replace(coding, mu0=20.0, rho=1.02, relaxation=1.8, iterations=120)


def _unit(scores: Array) -> Array:
    return scores / np.maximum(np.linalg.norm(scores, axis=0), np.finfo(scores.dtype).tiny)


def microseconds(graph: bytes, coding: Any, crop: Array, seconds: float = 0.2) -> float:
    """Median time of one face, with 1 thread, as on the device."""
    run = load_session(graph, "the graph", prepack=uses_prepacking(coding.kind))
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


def thresholds(
    graph: bytes, faces: Faces, rejection: StrangerCalibration | None = None
) -> tuple[Thresholds, dict[str, float]]:
    """The model's own, measured on strangers, or provisional ones; and what they do. None of `non_faces` passes.

    residual: a little above what nearly all calibration faces leave unexplained, or fewer of them, where the noise that a wide
    limit lets through would raise a measured confidence so far that it costs more: among few people noise has a clear winner.
    confidence: above that of every noise, texture or ramp that the residual lets through; where strangers are not known, by
    one deviation, and above nearly all of the others.
    """
    confidence, residual = _outputs(graph, faces.crops, "confidence", "residual")
    noise_confidence, noise_residual = _outputs(graph, non_faces(faces.crops.shape[1:]), "confidence", "residual")
    choices = []
    for share in EXPLAINED if rejection is not None else EXPLAINED[:1]:
        most = max(_rounded(1.1 * np.quantile(residual, share)), 1e-4)  # short vectors leave next to nothing unexplained
        through = noise_residual <= most * (1 if share == EXPLAINED[0] else NEAR)
        loudest = float(noise_confidence[through].max(initial=0))
        if rejection is None:
            least = _rounded(min(max(loudest + noise_confidence.std(), np.quantile(noise_confidence, 0.99)), CEILING))
        else:
            least = max(rejection.confidence, _rounded(loudest) + 1e-4)
        if np.any((noise_confidence >= least) & through):
            least = 2.0  # nothing can tell this model's people from noise, so nobody is let in
        choices.append((float(np.mean((confidence >= least) & (residual <= most))), most, least))
    passed, most, least = max(choices)  # of equals, the one that leaves more unexplained
    found = Thresholds(confidence=least, residual=most, provisional=True)
    if rejection is not None:
        low, high = rejection.interval
        promise = {"fpir": rejection.stated_rate, "fpir_low": low, "fpir_high": high}
        found = replace(found, provisional=False, strangers=rejection.trials, **promise)
    return found, {
        "faces_passed": passed,
        "non_faces_passed": float(np.mean((noise_confidence >= least) & (noise_residual <= most))),
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
    run = load_session(graph, "the graph", prepack=False)
    chunks = [run.run(names, {"crops": crops[i : i + 64]}) for i in range(0, len(crops), 64)]
    columns = [np.concatenate(column) for column in zip(*chunks, strict=True)]
    return columns if len(names) > 1 else columns[0]


def _rounded(value: float) -> float:
    return round(float(value), 4)
