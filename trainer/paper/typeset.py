"""The measured tables beside the paper's: as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge.files import write_atomically
from trainer.baselines.registry import METHODS
from trainer.paper import published
from trainer.paper.experiments import Cell
from trainer.paper.tuned import write_errors_reported

WITHIN = 2.0  # a method may be this many points below its published accuracy before a sentence reports it


@dataclass(frozen=True)
class Mean:
    """The mean of what was measured over the splits."""

    value: float
    deviation: float | None  # standard deviation; None for one split
    splits: int


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that was measured, by row and cell. A row is the name of a method, or method/variant."""

    rows: tuple[str, ...]  # the rows of Tables 1 and 2
    cells: tuple[Cell, ...]  # their columns
    accuracy: dict[tuple[str, str], Mean]  # percent, by row and name of the cell
    seconds: dict[str, Mean]  # training seconds for Table 3, by row
    untuned: tuple[str, ...] = ()  # rows with a cell that was measured with the usual parameters of the method


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table. The dictionaries are by row."""

    heading: str
    name: str  # its name in the CSV file
    paper: dict[str, float]
    ours: dict[str, Mean]
    mark_best: bool = True

    @property
    def best(self) -> float | None:
        """The highest of our means."""
        return max((mean.value for mean in self.ours.values()), default=None) if self.mark_best else None

    def difference(self, row: str) -> str:
        """Return ours minus the paper's; empty where one of them is missing."""
        paper, ours = self.paper.get(row), self.ours.get(row)
        return "" if paper is None or ours is None else f"{round(ours.value - paper, 1) + 0.0:+.1f}"  # no -0.0


@dataclass(frozen=True, kw_only=True)
class Table:
    """One of the three tables."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]


def build_tables(results: Results) -> list[Table]:
    """Return the tables of the paper that have a measured column."""
    tables = []
    for title, dataset in (("Table 1: Extended Yale B", "yaleb"), ("Table 2: AR", "ar")):
        columns = tuple(_accuracy_column(cell, results) for cell in results.cells if cell.dataset == dataset)
        if columns:
            title = f"{title}. Percent recognised, {_splits(results.accuracy.values())}."
            tables.append(Table(title=title, rows=results.rows, columns=columns))
    if results.seconds:
        paper = {row: published.SECONDS.get(row.partition("/")[0]) for row in results.seconds}
        column = Column(
            heading="seconds",
            name="seconds",
            paper={row: seconds for row, seconds in paper.items() if seconds is not None},
            ours=results.seconds,
            mark_best=False,  # some methods do not train
        )
        title = (
            f"Table 3: Training time in seconds, AR with sunglasses; {_splits(results.seconds.values())}, one at a time, on "
            "one BLAS thread. The paper's: MATLAB, 2019, 55 x 40 pixels."
        )
        tables.append(Table(title=title, rows=tuple(results.seconds), columns=(column,)))
    return tables


def _splits(means: Iterable[Mean]) -> str:
    most = max((mean.splits for mean in means), default=0)
    return "one random split" if most == 1 else f"mean and deviation over {most} random splits"


def _accuracy_column(cell: Cell, results: Results) -> Column:
    paper = {row: published.ACCURACY.get(row, {}).get(cell.name) for row in results.rows}
    return Column(
        heading=f"{cell.per_class} each, 1/{cell.rate}" if cell.dataset == "yaleb" else cell.scenario,
        name=cell.name,
        paper={row: percent for row, percent in paper.items() if percent is not None},
        ours={row: mean for (row, name), mean in results.accuracy.items() if name == cell.name},
    )


def row_title(row: str) -> str:
    method, _, variant = row.partition("/")
    return METHODS[method].title + (f", {variant}" if variant else "")


def findings(results: Results) -> list[str]:
    """Return the answers to the usual questions about the tables, as sentences."""
    rows = [row for row in results.rows if row in published.METHODS_OF_THE_PAPER]
    columns = [{row: results.accuracy.get((row, cell.name)) for row in rows} for cell in results.cells]
    measured = [{row: mean.value for row, mean in column.items() if mean is not None} for column in columns]
    compared = [values for values in measured if "lclrrdl" in values and len(values) > 1]
    below = [
        f"{row_title(row)} in {name} ({mean.value - published.ACCURACY[row][name]:+.1f})"
        for (row, name), mean in results.accuracy.items()
        if round(published.ACCURACY.get(row, {}).get(name, 0.0) - mean.value, 1) > WITHIN
    ]
    sentences = []
    if compared:
        first = sum(values["lclrrdl"] == max(values.values()) for values in compared)
        sentences.append(f"LCLRRDL is first among the measured methods of the paper in {first} of {len(compared)} columns.")
    sentences.append(f"More than {WITHIN:g} points below the published figure: {', '.join(below) or 'none'}.")
    if results.untuned:
        sentences.append(f"Measured with usual parameters, not tuned: {', '.join(map(row_title, results.untuned))}.")
    if "lclrrdl" in results.seconds:
        own = results.seconds["lclrrdl"].value
        slower = [row_title(row) for row, mean in results.seconds.items() if mean.value > own]
        sentences.append(f"Methods that train longer than LCLRRDL: {', '.join(slower) or 'none'}.")
    return sentences


def markdown(results: Results) -> str:
    """Return the tables and findings; an entry is: paper → **ours** ± deviation (difference)."""
    parts = ["Each entry: the paper's figure → ours ± deviation (difference). The best of ours in a column is bold."]
    for table in build_tables(results):
        lines = [["", *(column.heading for column in table.columns)], ["---"] * (1 + len(table.columns))]
        lines += [[row_title(row), *(_markdown_entry(row, column) for column in table.columns)] for row in table.rows]
        parts += [f"### {table.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, "\n".join(f"- {sentence}" for sentence in findings(results))]) + "\n"


def _markdown_entry(row: str, column: Column) -> str:
    paper, ours, difference = column.paper.get(row), column.ours.get(row), column.difference(row)
    before = "" if paper is None else f"{paper:.1f} →"
    if ours is None:
        return before
    value = f"**{ours.value:.1f}**" if ours.value == column.best else f"{ours.value:.1f}"
    deviation = "" if ours.deviation is None else f" ± {ours.deviation:.1f}"
    return f"{before} {value}{deviation}{f' ({difference})' if difference else ''}".strip()


def latex(results: Results) -> str:
    """Return floats of plain LaTeX for \\input in any document; a row has two lines, ours above the paper's."""
    return "\n".join(_latex_table(table) for table in build_tables(results))


