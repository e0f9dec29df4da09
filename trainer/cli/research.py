"""`trainer reproduce` and `trainer tables`: measure one cell of the paper's tables, or all of them."""

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from edge.cli import common as console
from edge.errors import TrainingError
from edge.vision.preprocess import Kind as FeatureKind
from trainer.baselines.registry import method_of, with_printed
from trainer.cli.options import MethodName, Seed, check_writable
from trainer.paper import experiments, tuned, typeset
from trainer.paper import tables as paper_tables
from trainer.paper.experiments import Cell, load_arrays, load_data

Scenario = Literal["sunglasses", "scarf", "mixed"]


def reproduce(
    dataset: Annotated[Literal["yaleb", "ar"], typer.Option(help="Extended Yale B or AR.")],
    data: Annotated[Path, typer.Option(help="The data set as .npz: images and labels (docs/research/reproduce.md).")],
    method: MethodName = "lclrrdl",
    per_class: Annotated[int, typer.Option(min=1, help="Yale B: training images per person.")] = 8,
    rate: Annotated[int, typer.Option(help="Yale B: 2, 4 or 8 for 1/2, 1/4, 1/8.")] = 4,
    scenario: Annotated[Scenario, typer.Option(help="AR: the occlusion.")] = "sunglasses",
    features: Annotated[FeatureKind, typer.Option(help="The paper uses pixels.")] = "pixels",
    atoms: Annotated[int | None, typer.Option(min=1, help="Atoms per person. Default: as in the paper, 5 or 20.")] = None,
    splits: Annotated[int, typer.Option(min=1, help="Random splits to average over.")] = 5,
    seed: Seed = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure one cell of the paper's tables."""
    title = method_of(method).title
    cell = Cell(dataset=dataset, per_class=per_class, rate=rate, scenario=scenario, atoms_per_class=atoms)
    images, labels = load_arrays(data, cell)
    how: dict[str, Any] = {"method": method, "features": features, "splits": splits, "seed": seed}
    with console.progress(cell.name) as line:
        result = experiments.reproduce(images, labels, cell, **how, progress=line.count)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        typer.echo(
            f"{title}, {cell.name}, {features}: {result['accuracy_mean']:.1f} % "
            f"(deviation {result['accuracy_std']:.1f} over {splits} splits), training {result['train_seconds_mean']:.1f} s"
        )


def tables(
    data: Annotated[Path, typer.Option(help="Folder with the data sets (docs/research/reproduce.md).")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write (results), or with --tune a file (tuned.toml).")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One split of the smallest cell, as a check.")] = False,
    splits: Annotated[int | None, typer.Option(min=1, help="Random splits to average over (10).")] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Only these methods; module:Class for one of your own.")
    ] = None,
    cells: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Only cells that begin so: yaleb-8, ar; FILE:N for a data set of your own, N images of each person to train; "
            "with @A for A atoms per person.",
        ),
    ] = None,
    parameters: Annotated[Path, typer.Option(help="TOML file that --tune wrote.", show_default=False)] = experiments.TUNED,
    tune_first: Annotated[
        bool, typer.Option("--tune", help="Choose parameters on training images and write them; no test.")
    ] = False,
    folds: Annotated[int, typer.Option(min=2, help="Folds of --tune.")] = 3,
    lend: Annotated[
        bool, typer.Option(help="With --tune: tune at 1/8 and with sunglasses only, and use that for the other cells.")
    ] = True,
    as_printed: Annotated[
        bool,
        typer.Option("--as-printed", help="Add a row for each method in the form of its own paper; tune it with --tune."),
    ] = False,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores.")] = -1,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Use a Dask cluster instead, as tcp://HOST:8786.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Measure Tables 1, 2 and 3 of the paper. A run that was stopped continues where it was."""
    columns = paper_tables.select_cells(cells or (paper_tables.QUICK_CELL if quick else None), data)
    which: dict[str, Any] = {"methods": paper_tables.select_methods(methods), "cells": columns, "seed": seed}
    where: dict[str, Any] = {"jobs": jobs, "scheduler": scheduler}
    found = load_data(data, columns)
    if tune_first:
        output = output or Path("tuned.toml")
        check_writable(output)
        with console.progress("Tuning") as line:
            if as_printed:
                which["methods"] = with_printed(which["methods"])
            failures = tuned.tune_all(found, output, **which, folds=folds, lend=lend, progress=_show(line), **where)
        console.say(f"Saved {output}.")
    else:
        output = output or Path("results")
        how: dict[str, Any] = {"splits": splits or (1 if quick else 10), "parameters": parameters, "as_printed": as_printed}
        planned = paper_tables.plan(found, **which, **how)
        with paper_tables.Runs(output) as runs:
            with console.progress("Measuring") as line:
                failures = paper_tables.run(planned, found, runs, progress=_show(line), **where)
            command = shlex.join(["trainer", *sys.argv[1:]])
            page = typeset.write(paper_tables.collect(planned, runs.done), output, command)
        typer.echo(page, nl=False)
        console.say(f"Saved tables.md, .csv and .tex in {output}.")
    if failures:
        raise TrainingError("\n".join([f"{len(failures)} failed:", *failures]), "The other results are saved.")


def _show(line: console.Progress) -> Callable[[str, int, int], None]:
    def show(text: str, done: int, total: int) -> None:
        line(f"{done} of {total}, {text}")
        if not line.shown and 10 * done // total > 10 * (done - 1) // total:
            console.say(f"{line.task}: {done} of {total}, {text}")  # at most ten lines in a log

    return show
