"""Does the threshold hold that `trainer fit` sets? The default preset, on strangers that it has not seen.

`photos` measures a draw from a folder per person (photo_draw.py); `laboratory` measures AR (mixed) and ORL (accuracy.py);
`crowd` measures more people than LFW has: vectors of real people and of morphs (scripts/qa/morphs.py), mixed at random. Each
person has five photos: four to train with, one to test. Morphs are not real people: only the stated and the measured FPIR say
something.
What is printed, in percent, except for the threshold:
- stated: the rate of strangers' photos that the model states, and its 95 % interval, from people who were left out.
- FPIR: the unseen strangers' photos that get a name at the threshold, and the 95 % interval as if photos were independent.
- FNIR: test photos, bare and occluded, that are missed at the threshold; exact: at the threshold that the target share of the
  unseen strangers exceeds.
- FPIR holds: `yes` if the FPIR is in the stated interval, `overlap` if only its interval reaches into it, otherwise `low` (too
  strict) or `high`.
- FNIR holds: `yes` if FNIR exceeds the exact one by at most one point.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from edge.cli import common as console
from edge.errors import UsageError
from scripts.qa import bench_scale
from scripts.qa.morphs import PHOTOS
from scripts.research import accuracy, wild
from scripts.research.options import DATA, Data, OccludedPrefix, People, Photographs, Photos, Seed, Splits, Strangers
from scripts.research.photo_draw import draw
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec
from trainer.presets import DEFAULT, PRESETS
from trainer.shards import fit as sharded
from trainer.shards.samples import Samples
from trainer.shards.training import Training
from trainer.thresholds import FPIR, StrangerCalibration, interval
from trainer.training import ONE_SHARD

TASKS = (("AR mixed", 0.3), ("AR mixed", 0.7), ("ORL", 0.7), ("ORL", 0.75))  # and the share of the people to enrol
MOST_LOST = 1.0  # points of FNIR
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def verdict(calibration: StrangerCalibration | None, tests: wild.Trials, strangers: NDArray[Any]) -> dict[str, str]:
    """Return the cells of a table; `strangers` are the confidences of the unseen strangers' photos."""
    if calibration is None:
        raise UsageError("The threshold was not measured.", "Enrol more people.")
    passed = int(np.sum(strangers >= calibration.confidence))
    low, high = calibration.interval
    fpir, (own_low, own_high) = passed / len(strangers), interval(passed, len(strangers))
    missed = 100 * np.mean(~(tests.right & (tests.confidence >= calibration.confidence)))
    exact = 100 * np.mean(~(tests.right & (tests.confidence > wild.bound(strangers, calibration.target))))
    outside = "low" if fpir < low else "high"
    return {
        "threshold": f"{calibration.confidence:.4f}",
        "stated": f"{100 * calibration.stated_rate:.2f} ({100 * low:.2f} to {100 * high:.2f})",
        "FPIR": f"{100 * fpir:.2f} ({100 * own_low:.2f} to {100 * own_high:.2f})",
        "FNIR": f"{missed:.2f}",
        "exact": f"{exact:.2f}",
        "difference": f"{missed - exact:+.2f}",
        "FPIR holds": "yes" if low <= fpir <= high else "overlap" if own_low <= high and low <= own_high else outside,
        "FNIR holds": "yes" if missed - exact <= MOST_LOST else "no",
    }


