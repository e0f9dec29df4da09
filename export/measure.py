"""Measurements before a kit is built: how many iterations, the cost of a precision, the thresholds.

Calibration faces are the training crops of the model, made harder (moved, relit, half of them partly covered) until the model
fails on a few, and held-out faces if there are any. Nothing depends on a clock: the same model gives the same kit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from timeit import Timer

import cv2
import numpy as np

from edge.errors import GalleryError
from edge.kit.manifest import ABSOLUTE, NO_MATCH, RELATIVE, RESIDUALS, Thresholds, min_confidence
from edge.vision.onnx_session import ITERATIVE_CODINGS, load_session
from export.graph import AnyFactors
from export.run import remember_non_faces, run_graph
from trainer.baselines.coders import AnyCoding
from trainer.data.augment import harden
from trainer.data.gallery import Gallery, crop_digests
from trainer.model import Model
from trainer.thresholds import StrangerCalibration
from trainer.types import Array

FACES = 1024  # one face is just less than 0.1 points
HARD_ENOUGH = 0.97  # accuracy: that of a good model on the occluded faces of AR
HARDNESSES = (0.25, 0.5, 0.75, 1, 1.0625, 1.125, 1.25, 1.5, 2)  # 1.25: all faces made harder, a quarter of them twice
AGREEMENT = 0.995  # with the converged coder
SURE = 0.995  # faces that keep the label of the trainer's coder: test faces are harder than calibration faces
ACCURACY_SHIFT = 0.001
LOSS = 0.002  # of accuracy, that a precision may cost
EXPLAINED = (0.995, 0.98, 0.95, 0.9, 0.8, 0.7)  # shares of the calibration faces whose residuals may set the limit
NEAR = 1.1  # distance factor between a narrower limit and the noise that it must reject
SCORES_AT_ONCE = 1 << 24  # in memory: 64 MB for each part of the face
TIMING_SECONDS = 0.2  # for each time of the tables
# With two to 100 people of LFW or COMASK20 and one to three photos of each, 1 % of strangers' photos reach an absolute
# confidence of 0.30 to 0.48, and 99 % of the photos of enrolled people 0.38 to 0.78.
PROVISIONAL_ABSOLUTE = 0.5
ANY_RESIDUAL = RESIDUALS[1]
CEILING = 0.98  # of the threshold: with few people even noise has a clear winner, and the residual must reject it


@dataclass(frozen=True, kw_only=True, eq=False)
class Faces:
    """Crops of enrolled people."""

    crops: Array
    """(N, H, W) uint8, or BGR (N, H, W, 3)."""
    people: Array
    """(N,) index into the model's labels."""


@dataclass(frozen=True)
class Row:
    """One line of the table of iterations."""

    iterations: int
    agreement: float
    """Share of faces with the label of the converged coder."""
    sure: float
    """Share of faces whose margin is more than twice the largest change of a score until the trainer's coder is done."""
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A number of iterations, and the table behind it."""

    factors: AnyFactors
    """The model's factors, with that number."""
    rows: tuple[Row, ...]
    """For 1, 2, 3... iterations."""
    converged_accuracy: float

    @property
    def coding(self) -> AnyCoding:
        return self.factors.coding

    @property
    def row(self) -> Row:
        return self.rows[self.coding.iterations - 1]


