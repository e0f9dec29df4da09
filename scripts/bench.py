"""The benchmark: parts that each measure one thing, in one run, as ratios. Timings never decide a test."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for tests.oracle, which is no part of the installed packages

import bench_accuracy  # noqa: E402
import bench_backbone  # noqa: E402
import bench_edge  # noqa: E402
import bench_recognizer  # noqa: E402
import bench_scaling  # noqa: E402
import bench_solver  # noqa: E402
import bench_spoiled  # noqa: E402
import typer  # noqa: E402

from edge import console  # noqa: E402
from edge.errors import UsageError  # noqa: E402
from edge.files import write_atomically  # noqa: E402


class Part(NamedTuple):
    measure: Callable[[Path, Callable[[str], None]], dict[str, Any]]
    """Measures, given the data folder and a function to say what it is doing."""
    table: Callable[[dict[str, Any]], str]
    """The figures for people."""


PARTS = {
    "solver": Part(bench_solver.measure, bench_solver.table),
    "scaling": Part(bench_scaling.measure, bench_scaling.table),
    "recognizer": Part(bench_recognizer.measure, bench_recognizer.table),
    "backbone": Part(bench_backbone.measure, bench_backbone.table),
    "edge": Part(bench_edge.measure, bench_edge.table),
}
# Not measured unless asked for: they take minutes.
ACCURACY = {
    "peers": (bench_accuracy.measure, bench_accuracy.table),
    "spoiled": (bench_spoiled.measure, bench_spoiled.table),
}
DATA = Path(os.environ.get("LCLRR_DATA", ROOT.parent / "shared" / "data"))
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def bench(
    only: Annotated[str | None, typer.Option(help=f"Run one part: {', '.join((*PARTS, *ACCURACY))}.")] = None,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help=f"Run {' and '.join(ACCURACY)}: whom ours and others know.")
    ] = False,
    splits: Annotated[int, typer.Option(min=1, help=f"Random splits of {' and '.join(ACCURACY)}.")] = 3,
    output: Annotated[Path | None, typer.Option("--json", help="Also write one JSON object here.")] = None,
    data: Annotated[Path, typer.Option(help="Folder with yaleb_96x84.npz and ar_42x30.npz.")] = DATA,
) -> None:
    """Measure the parts of this project against their baselines."""
    counted = {name: Part(partial(measure, splits=splits), table) for name, (measure, table) in ACCURACY.items()}
    parts = counted if accuracy or only in counted else PARTS
    if only is not None and only not in parts:
        raise UsageError(f"There is no part {only}.", f"Choose from {', '.join(parts)}.")
    report = {}
    for name, part in parts.items():
        if only in (None, name):
            report[name] = part.measure(data, console.say)
            typer.echo(part.table(report[name]))
    if output is not None:
        write_atomically(output, (json.dumps(report, indent=2) + "\n").encode(), mode=0o644)


if __name__ == "__main__":
    console.run(app)
