"""Benchmarks: each part measures one thing, in one run, as ratios. No test depends on a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from edge.cli import common as console
from edge.errors import UsageError
from scripts.qa import bench_edge, bench_recognizer, bench_scale, bench_solver
from scripts.research import accuracy as bench_accuracy
from scripts.research import spoiled as bench_spoiled
from scripts.research.options import DATA, Data
from scripts.research.results import ResultsFile


class Part(NamedTuple):
    measure: Callable[..., dict[str, Any]]
    """Measure, given the data folder and a function that reports progress; `scale` takes `people`, too."""
    table: Callable[[dict[str, Any]], str]
    """Format the figures as a table."""


PARTS = {
    "solver": Part(bench_solver.measure, bench_solver.table),
    "scale": Part(bench_scale.measure, bench_scale.table),
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
    people: Annotated[str, typer.Option(metavar="N,N", help="Numbers of people of the part scale.")] = ",".join(
        map(str, bench_scale.PEOPLE)
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Save results here; {' and '.join(ACCURACY)} continue from it.")
    ] = None,
    data: Data = DATA,
) -> None:
    """Measure the parts of this project against their baselines."""
    chosen = [only] if only is not None else list(ACCURACY if accuracy else PARTS)
    numbers = numbers_of(people)
    results, found = ResultsFile(save), {}
    for name in chosen:
        if name in ACCURACY:
            found[name] = ACCURACY[name].measure(data, console.say, results, splits=splits, cells=cells)
            table = ACCURACY[name].table
        elif name in PARTS:
            options = {"people": numbers} if name == "scale" else {}
            found[name] = PARTS[name].measure(data, console.say, **options)
            results.save(name, found[name])
            table = PARTS[name].table
        else:
            raise UsageError(f"There is no part {name}.", f"Choose from {', '.join((*PARTS, *ACCURACY))}.")
        if not as_json:
            typer.echo(table(found[name]))
    if as_json:
        typer.echo(json.dumps(found))


def numbers_of(people: str) -> tuple[int, ...]:
    """Return the numbers of --people."""
    try:
        numbers = tuple(map(int, people.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 2:
        raise UsageError(f"--people {people} is not a list of numbers from 2 on.", "Write, for example, --people 100,1000.")
    return numbers


if __name__ == "__main__":
    console.run(app)
