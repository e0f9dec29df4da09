"""Separation of strangers and enrolled people: FNIR at FPIR 1 %, for single photos and for three together.

AR mixed: 70 people enrolled with their training images of that experiment, 30 strangers with all their images. ORL: 28
enrolled with five photos, 12 strangers, faces found and aligned. A photo below the threshold or with a wrong label
is missed. --scores compares other numbers with the confidence instead (stranger_scores.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from edge.cli import common as console
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import FeatureSpec
from scripts.research import orl, stranger_scores
from scripts.research.options import DATA, Data, Seed, Splits
from trainer.data import gallery
from trainer.method.estimator import LCLRRDL
from trainer.paper.experiments import FILES, Cell, load_arrays
from trainer.presets import PRESETS
from trainer.thresholds import stranger_confidences, threshold

FPIR, TRIPLES = 0.01, 30
METHODS: dict[str, dict[str, Any]] = {
    "whole face, l1": PRESETS["minimal"] | {"coding": "l1"},
    "whole face, l21 (`minimal`)": PRESETS["minimal"],
    "parts 3x2": PRESETS["tiny"] | {"parts": (3, 2)},
    "parts 4x2 (`tiny`)": PRESETS["tiny"],
}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Case(NamedTuple):
    """One split."""

    images: Any
    labels: Any
    spec: FeatureSpec
    train: Any
    test: Any
    strangers: Any
    clean: Any
    """For each image, whether the face is uncovered."""


def ar(folder: Path, split: int, seed: int) -> Case:
    cell = Cell(dataset="ar", scenario="mixed")
    images, labels = load_arrays(folder / FILES["ar"], cell)
    rng = np.random.default_rng([seed, split])
    enrolled = rng.permutation(np.unique(labels))[:70]
    known = np.isin(labels, enrolled)
    train, test = (rows[known[rows]] for rows in cell.split(labels, np.random.default_rng([seed, split])))
    number = np.concatenate([np.arange(n) for n in np.unique(labels, return_counts=True)[1]])
    return Case(images, labels, cell.spec("both"), train, test, np.flatnonzero(~known), number % 13 < 7)


def orl_case(faces: gallery.Gallery, split: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, split])
    enrolled = rng.permutation(faces.people)[:28]
    mixed = [rng.permutation(np.flatnonzero(faces.labels == person)) for person in enrolled]
    train, test = np.concatenate([own[:5] for own in mixed]), np.concatenate([own[5:] for own in mixed])
    strangers = np.flatnonzero(~np.isin(faces.labels, enrolled))
    spec = FeatureSpec.for_crop(*faces.images.shape[1:])
    return Case(faces.images, faces.labels, spec, train, test, strangers, np.ones(len(faces.labels), bool))


def measure(case: Case, parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Percent."""
    settings = {name: value for name, value in parameters.items() if name not in ("features", "copies")}
    model = LCLRRDL(features=case.spec, **settings).fit(case.images[case.train], case.labels[case.train])
    scores, strange = (model.decision_function(case.images[rows]) for rows in (case.test, case.strangers))
    right = model.classes_[scores.argmax(axis=1)] == case.labels[case.test]
    accepted = score_confidence(scores) > np.quantile(score_confidence(strange), 1 - FPIR)
    hit, clean = right & accepted, case.clean[case.test]
    rng = np.random.default_rng(seed)
    threes, who = triples(scores, case.labels[case.test], rng)
    others, _ = triples(strange, case.labels[case.strangers], rng)
    hit_three = (model.classes_[threes.argmax(axis=1)] == who) & (
        score_confidence(threes) > np.quantile(score_confidence(others), 1 - FPIR)
    )
    known = gallery.Gallery(
        images=case.images[case.train], labels=case.labels[case.train].astype(str), sources=tuple(map(str, case.train))
    )
    least = threshold(stranger_confidences(known, case.spec, settings), FPIR).confidence
    shares = {
        "rank-1": right.mean(),
        "FNIR clean": 1 - hit[clean].mean(),
        "FNIR occluded": 1 - hit[~clean].mean() if (~clean).any() else np.nan,
        "FNIR, three photos": 1 - hit_three.mean(),
        "calibrated: FPIR": np.mean(score_confidence(strange) >= least),
        "FNIR": 1 - np.mean(right & (score_confidence(scores) >= least)),
    }
    return {name: 100 * float(share) for name, share in shares.items()}


def triples(scores: Any, labels: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """The scores of three photos of a person, summed as in a visit, and the label."""
    unit = scores / np.linalg.norm(scores, axis=1, keepdims=True)
    unit *= np.maximum(unit.max(axis=1, keepdims=True), 0)
    people = np.repeat(np.unique(labels), TRIPLES)
    chosen = [rng.choice(np.flatnonzero(labels == person), 3, replace=False) for person in people]
    return unit[np.array(chosen)].sum(axis=1), people


@app.command()
def main(
    splits: Splits = 5,
    seed: Seed = 0,
    data: Data = DATA,
    others: Annotated[bool, typer.Option("--scores", help="Compare numbers that could separate strangers.")] = False,
) -> None:
    """Measure all methods and print two tables."""
    if others:
        typer.echo(stranger_scores.table([ar(data, split, seed) for split in range(splits)]))
        return
    faces = gallery.load_gallery(orl.folder(), cropped=False)
    own = np.array([source.endswith(".pgm") for source in faces.sources])  # one folder has another file
    faces = replace(faces, images=faces.images[own], labels=faces.labels[own], sources=tuple(np.array(faces.sources)[own]))
    for name, cases in (
        ("AR mixed, 70 enrolled, 30 strangers", [ar(data, split, seed) for split in range(splits)]),
        ("ORL, 28 enrolled with 5 photos, 12 strangers", [orl_case(faces, split, seed) for split in range(splits)]),
    ):
        lines: list[str] = []
        for method, parameters in METHODS.items():
            runs = [measure(case, parameters, seed) for case in cases]
            columns = {key: np.array([run[key] for run in runs]) for key in runs[0] if not np.isnan(runs[0][key])}
            if not lines:
                lines = [f"| {name} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
            cells = (f"{values.mean():.1f} ± {values.std():.1f}" for values in columns.values())
            lines.append(f"| {method} | {' | '.join(cells)} |")
            console.say(lines[-1])
        typer.echo("\n".join(lines) + "\n")


if __name__ == "__main__":
    console.run(app)
