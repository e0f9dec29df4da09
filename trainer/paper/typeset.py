"""The measured tables beside the paper's: as Markdown, CSV, LaTeX and a picture."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.files import write_atomically
from trainer.baselines.registry import METHODS
from trainer.paper.experiments import Cell
from trainer.paper.tables import Figure, Tables, writing

WITHIN = 2.0  # points below its printed figure, that a baseline may be


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    heading: str
    """What stands above it."""
    name: str
    """In the CSV file."""
    paper: dict[str, float]
    """The printed figures, by row."""
    ours: dict[str, Figure]
    """The measured ones, by row."""
    timed: bool = False
    """Seconds, of which no best is marked: some methods do not train."""

    @property
    def best(self) -> float | None:
        """The highest of ours."""
        return None if self.timed else max((figure.mean for figure in self.ours.values()), default=None)

    def difference(self, row: str) -> str:
        """Ours less the paper's; empty where one of them is missing."""
        paper, figure = self.paper.get(row), self.ours.get(row)
        return "" if paper is None or figure is None else f"{round(figure.mean - paper, 1) + 0.0:+.1f}"  # no -0.0


@dataclass(frozen=True, kw_only=True)
class Table:
    """One of the three."""

    title: str
    """A sentence on what is measured, how often, and how."""
    rows: tuple[str, ...]
    """Names of methods."""
    columns: tuple[Column, ...]
    """In the paper's order."""


def three(found: Tables) -> list[Table]:
    """Those of the paper's tables of which anything was to be measured."""
    over = f"Percent recognised, {_splits(found.accuracy.values())}."
    titles = {"yaleb": f"Table 1: Extended Yale B. {over}", "ar": f"Table 2: AR. {over}"}
    result = []
    for dataset, title in titles.items():
        columns = tuple(_accuracy_column(cell, found) for cell in found.cells if cell.dataset == dataset)
        if columns:
            result.append(Table(title=title, rows=found.rows, columns=columns))
    if found.seconds:
        over = f"{_splits(found.seconds.values())}, one at a time, on one BLAS thread"
        printed = {row: METHODS[row.partition("/")[0]].printed_seconds for row in found.seconds}
        column = Column(
            heading="seconds",
            name="seconds",
            paper={row: seconds for row, seconds in printed.items() if seconds is not None},
            ours=found.seconds,
            timed=True,
        )
        title = f"Table 3: Training time in seconds, AR with sunglasses; {over}. The paper's: MATLAB, 2019, 55 x 40 pixels."
        result.append(Table(title=title, rows=tuple(found.seconds), columns=(column,)))
    return result


def _splits(figures: Iterable[Figure]) -> str:
    most = max((figure.splits for figure in figures), default=0)
    return "one random split" if most == 1 else f"mean and deviation over {most} random splits"


def _accuracy_column(cell: Cell, found: Tables) -> Column:
    return Column(
        heading=f"{cell.per_class} each, 1/{cell.rate}" if cell.dataset == "yaleb" else cell.scenario,
        name=cell.name,
        paper={row: METHODS[row].printed[cell.name] for row in found.rows if cell.name in METHODS[row].printed},
        ours={row: figure for (row, name), figure in found.accuracy.items() if name == cell.name},
    )


def row_title(row: str) -> str:
    method, _, variant = row.partition("/")
    return METHODS[method].title + (f", {variant}" if variant else "")


def findings(found: Tables) -> list[str]:
    """What the tables are read for, in sentences."""
    paper = [row for row in found.rows if METHODS[row].of_the_paper]
    columns = [
        {row: found.accuracy[row, c.name].mean for row in paper if (row, c.name) in found.accuracy} for c in found.cells
    ]
    compared = [means for means in columns if "lclrrdl" in means and len(means) > 1]
    short = [
        f"{row_title(row)} in {name} ({figure.mean - METHODS[row].printed[name]:+.1f})"
        for (row, name), figure in found.accuracy.items()
        if round(METHODS[row].printed.get(name, 0.0) - figure.mean, 1) > WITHIN
    ]
    sentences = [f"More than {WITHIN:g} points below the printed figure: {', '.join(short) or 'none'}."]
    if compared:
        first = sum(means["lclrrdl"] == max(means.values()) for means in compared)
        told = f"LCLRRDL comes first of the paper's methods that were measured in {first} of {len(compared)} columns."
        sentences = [told, *sentences]
    if found.untuned:
        sentences.append(f"Measured with usual parameters, not tuned: {', '.join(map(row_title, found.untuned))}.")
    if "lclrrdl" in found.seconds:
        own = found.seconds["lclrrdl"].mean
        slower = [row_title(row) for row, figure in found.seconds.items() if figure.mean > own]
        sentences.append(f"Training takes longer than LCLRRDL's for {', '.join(slower) or 'none'}.")
    return sentences


def markdown(found: Tables) -> str:
    """Each place: paper → **ours** ± deviation (difference); the best of ours is bold."""
    parts = ["Each place: the paper's figure → ours ± deviation (difference). The best of ours in a column is bold."]
    for table in three(found):
        parts += [f"### {table.title}", _markdown_table(table)]
    return "\n\n".join([*parts, "\n".join(f"- {sentence}" for sentence in findings(found))]) + "\n"


