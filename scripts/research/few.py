"""Accuracy and misses with 1, 2, 3, 5 and 8 photos per person, with and without altered copies.

Accuracy: all people are enrolled with that many random photos and tested with all others (Extended Yale B, ORL); on AR, with
random neutral photos of the first session, tested with all others: another day, sunglasses, scarves. FNIR: the share of photos
of enrolled people that are missed at a threshold that 1 % of the photos of strangers pass; 30 % of the people are strangers.

--come-and-go measures `trainer enrol` and `trainer forget` on AR with sunglasses: ten people enrolled one by one, and one
forgotten, compared with training from scratch, in accuracy and processor time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import cv2
import numpy as np
import typer

from edge.cli import common as console
from edge.vision.confidence import score_confidence
from edge.vision.detect import YuNetDetector, photo_min_face
from edge.vision.preprocess import SIZE, FeatureSpec, align
from scripts.research import orl
from scripts.research.options import DATA, Data, Output, Splits
from scripts.research.results import ResultsFile
from trainer import training as models
from trainer import update as enrol
from trainer.data import detector
from trainer.data.augment import COPIES
from trainer.data.gallery import Gallery
from trainer.method.estimator import LCLRRDL
from trainer.own_features import without_misleading_pixels
from trainer.paper.experiments import Cell, load_arrays
from trainer.presets import PRESETS
from trainer.thresholds import FPIR
from trainer.types import Array

PHOTOS = (1, 2, 3, 5, 8)
STRANGERS = 0.3
NEUTRAL = 7  # the first photos of each person in AR
SUITED = "by light"  # both or gradient, as `trainer fit` chooses (trainer.own_features)


class Faces(NamedTuple):
    images: Array
    labels: Array
    spec: Callable[[str], FeatureSpec]
    drawn_from: int | None
    """Training photos are drawn from the first `drawn_from` photos of a person."""


class Row(NamedTuple):
    data: str
    features: str
    copies: int


NAMES = {"yaleb-2": "Yale B 1/2", "yaleb-4": "Yale B 1/4", "ar": "AR, neutral only", "orl": "ORL"}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    splits: Splits = 5,
    only: Annotated[str | None, typer.Option(help=f"One of {', '.join(NAMES)}.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also measure each kind of features.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="One split, 1 and 3 photos.")] = False,
    people: Annotated[bool, typer.Option("--come-and-go", help="Measure enrolling and forgetting instead.")] = False,
    output: Output = None,
    data: Data = DATA,
) -> None:
    """Measure and print the table."""
    if people:
        for k in range(1 if quick else splits):
            typer.echo(json.dumps(come_and_go(data, k)))
        return
    results = ResultsFile(output)
    splits, numbers = (1, (1, 3)) if quick else (splits, PHOTOS)
    kinds = ("both", "gradient", SUITED) if every else (SUITED,)
    sets = [name for name in NAMES if only in (None, name)]
    rows = [Row(name, features, copies) for name in sets for features in kinds for copies in (0, COPIES)]
    for row in rows:
        for photos in numbers:
            key = key_of(row, photos, splits)
            if key in results or (row.data == "ar" and photos > NEUTRAL):
                continue
            results.save(key, measure(faces(row.data, data), row, photos, splits))
            console.say(f"{key}: {results[key]}")
    typer.echo(table(results, rows, numbers, splits))


@cache
def faces(name: str, data: Path) -> Faces:
    if name == "orl":
        images, labels = orl_crops()
        return Faces(images, labels, lambda kind: FeatureSpec.for_crop(*SIZE, kind), None)
    cell = Cell(dataset="ar") if name == "ar" else Cell(dataset="yaleb", rate=int(name[-1]))
    file = "ar_42x30.npz" if name == "ar" else "yaleb_96x84.npz"
    return Faces(*load_arrays(data / file, cell), cell.spec, NEUTRAL if name == "ar" else None)


def orl_crops() -> tuple[Array, Array]:
    """The ORL faces, found and aligned."""
    finder = YuNetDetector(detector.yunet(console.say))
    crops, labels = [], []
    for person, photos in enumerate(orl.people().values()):
        for photo in photos:
            colour: Array = cv2.cvtColor(photo, cv2.COLOR_GRAY2BGR)
            crops.append(align(photo, finder.detect(colour, photo_min_face(colour))[0].landmarks, SIZE))
            labels.append(person)
    return np.array(crops), np.array(labels)


def measure(found: Faces, row: Row, photos: int, splits: int, seed: int = 0) -> dict[str, float]:
    """Accuracy and FNIR in percent, with deviations over the splits."""
    accuracy, missed = [], []
    for k in range(splits):
        rng = np.random.default_rng([seed, k])
        train = draw(found, photos, rng)
        test = np.setdiff1d(np.arange(len(found.labels)), train)
        estimator = fitted(found, row, train, k)
        accuracy.append(100 * estimator.score(found.images[test], found.labels[test]))

        people = rng.permutation(np.unique(found.labels))
        strange = np.isin(found.labels, people[: round(STRANGERS * len(people))])
        estimator = fitted(found, row, train[~strange[train]], k)
        own = test[~strange[test]]
        scores = estimator.decision_function(found.images[own])
        right = estimator.classes_[scores.argmax(axis=1)] == found.labels[own]
        missed.append(fnir(scores, right, estimator.decision_function(found.images[strange])))
    freedom = int(splits > 1)
    return {
        "accuracy": round(float(np.mean(accuracy)), 2),
        "accuracy_std": round(float(np.std(accuracy, ddof=freedom)), 2),
        "fnir": round(float(np.mean(missed)), 2),
        "fnir_std": round(float(np.std(missed, ddof=freedom)), 2),
    }


def fnir(scores: Array, right: Array, strangers: Array) -> float:
    """Percent of the photos with scores (N, C) that do not get their label at the threshold that 1 % of strangers pass."""
    least = np.quantile(score_confidence(strangers), 1 - FPIR)
    return float(100 * (1 - np.mean(right & (score_confidence(scores) > least))))


def draw(found: Faces, photos: int, rng: np.random.Generator) -> Array:
    """`photos` random photos of each person."""
    chosen = []
    for person in np.unique(found.labels):
        own = np.flatnonzero(found.labels == person)
        chosen.append(rng.permutation(own[: found.drawn_from])[:photos])
    return np.concatenate(chosen)


def fitted(found: Faces, row: Row, train: Array, seed: int) -> LCLRRDL:
    images, labels = found.images[train], found.labels[train]
    spec = (
        without_misleading_pixels(images, labels, found.spec("both")) if row.features == SUITED else found.spec(row.features)
    )
    parameters = PRESETS["tiny"] | {"features": spec, "copies": row.copies, "random_state": seed}
    return LCLRRDL(**parameters).fit(images, labels)


def come_and_go(data: Path, k: int) -> dict[str, float]:
    """Accuracy and, with 30 % of the people as strangers, FNIR, both in percent; and processor time as a share of a training
    from scratch, with and without calibration."""
    cell = Cell(dataset="ar")
    images, labels = load_arrays(data / "ar_42x30.npz", cell)
    # Separate splits: the way to enrol and forget was chosen on other splits.
    train, test = cell.split(labels, np.random.default_rng([3, k]))
    names = np.array([f"person {label}" for label in labels])
    people = np.random.default_rng([1, k]).permutation(np.unique(names))
    comers, strange = people[:10], np.isin(names, people[-round(STRANGERS * len(people)) :])
    parameters = {name: value for name, value in PRESETS["tiny"].items() if name != "features"} | {"random_state": k}

    def of(chosen: Array) -> Gallery:
        return Gallery(images=images[chosen], labels=names[chosen], sources=tuple(map(str, chosen)))

    def fit(chosen: Array, fpir: float | None = None) -> models.Model:
        return models.fit(of(chosen), cell.spec("both"), parameters, fpir=fpir)

    def timed(act: Callable[[], models.Model]) -> tuple[models.Model, float]:
        start = time.process_time()  # processor time, because the machine may be busy
        return act(), time.process_time() - start

    def four(train: Array) -> tuple[dict[str, models.Model], dict[str, float]]:
        """Models from scratch, with ten enrolled, from scratch without one, with that one forgotten; and the times."""
        scratch, seconds = timed(lambda: fit(train))
        grown = fit(train[~np.isin(names[train], comers)])
        for comer in comers:
            grown, enrolling = timed(lambda comer=comer, grown=grown: enrol.enrol(grown, of(train[names[train] == comer])))  # type: ignore[misc]
        left, forgetting = timed(lambda: enrol.forget(scratch, comers[0]))
        without = fit(train[names[train] != comers[0]])
        found = {"scratch": scratch, "enrolled": grown, "scratch_without_one": without, "forgotten": left}
        return found, {"fit": seconds, "enrol": enrolling, "forget": forgetting}

    def scored(model: models.Model, test: Array) -> tuple[Array, Array]:
        seen = test[np.isin(names[test], model.labels)]
        scores = model.scores(images[seen])
        return scores, np.array(model.labels)[scores.argmax(axis=1)] == names[seen]

    found, seconds = four(train)
    accuracy = {name: 100 * np.mean(scored(model, test)[1]) for name, model in found.items()}
    at_a_door, _ = four(train[~strange[train]])
    missed = {f"{name}_fnir": fnir(*scored(model, test), model.scores(images[strange])) for name, model in at_a_door.items()}
    with_threshold = timed(lambda: fit(train, FPIR))[1]
    shares = {f"{name}_seconds_of_fit": seconds[name] / with_threshold for name in ("enrol", "forget")}
    bare = {f"{name}_seconds_of_fit_no_calibrate": seconds[name] / seconds["fit"] for name in ("enrol", "forget")}
    return {name: round(float(value), 2) for name, value in (accuracy | missed | shares | bare).items()}


def key_of(row: Row, photos: int, splits: int) -> str:
    """Slopes are computed at full size at every rate of the pixels, so one measurement serves both rates."""
    data = "yaleb-2" if row.data == "yaleb-4" and row.features == "gradient" else row.data
    return "/".join(map(str, (*row._replace(data=data), photos, splits)))


def table(results: dict[str, Any], rows: list[Row], numbers: tuple[int, ...], splits: int) -> str:
    head = " | ".join(f"{n} photo{'s' if n > 1 else ''}" for n in numbers)
    lines = [f"| accuracy % / FNIR % | features | | {head} |", "|---" * (3 + len(numbers)) + "|"]
    for row in rows:
        cells = [results.get(key_of(row, n, splits)) for n in numbers]
        values = " | ".join("" if cell is None else f"{cell['accuracy']:.1f} / {cell['fnir']:.0f}" for cell in cells)
        lines.append(f"| {NAMES[row.data]} | `{row.features}` | {'`--augment`' if row.copies else ''} | {values} |")
    return "\n".join(lines)


if __name__ == "__main__":
    console.run(app)
