"""Every cell of the paper's Tables 1 and 2 for our method, as `trainer reproduce` measures them, in one table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import typer

from edge.cli import common as console
from scripts.research.options import DATA, Data, Only, Output, Splits
from scripts.research.results import ResultsFile
from trainer.paper.experiments import CELLS, FILES, Cell, load_arrays, reproduce
from trainer.paper.typeset import PUBLISHED
from trainer.types import Array


class Row(NamedTuple):
    features: str
    coding: str
    schedule: str
    parts: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        parts = f"/{self.parts[0]}x{self.parts[1]}" if self.parts else ""
        return f"{self.features}/{self.coding}/{self.schedule}{parts}"


ROWS = [
    Row("pixels", "l1", "fast"),
    Row("gradient", "l1", "fast"),
    Row("both", "l1", "fast"),
    Row("both", "l21", "fast"),
    Row("both", "l21", "fast", (4, 2)),
    Row("pixels", "l1", "paper"),
]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(splits: Splits = 5, output: Output = None, data: Data = DATA, only: Only = "") -> None:
    """Measure all cells and print the table."""
    results = ResultsFile(output)

    def measure(images: Array, labels: Array, cell: Cell, row: Row) -> Any:
        return reproduce(images, labels, cell, splits=splits, **row._asdict())

    for key in measure_cells(results, chosen_cells(splits, only), data, measure):
        console.say(f"{key}: {results[key]['accuracy_mean']:.2f} ({results[key]['train_seconds_mean']:.1f} s)")
    typer.echo(table(results, splits))


def measure_cells(
    results: ResultsFile, cells: Iterable[tuple[str, Cell, Row]], data: Path, measure: Callable[[Array, Array, Cell, Row], Any]
) -> Iterator[str]:
    """Measure and save the cells that are not in the results. Yield the keys of all cells."""
    for key, cell, row in cells:
        if key not in results:
            images, labels = load_arrays(data / FILES[cell.dataset], cell)
            results.save(key, measure(images, labels, cell, row))
        yield key


def chosen_cells(splits: int, only: str) -> Iterator[tuple[str, Cell, Row]]:
    """Yield key, cell and row of all measurements with `only` in their key."""
    for row, cell in itertools.product(ROWS, CELLS):
        if only in (key := key_of(cell, row, splits)):
            yield key, cell, row


def key_of(cell: Cell, row: Row, splits: int) -> str:
    """Slopes are computed at full size at every rate of the pixels, so one measurement serves all three rates."""
    return f"{(replace(cell, rate=8) if row.features == 'gradient' else cell).name}/{row.name}/{splits}"


def table(results: dict[str, Any], splits: int) -> str:
    lines = [
        "| | Yale B, 8 each: 1/8 | 1/4 | 1/2 | 32 each: 1/8 | 1/4 | 1/2 | AR sunglasses | scarf | mixed |",
        "|---|---|---|---|---|---|---|---|---|---|",
        "| the paper | " + " | ".join(f"{PUBLISHED[cell.name]['lclrrdl']:.1f}" for cell in CELLS) + " |",
    ]
    for row in ROWS:
        cells = [results.get(key_of(cell, row, splits)) for cell in CELLS]
        values = " | ".join(f"{cell['accuracy_mean']:.1f} ± {cell['accuracy_std']:.1f}" if cell else "" for cell in cells)
        parts = f", parts {row.parts[0]}x{row.parts[1]}" if row.parts else ""
        lines.append(f"| {row.features}, {row.coding}, `{row.schedule}`{parts} | {values} |")
    return "\n".join(lines)


if __name__ == "__main__":
    console.run(app)