def _latex_table(table: Table) -> str:
    lines = [
        r"\begin{table}",
        rf"\caption{{{table.title.partition(': ')[2]} Above ours, below the paper's and the difference.}}",
        r"\centering\scriptsize\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\hline",
        " & ".join(["", *(column.heading for column in table.columns)]) + r" \\",
        r"\hline",
    ]
    for row in table.rows:
        entries = [_latex_entry(row, column) for column in table.columns]
        lines.append(" & ".join([row_title(row), *(ours for ours, _ in entries)]) + r" \\")
        if any(paper for _, paper in entries):
            lines.append(" & ".join(["", *(paper for _, paper in entries)]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table}"]) + "\n"


def _latex_entry(row: str, column: Column) -> tuple[str, str]:
    """Return our figure, and the paper's with the difference."""
    paper, mean, difference = column.paper.get(row), column.ours.get(row), column.difference(row)
    below = "" if paper is None else f"{paper:.1f}" + (f" (${difference}$)" if difference else "")
    if mean is None:
        return "--", below
    value = rf"\mathbf{{{mean.value:.1f}}}" if mean.value == column.best else f"{mean.value:.1f}"
    return f"${value}$" if mean.deviation is None else rf"${value} \pm {mean.deviation:.1f}$", below


def as_csv(results: Results) -> str:
    """Return one line for each entry of the tables."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "column", "method", "paper", "ours", "deviation", "difference", "splits"])
    for table in build_tables(results):
        for column in table.columns:
            for row in table.rows:
                paper, mean = column.paper.get(row), column.ours.get(row)
                value = "" if mean is None else f"{mean.value:.3f}"
                deviation = "" if mean is None or mean.deviation is None else f"{mean.deviation:.3f}"
                about = [table.title.partition(":")[0], column.name, row, "" if paper is None else paper]
                writer.writerow([*about, value, deviation, column.difference(row), mean.splits if mean else ""])
    return text.getvalue()


def write(results: Results, folder: Path, command: str) -> str:
    """Write tables.md, .csv and .tex into a folder; return the text of the first."""
    page = f"    {command}\n\n{markdown(results)}"
    with write_errors_reported(folder):
        for suffix, text in (("md", page), ("csv", as_csv(results)), ("tex", f"% {command}\n{latex(results)}")):
            write_atomically(folder / f"tables.{suffix}", text.encode(), mode=0o644)
    return page
