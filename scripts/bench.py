"""Benchmarks: each part measures one thing, in one run, as ratios. No test depends on a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edge.cli import common as console
from edge.errors import UsageError
from scripts.qa import bench_edge, bench_recognizer, bench_scaling, bench_solver
from scripts.research import accuracy as bench_accuracy
from scripts.research import spoiled as bench_spoiled
from scripts.research.options import DATA, Data
from scripts.research.results import ResultsFile


class Part(NamedTuple):
    measure: Callable[[Path, Callable[[str], None]], dict[str, Any]]
    """Measure, given the data folder and a function that reports progress."""
    table: Callable[[dict[str, Any]], str]
    """Format the figures as a table."""


PARTS = {
    "solver": Part(bench_solver.measure, bench_solver.table),
    "scaling": Part(bench_scaling.measure, bench_scaling.table),
    "recognizer": Part(bench_recognizer.measure, bench_recognizer.table),
    "edge": Part(bench_edge.measure, bench_edge.table),
}
# Only on request, because they take an hour. Each cell is saved when it is measured.
ACCURACY = {"peers": bench_accuracy, "spoiled": bench_spoiled}
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    only: Annotated[str | None, typer.Option(help=f"Run one part: {', '.join((*PARTS, *ACCURACY))}.")] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help=f"Run {' and '.join(ACCURACY)}: accuracy of ours and of other recognisers.")
    ] = False,
    splits: Annotated[int, typer.Option(min=1, help=f"Random splits of {' and '.join(ACCURACY)}.")] = 1,
    cells: Annotated[str, typer.Option(help="Measure only cells with this in their name: ORL, dlib.")] = "",
    output: Annotated[
        Path | None, typer.Option("--json", help=f"Save results here; {' and '.join(ACCURACY)} continue from it.")
    ] = None,
    data: Data = DATA,
) -> None:
    """Measure the parts of this project against their baselines."""
    chosen = [only] if only is not None else list(ACCURACY if accuracy else PARTS)
    results = ResultsFile(output)
    for name in chosen:
        if name in ACCURACY:
            found = ACCURACY[name].measure(data, console.say, results, splits=splits, cells=cells)
            typer.echo(ACCURACY[name].table(found))
        elif name in PARTS:
            results.save(name, PARTS[name].measure(data, console.say))
            typer.echo(PARTS[name].table(results[name]))
        else:
            raise UsageError(f"There is no part {name}.", f"Choose from {', '.join((*PARTS, *ACCURACY))}.")


if __name__ == "__main__":
    console.run(app)