def table(rows: dict[str, dict[str, str]]) -> str:
    titles = next(iter(rows.values()))
    lines = [["", *titles], ["---"] * (len(titles) + 1), *([name, *cells.values()] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@app.command()
def photos(
    data: Photographs,
    people: People,
    photos: Photos,
    strangers: Strangers,
    seed: Seed = 0,
    occluded_prefix: OccludedPrefix = None,
) -> None:
    """Measure a draw from a folder of photographs."""
    drawn = draw(data, people=people, photos=photos, strangers=strangers, seed=seed, prefix=occluded_prefix, say=console.say)
    console.say(drawn.summary())
    with tempfile.TemporaryDirectory(prefix="lclrr-calibration-") as folder:
        presets = wild.Presets(drawn, Path(folder), console.say)
        model, _ = presets.trained(DEFAULT)
        answers = presets.answers(DEFAULT)
    tests, unseen = (
        wild.Trials.of([(row,) for row in rows], drawn.people, answers) for rows in (drawn.tests, drawn.strangers)
    )
    name = f"{data.name}, {len(model.labels)} x {photos}, seed {seed}"
    typer.echo(table({name: verdict(model.calibration, tests, unseen.confidence)}))


@app.command()
def laboratory(splits: Splits = 1, data: Data = DATA) -> None:
    """Measure AR with sunglasses and scarves, and ORL."""
    sets, labels = accuracy.faces(data, console.say)
    rows = {}
    for wanted, share in TASKS:
        for task in (task for task in accuracy.tasks_of(labels, splits, share) if task.name == wanted):
            model = accuracy.trained(sets[task.faces], task, PRESETS[DEFAULT], console.say, FPIR)
            answers, known = accuracy.answers_of(model, sets[task.faces].aligned[task.test]), task.people >= 0
            tests = wild.Trials(right=(answers.labels == task.people)[known], confidence=answers.scores[known])
            name = f"{task.name}, {len(model.labels)}, split {task.split}"
            rows[name] = verdict(model.calibration, tests, answers.scores[~known])
            console.say(f"{name}: {rows[name]}")
    typer.echo(table(rows))


@app.command()
def crowd(
    people: Annotated[int, typer.Option(min=ONE_SHARD + 1, help="People to enrol.")] = 1000,
    strangers: Annotated[int, typer.Option(min=1, help="Strangers.")] = 1000,
    splits: Splits = 1,
    data: Data = DATA,
) -> None:
    """Measure many people, with the vectors of the network alone."""
    spec, rows = bench_scale.spec_of(DEFAULT), {}
    with tempfile.TemporaryDirectory(prefix="lclrr-crowd-") as folder:
        bench_scale.prepare(DEFAULT, data / bench_scale.ARCHIVE, Path(folder), people + strangers, console.say)
        crops, vectors = (np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in ("crops", "embeddings"))
        for split in range(splits):
            order = np.random.default_rng(split).permutation(people + strangers)
            name = f"{people} people x {PHOTOS - 1}, split {split}"
            rows[name] = _crowd_verdict(crops, vectors, spec, np.sort(order[:people]), np.sort(order[people:]))
            console.say(f"{name}: {rows[name]}")
    typer.echo(table(rows))


def _crowd_verdict(
    crops: NDArray[Any], vectors: NDArray[Any], spec: Spec, known: NDArray[Any], unknown: NDArray[Any]
) -> dict[str, str]:
    """Train the known people with all photos but the last. Return the cells of the table."""
    photos = np.arange(len(crops)).reshape(-1, PHOTOS)
    used = photos[known, :-1].ravel()
    labels = np.array([f"{person:06d}" for person in known]).repeat(PHOTOS - 1)
    gallery = Gallery(images=crops[used], labels=labels, sources=tuple(map(str, used)), alignment=spec.alignment)
    parameters = {name: value for name, value in PRESETS[DEFAULT].items() if name != "features"}
    model = sharded.fit(gallery, spec, parameters, fpir=FPIR, embeddings=vectors[used])

    def confidences(rows: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        samples = Samples(crops=crops[rows], people=np.zeros(len(rows), np.int32), embeddings=vectors[rows])
        return Training.of(samples, spec, parameters).confidences(model.blocks, model.templates)

    confidence, best = confidences(photos[known, -1])
    tests = wild.Trials(right=best == np.arange(len(known)), confidence=confidence)
    return verdict(model.calibration, tests, confidences(photos[unknown].ravel())[0])


if __name__ == "__main__":
    console.run(app)