def _markdown_table(table: Table) -> str:
    lines = [["", *(column.heading for column in table.columns)], ["---"] * (1 + len(table.columns))]
    for row in table.rows:
        lines.append([row_title(row), *(_words(row, column) for column in table.columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _words(row: str, column: Column) -> str:
    """One place, with the paper's figure, ours and the difference as far as they are known."""
    paper, figure = column.paper.get(row), column.ours.get(row)
    told = "" if paper is None else f"{paper:.1f} → "
    if figure is None:
        return told.strip()
    mean = f"{figure.mean:.1f}"
    if figure.mean == column.best:
        mean = f"**{mean}**"
    difference = column.difference(row)
    spread = "" if figure.deviation is None else f" ± {figure.deviation:.1f}"
    return f"{told}{mean}{spread}{f' ({difference})' if difference else ''}"


def latex(found: Tables) -> str:
    """Floats of plain LaTeX, to be put in any document by \\input; each row in two lines, ours above the paper's."""
    return "\n".join(_latex_table(table) for table in three(found))


def _latex_table(table: Table) -> str:
    def ours(row: str, column: Column) -> str:
        figure = column.ours.get(row)
        if figure is None:
            return "--"
        mean = rf"\mathbf{{{figure.mean:.1f}}}" if figure.mean == column.best else f"{figure.mean:.1f}"
        return f"${mean}$" if figure.deviation is None else rf"${mean} \pm {figure.deviation:.1f}$"

    def papers(row: str, column: Column) -> str:
        paper, difference = column.paper.get(row), column.difference(row)
        return "" if paper is None else f"{paper:.1f}" + (f" (${difference}$)" if difference else "")

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
        lines.append(" & ".join([row_title(row), *(ours(row, column) for column in table.columns)]) + r" \\")
        if any(row in column.paper for column in table.columns):
            lines.append(" & ".join(["", *(papers(row, column) for column in table.columns)]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", r"\end{table}"]) + "\n"


def as_csv(found: Tables) -> str:
    """One line for each place."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "column", "method", "paper", "ours", "deviation", "difference", "splits"])
    for table in three(found):
        for column in table.columns:
            for row in table.rows:
                paper, figure = column.paper.get(row), column.ours.get(row)
                mean = "" if figure is None else f"{figure.mean:.3f}"
                deviation = "" if figure is None or figure.deviation is None else f"{figure.deviation:.3f}"
                about = [table.title.partition(":")[0], column.name, row, "" if paper is None else paper]
                writer.writerow([*about, mean, deviation, column.difference(row), figure.splits if figure else ""])
    return text.getvalue()


def picture(found: Tables) -> bytes:
    """PNG: a panel for each column, a line for each method, the paper's figure as a ring and ours as a dot."""
    import matplotlib  # slow to load
    from matplotlib.figure import Figure as Drawing

    from trainer.evaluation.figures import GREY

    panels = [(table, column) for table in three(found) for column in table.columns]
    below = [panel for panel in panels if panel[1].timed or panel[1].name.startswith("yaleb-32")]
    bands = [band for band in ([panel for panel in panels if panel not in below], below) if band]
    tall = 1.0 + 0.24 * max(len(table.rows) for table, _ in panels)
    wide = 2.2 + 1.75 * max(len(band) for band in bands)
    with matplotlib.rc_context({"font.size": 9, "axes.edgecolor": GREY, "axes.spines.top": False, "axes.spines.right": False}):
        drawing = Drawing(figsize=(wide, tall * len(bands) + 0.3), layout="constrained", dpi=150)
        drawing.suptitle("The paper's figure (ring) and ours (dot, with its deviation)", fontsize=10)
        for strip, band in zip(drawing.subfigures(len(bands), squeeze=False).flat, bands, strict=True):
            widths = [1.6 if column.timed else 1.0 for _, column in band]
            for i, (axes, (table, column)) in enumerate(
                zip(strip.subplots(1, len(band), squeeze=False, width_ratios=widths).flat, band, strict=True)
            ):
                _panel(axes, table, column, named=i == 0 or column.timed)
        buffer = io.BytesIO()
        drawing.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _panel(axes: Any, table: Table, column: Column, *, named: bool) -> None:
    from trainer.evaluation.figures import BLUE, INK, ORANGE

    for y, row in enumerate(table.rows):
        paper, figure = column.paper.get(row), column.ours.get(row)
        colour = ORANGE if METHODS[row.partition("/")[0]].title == "LCLRRDL" else BLUE
        if paper is not None and figure is not None:
            axes.plot([paper, figure.mean], [y, y], color=colour, linewidth=1.2, alpha=0.5, zorder=1)
        if paper is not None:
            axes.plot(paper, y, "o", markersize=6, markerfacecolor="white", markeredgecolor=INK, zorder=2)
        if figure is not None:
            axes.errorbar(figure.mean, y, xerr=figure.deviation, fmt="o", markersize=5, color=colour, zorder=3)
    title = "training, seconds" if column.timed else f"{'Yale B' if column.name.startswith('yaleb') else 'AR'}, %"
    axes.set_title(f"{title}\n{'AR, sunglasses' if column.timed else column.heading}", fontsize=9)
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(table.rows)), [row_title(row) if named else "" for row in table.rows])
    axes.grid(color="#e5e7eb")
    axes.set_axisbelow(True)
    if column.timed:
        axes.set_xscale("log")


def write(found: Tables, folder: Path, command: str) -> str:
    """tables.md, .csv, .tex and .png in a folder; returns the first."""
    page = f"    {command}\n\n{markdown(found)}"
    parts = {"md": page.encode(), "csv": as_csv(found).encode(), "tex": f"% {command}\n{latex(found)}".encode()}
    with writing(folder):
        for ending, data in (parts | {"png": picture(found)}).items():
            write_atomically(folder / f"tables.{ending}", data, mode=0o644)
    return page