def hardened(model: Model, seed: int = 0, limit: int = FACES) -> Faces:
    """Return at most `limit` training crops, a share of them made harder once or twice: the accuracy is closest to 97 %."""
    rng = np.random.default_rng(seed)
    number = len(model.crop_people)
    times = min(4, -(-limit // number))
    chosen = np.linspace(0, times * number - 1, min(limit, times * number)).astype(int) % number
    if number > FACES:
        chosen = evenly(model.crop_people, limit)
    people = model.crop_people[chosen]
    levels = [model.crops[chosen]]
    for _ in range(2):
        levels.append(harden(levels[-1], rng))
    if model.sharded is not None and model.sharded.embeddings is not None and model.spec.network is not None:
        model.spec.network.known.update(zip(crop_digests(levels[0]), model.sharded.embeddings[chosen, 0], strict=True))
    rank, faces = rng.permutation(len(chosen)) / len(chosen), np.arange(len(chosen))
    is_known, is_right = np.zeros((2, 3, len(chosen)), bool)
    tried = []
    # From easy to hard until there are enough errors. A network takes long and makes few errors: from hard to easy.
    is_easy_first = model.spec.network is None
    for hardness in HARDNESSES if is_easy_first else HARDNESSES[::-1]:
        level = int(hardness) + (rank < hardness % 1)
        for one in range(3):
            new = np.flatnonzero((level == one) & ~is_known[one])
            if len(new):
                is_right[one, new], is_known[one, new] = model.scores(levels[one][new]).argmax(axis=1) == people[new], True
        accuracy = is_right[level, faces].mean()
        tried.append((abs(accuracy - HARD_ENOUGH), level))
        if (accuracy < HARD_ENOUGH) == is_easy_first:
            break
    level = min(tried, key=lambda one: one[0])[1]
    return Faces(crops=np.choose(level.reshape(-1, *[1] * len(model.spec.crop_shape)), levels), people=people)


def evenly(people: Array, limit: int = FACES) -> Array:
    """Return the indices of at most `limit` faces, in order: all, or as many of each person as possible (within one)."""
    if len(people) <= limit:
        return np.arange(len(people))
    by_person = np.argsort(people, kind="stable")
    return np.sort(by_person[np.linspace(0, len(people) - 1, limit).astype(int)])


def held_out(model: Model, gallery: Gallery) -> Faces:
    """Return the faces of a gallery that show enrolled people: all, or FACES of them."""
    if gallery.crop_shape != model.spec.crop_shape:
        found, expected = ("x".join(map(str, shape)) for shape in (gallery.crop_shape, model.spec.crop_shape))
        raise GalleryError(
            f"The faces of --data have {found} pixels, but the model needs {expected}.", "Crop them like the training photos."
        )
    index = {label: i for i, label in enumerate(model.labels)}
    known = np.array([label in index for label in gallery.labels])
    if not known.any():
        raise GalleryError("--data shows no person of the model.", "Use the same names as in training.")
    people = np.array([index[label] for label in gallery.labels[known]])
    some = evenly(people)
    return Faces(crops=gallery.images[np.flatnonzero(known)[some]], people=people[some])


def choose_iterations(
    model: Model,
    factors: AnyFactors,
    faces: Faces,
    iterations: int | None = None,
    report: Callable[[str], None] = lambda _: None,
) -> Choice:
    """Return the smallest number of iterations for which three conditions hold, or `iterations` if given.

    At least 99.5 % of the faces have the label of the converged coder, at least 99.5 % surely keep the label of the trainer's
    coder (Row.sure), and the accuracy differs by less than 0.1 points. If no number is good, all iterations of the trainer's
    coder are used, because W was learned with them.
    """
    X = np.ascontiguousarray(model.spec.vectors(faces.crops).T)
    report("converged coder")
    most = model.coding.iterations
    unrolled = factors.with_iterations(max(iterations or 1, most))
    size = _faces_at_once(len(model.labels) * unrolled.coding.iterations)
    chunks = [slice(start, start + size) for start in range(0, X.shape[1], size)]
    goal = np.concatenate([factors.converged_scores(X[:, chunk]).argmax(axis=0) for chunk in chunks])
    report("iterations")
    found = [_steps(unrolled.steps(X[:, chunk]), most, iterations or most) for chunk in chunks]
    labels, sure = (np.concatenate(parts, axis=1) for parts in zip(*found, strict=True))
    converged_accuracy = float(np.mean(goal == faces.people))
    rows: list[Row] = []
    for k, (of_step, surely) in enumerate(zip(labels, sure, strict=True), start=1):
        rows.append(Row(k, *(float(np.mean(check)) for check in (of_step == goal, surely, of_step == faces.people))))
    good = [
        row.agreement >= AGREEMENT and row.sure >= SURE and abs(row.accuracy - converged_accuracy) < ACCURACY_SHIFT
        for row in rows
    ]
    # All larger numbers must be good too: a single one may be chance.
    enough = next((i + 1 for i in range(len(rows)) if all(good[i:])), len(rows))
    chosen = factors.with_iterations(iterations or enough)
    return Choice(factors=chosen, rows=tuple(rows), converged_accuracy=converged_accuracy)


def _faces_at_once(scores_of_a_face: int) -> int:
    """Return for how many faces the scores of all iterations are computed together: with many people they need memory."""
    return max(32, SCORES_AT_ONCE // scores_of_a_face)


def _steps(steps: list[Array], trainers: int, shown: int) -> tuple[Array, Array]:
    """Return labels (shown, n) after 1, 2, 3... iterations, and whether Row.sure counts the face.

    `steps` are scores (C,n), `trainers` the number of iterations of the trainer's coder.
    """
    tiny = np.finfo(steps[0].dtype).tiny
    steps = [scores / np.maximum(np.linalg.norm(scores, axis=0), tiny) for scores in steps]
    last = steps[trainers - 1]
    second, first = np.partition(last, -2, axis=0)[-2:]
    moved = [np.abs(scores - last).max(axis=0) for scores in steps[:shown]]
    return np.array([scores.argmax(axis=0) for scores in steps[:shown]]), np.array([first - second > 2 * far for far in moved])


def microseconds(graph: bytes, coding: AnyCoding, crop: Array) -> float:
    """Return the median time of one face with one thread, as on the device."""
    session = load_session(graph, "the graph", prepack=coding.kind not in ITERATIVE_CODINGS)
    timer = Timer(lambda: session.run(None, {"crops": crop[None]}))
    once = timer.timeit(5) / 5  # warms up, too
    return float(np.median(timer.repeat(max(5, int(TIMING_SECONDS / once)), number=1)) * 1e6)


def accuracy(graph: bytes, faces: Faces) -> float:
    """Return the share of faces to which the graph gives the right label."""
    return float(np.mean(run_graph(graph, faces.crops)["label"] == faces.people))


def thresholds(
    graph: bytes, faces: Faces, calibration: StrangerCalibration | None = None, confidence_kind: str = RELATIVE
) -> tuple[Thresholds, dict[str, float]]:
    """Return the thresholds and the shares that pass them. None of `non_faces` passes. Provisional without `calibration`.

    residual: slightly above that of nearly all calibration faces. A measured confidence may allow a lower limit for fewer of
    them: among few people noise has a clear winner, and a wide limit would let noise raise the confidence too far. Experts
    have no limit: the dictionary of a network's vectors represents everything, and the confidence alone rejects noise.
    confidence: above that of every noise image that the residual lets through; if provisional, by one standard deviation, and
    above nearly all other noise images; if provisional and absolute, also at least PROVISIONAL_ABSOLUTE.
    """
    noise = non_faces(faces.crops.shape[1:])
    remember_non_faces(graph, noise)
    found, of_noise = run_graph(graph, faces.crops), run_graph(graph, noise)
    confidence, residual = found["confidence"], found["residual"]
    noise_confidence, noise_residual = of_noise["confidence"], of_noise["residual"]
    choices = []
    for share in EXPLAINED if calibration is not None and confidence_kind == RELATIVE else EXPLAINED[:1]:
        most = float(np.clip(_rounded(1.1 * np.quantile(residual, share)), *RESIDUALS))  # short vectors have almost none
        if confidence_kind == ABSOLUTE:
            most = ANY_RESIDUAL
        through = noise_residual <= most * (1 if share == EXPLAINED[0] else NEAR)
        loudest = float(noise_confidence[through].max(initial=0))
        if calibration is None:
            least = _rounded(min(max(loudest + noise_confidence.std(), np.quantile(noise_confidence, 0.99)), CEILING))
            if confidence_kind == ABSOLUTE:
                least = max(least, PROVISIONAL_ABSOLUTE)
        else:
            least = max(calibration.confidence, _rounded(loudest) + 1e-4)
        least = max(least, float(np.ceil(1e4 * min_confidence(confidence_kind, found["scores"].shape[1])) / 1e4))
        if np.any((noise_confidence >= least) & through):
            least = NO_MATCH  # this model cannot distinguish people from noise, so no face may pass
        choices.append((float(np.mean((confidence >= least) & (residual <= most))), most, least))
    passed, most, least = max(choices)  # among equals, the largest residual
    limits = Thresholds(confidence=least, residual=most, provisional=calibration is None)
    if calibration is not None:
        low, high = calibration.interval
        limits = replace(limits, fpir=calibration.stated_rate, fpir_low=low, fpir_high=high, strangers=calibration.trials)
    return limits, {
        "faces_passed": passed,
        "non_faces_passed": float(np.mean((noise_confidence >= least) & (noise_residual <= most))),
        "non_faces": len(noise_confidence),
    }


def non_faces(shape: tuple[int, ...], number: int = 100, seed: int = 0) -> Array:
    """Return (8 number, *shape) uint8 crops without a face: noise, fine and smooth, ramps, stripes, even ones.

    With three channels, every second crop has three of these as channels; the others are grey.
    """
    height, width, *channels = shape
    rng = np.random.default_rng(seed)
    grey = _grey_non_faces(height, width, number, rng)
    if not channels:
        return grey
    others = [grey, *(_grey_non_faces(height, width, number, rng) for _ in range(2))]
    crops = np.stack(others, axis=3)
    crops[::2] = crops[::2, ..., :1]
    return crops


def _grey_non_faces(height: int, width: int, number: int, rng: np.random.Generator) -> Array:
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


def _rounded(value: float) -> float:
    return round(float(value), 4)
