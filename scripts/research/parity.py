"""The trainer's table through the exported graph: accuracy of trainer and kit in every cell, on the same test faces."""

from __future__ import annotations

from typing import Any

import numpy as np
import typer

from edge.cli import common as console
from export import graph
from export import measure as calibrate
from scripts.research.options import DATA, Data, Only, Output, Splits
from scripts.research.reproduce import Row, chosen_cells, measure_cells
from scripts.research.results import ResultsFile
from trainer.data.gallery import Gallery
from trainer.paper.experiments import Cell, tuned_parameters
from trainer.training import fit

GOAL = 0.1  # points
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(splits: Splits = 5, output: Output = None, data: Data = DATA, only: Only = "") -> None:
    """Train, choose iterations and export as `edge-export build` does, and compare on the test faces."""
    results = ResultsFile(output)
    cells = [(key, cell, row) for key, cell, row in chosen_cells(splits, only) if row.schedule == "fast"]

    def measure_splits(images: Any, labels: Any, cell: Cell, row: Row) -> list[dict[str, Any]]:
        return [measure(images, labels, cell, row, split) for split in range(splits)]

    for key in measure_cells(results, cells, data, measure_splits):
        console.say(line(key, results[key]))
    differences = {key: mean(runs, "kit") - mean(runs, "trainer") for key, runs in results.items() if only in key}
    outside = [key for key, difference in differences.items() if abs(difference) > GOAL]
    typer.echo("\n".join(line(key, results[key]) for key in differences))
    typer.echo(f"{len(differences) - len(outside)} of {len(differences)} cells within {GOAL} points.")


def measure(images: Any, labels: Any, cell: Cell, row: Row, split: int) -> dict[str, Any]:
    """One split, trained as in trainer.paper.experiments.reproduce."""
    train, test = cell.split(labels, np.random.default_rng([0, split]))
    names = np.array([f"{label:03d}" for label in labels])
    gallery = Gallery(images=images[train], labels=names[train], sources=tuple(map(str, train)))
    used = {"atoms_per_class": cell.atoms, **tuned_parameters(cell, row.features, parts=row.parts is not None)}
    parameters = {"coding": row.coding, "schedule": row.schedule, "parts": row.parts, "random_state": split, **used}
    model = fit(gallery, cell.spec(row.features), parameters)
    factors = graph.factors_of(model)
    choice = calibrate.choose_iterations(model, factors, calibrate.hardened(model))
    faces = calibrate.Faces(crops=images[test], people=np.searchsorted(model.labels, names[test]))
    return {
        "trainer": 100 * float(np.mean(model.scores(faces.crops).argmax(axis=1) == faces.people)),
        "kit": 100 * calibrate.accuracy(graph.build(choice.factors, model.spec), faces),
        "iterations": choice.coding.iterations,
        "of_its_own": choice.coding == model.coding,
        "agreement": choice.row.agreement,
    }


def mean(runs: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([run[name] for run in runs]))


def line(key: str, runs: list[dict[str, Any]]) -> str:
    trainer, kit = mean(runs, "trainer"), mean(runs, "kit")
    iterations = " ".join(f"{run['iterations']}{'*' if run['of_its_own'] else ''}" for run in runs)
    return f"{key}: trainer {trainer:.2f}, kit {kit:.2f}, {kit - trainer:+.2f}; iterations {iterations}"


if __name__ == "__main__":
    console.run(app)
