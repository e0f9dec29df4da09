"""The measured tables beside the paper's: as Markdown, CSV and LaTeX."""

import csv
import io
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import wilcoxon

from edge.files import write_file
from trainer.baselines.registry import AS_PRINTED, method_of
from trainer.paper.experiments import Cell

_PUBLISHED = tomllib.loads(Path(__file__).with_name("published.toml").read_text())
PUBLISHED: dict[str, dict[str, float]] = _PUBLISHED["columns"]
"""The paper's figures, by column and method."""
METHODS_OF_THE_PAPER: list[str] = _PUBLISHED["methods_of_the_paper"]
ALSO_PRINTED = "/which is as printed"
"""After the name of a method, where every method has a row as printed: this row serves as both."""
WITHIN = 2.0  # a method may be this many points below its published accuracy before a sentence reports it


@dataclass(frozen=True)
class Mean:
    """The mean of what was measured over the splits."""

    values: tuple[float, ...]  # of each split

    @property
    def splits(self) -> int:
        return len(self.values)

    @property
    def value(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """The standard deviation; None for one split."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Results:
    """Everything that was measured, by row and cell. A row is the name of a method, or method/variant."""

    rows: tuple[str, ...]  # the rows of Tables 1 and 2
    cells: tuple[Cell, ...]  # their columns
    accuracy: dict[tuple[str, str], Mean]  # percent, by row and name of the cell
    seconds: dict[str, Mean]  # training seconds for Table 3, by row
    untuned: tuple[str, ...] = ()  # rows with a cell that was measured with the usual parameters of the method


@dataclass(frozen=True)
class TableEntry:
    """One entry of a table."""

    paper: float | None
    ours: Mean | None
    best: bool  # whether ours is the highest of its column

    @property
    def difference(self) -> str:
        """Ours minus the paper's; empty where one of them is missing."""
        if self.paper is None or self.ours is None:
            return ""
        return f"{round(self.ours.value - self.paper, 1) + 0.0:+.1f}"  # no -0.0

    def measured(self, bold: str, plus_minus: str) -> str:
        """Return ours with its deviation; `bold` is the format of the best."""
        if self.ours is None:
            return ""
        value = (bold if self.best else "{}").format(f"{self.ours.value:.1f}")
        return value if self.ours.deviation is None else f"{value} {plus_minus} {self.ours.deviation:.1f}"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str  # in the CSV file
    heading: str
    entries: dict[str, TableEntry]  # by row


def build_tables(results: Results) -> dict[str, list[Column]]:
    """Return the columns of the tables that have a measured column, by title."""
    tables: dict[str, list[Column]] = {}
    titles = {cell.dataset: f"Own data: {cell.dataset}" for cell in results.cells}
    for dataset, title in (titles | {"yaleb": "Table 1: Extended Yale B", "ar": "Table 2: AR"}).items():
        columns = []
        for cell in (cell for cell in results.cells if cell.dataset == dataset):
            ours = {row: mean for (row, name), mean in results.accuracy.items() if name == cell.name}
            best = max((mean.value for mean in ours.values()), default=None)
            columns.append(Column(cell.name, cell.heading, _entries(results.rows, cell.name, ours, best)))
        if columns:
            tables[f"{title}. Percent recognised, {_splits(results.accuracy.values())}."] = columns
    if results.seconds:
        title = (
            f"Table 3: Training time in seconds, AR with sunglasses; {_splits(results.seconds.values())}, one at a time, on "
            "one BLAS thread. The paper's: MATLAB, 2019, 55 x 40 pixels."
        )
        entries = _entries(results.seconds, "seconds", results.seconds, None)  # no best: some methods do not train
        tables[title] = [Column("seconds", "seconds", entries)]
    return tables


def _entries(rows: Iterable[str], column: str, ours: dict[str, Mean], best: float | None) -> dict[str, TableEntry]:
    paper, means = PUBLISHED.get(column, {}), {row: ours.get(row) for row in rows}
    return {
        row: TableEntry(paper.get(row.partition("/")[0]), mean, mean is not None and mean.value == best)
        for row, mean in means.items()
    }


def _splits(means: Iterable[Mean]) -> str:
    most = max((mean.splits for mean in means), default=0)
    return "one random split" if most == 1 else f"mean and deviation over {most} random splits"


def row_title(row: str) -> str:
    method, _, variant = row.partition("/")
    return method_of(method).title + (f", {variant}" if variant else "")


def findings(results: Results) -> list[str]:
    """Return the answers to the usual questions about the tables, as sentences."""
    below, sentences = [], []
    for (row, name), mean in results.accuracy.items():
        difference = mean.value - PUBLISHED.get(name, {}).get(row.partition("/")[0], 0.0)
        if round(difference, 1) < -WITHIN:
            below.append(f"{row_title(row)} in {name} ({difference:+.1f})")
    for form, start in (("", ""), (AS_PRINTED, "As printed, ")):
        compared = _firsts(results, form)
        if compared:
            columns = f"{sum(compared)} of {len(compared)} columns"
            sentences.append(f"{start}LCLRRDL is first among the measured methods of the paper in {columns}.")
    sentences.append(f"More than {WITHIN:g} points below the published figure: {', '.join(below) or 'none'}.")
    if margins := _margins(results):
        sentences.append(f"LCLRRDL against the best other method of the paper, paired over the splits: {'; '.join(margins)}.")
    if results.untuned:
        sentences.append(f"Measured with usual parameters, not tuned: {', '.join(map(row_title, results.untuned))}.")
    if "lclrrdl" in results.seconds:
        own = results.seconds["lclrrdl"].value
        slower = [row_title(row) for row, mean in results.seconds.items() if mean.value > own]
        sentences.append(f"Methods that train longer than LCLRRDL: {', '.join(slower) or 'none'}.")
    return sentences


def _margins(results: Results) -> list[str]:
    """Return for each column how far LCLRRDL is ahead of the best of the paper's other methods."""
    margins = []
    for cell in results.cells:
        ours = results.accuracy.get(("lclrrdl", cell.name))
        others = {
            row: mean
            for (row, name), mean in results.accuracy.items()
            if name == cell.name and row in METHODS_OF_THE_PAPER and row in results.rows and row != "lclrrdl"
        }
        if ours is not None and others:
            row, best = max(others.items(), key=lambda entry: entry[1].value)
            margins.append(f"{cell.name} {paired(ours.values, best.values)}, {row_title(row)}")
    return margins


def paired(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Return the mean difference over the same splits, and p of Wilcoxon's signed-rank test.

    Without p for fewer than six splits, where it cannot be below 5 %.
    """
    gaps = np.subtract(ours, theirs)
    p = wilcoxon(gaps).pvalue if len(gaps) > 5 and gaps.any() else None
    return f"{gaps.mean():+.2f}" + ("" if p is None else f" (p {p:.2g})")


def _firsts(results: Results, form: str) -> list[bool]:
    """Return for each measured column whether LCLRRDL is first of the paper's methods in this form: "" or AS_PRINTED."""
    compared, own = [], "lclrrdl" + form
    among = {method + end for method in METHODS_OF_THE_PAPER for end in (form, ALSO_PRINTED)}
    for cell in results.cells:
        ours = {row: mean.value for (row, name), mean in results.accuracy.items() if name == cell.name and row in among}
        if own in results.rows and own in ours and len(ours.keys() & set(results.rows)) > 1:
            compared.append(ours[own] == max(ours[row] for row in results.rows if row in ours))
    return compared


def markdown(results: Results) -> str:
    """Return the tables and findings; an entry is: paper → **ours** ± deviation (difference)."""
    parts = ["Each entry: the paper's figure → ours ± deviation (difference). The best of ours in a column is bold."]
    for title, columns in build_tables(results).items():
        lines = [["", *(column.heading for column in columns)], ["---"] * (1 + len(columns))]
        for row in columns[0].entries:
            lines.append([row_title(row), *(_markdown_entry(column.entries[row]) for column in columns)])
        parts += [f"### {title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, "\n".join(f"- {sentence}" for sentence in findings(results))]) + "\n"


def _markdown_entry(entry: TableEntry) -> str:
    paper = "" if entry.paper is None else f"{entry.paper:.1f} →"
    difference = f"({entry.difference})" if entry.difference else ""
    return " ".join(filter(None, (paper, entry.measured("**{}**", "±"), difference)))


def latex(results: Results) -> str:
    """Return floats of plain LaTeX for \\input in any document; a row has two lines, ours above the paper's."""
    lines = []
    for title, columns in build_tables(results).items():
        lines += [
            r"\begin{table}",
            rf"\caption{{{_latex_text(title.partition(': ')[2])} Above ours, below the paper's and the difference.}}",
            r"\centering\scriptsize\setlength{\tabcolsep}{2pt}",
            rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
            r"\hline",
            " & ".join(["", *(column.heading for column in columns)]) + r" \\",
            r"\hline",
        ]
        for row in columns[0].entries:
            above, below = zip(*(_latex_entry(column.entries[row]) for column in columns), strict=True)
            lines.append(" & ".join([_latex_text(row_title(row)), *above]) + r" \\")
            if any(below):
                lines.append(" & ".join(["", *below]) + r" \\")
        lines += [r"\hline", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(lines)


def _latex_text(text: str) -> str:
    """Return text with the characters escaped that names of one's own methods and files may have."""
    return re.sub(r"([_&%#$])", r"\\\1", text)


def _latex_entry(entry: TableEntry) -> tuple[str, str]:
    """Return our figure, and the paper's with the difference."""
    ours = entry.measured(r"\mathbf{{{}}}", r"\pm")
    paper = "" if entry.paper is None else f"{entry.paper:.1f}" + (f" (${entry.difference}$)" if entry.difference else "")
    return f"${ours}$" if ours else "--", paper


def as_csv(results: Results) -> str:
    """Return one line for each entry of the tables."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "column", "method", "paper", "ours", "deviation", "difference", "splits"])
    for title, columns in build_tables(results).items():
        for column in columns:
            for row, entry in column.entries.items():
                ours, figures = entry.ours, ("", "", "", "")
                if ours is not None:
                    deviation = "" if ours.deviation is None else f"{ours.deviation:.3f}"
                    figures = (f"{ours.value:.3f}", deviation, entry.difference, str(ours.splits))
                writer.writerow([title.partition(":")[0], column.name, row, entry.paper, *figures])
    return text.getvalue()


def write(results: Results, folder: Path, command: str) -> str:
    """Write tables.md, .csv and .tex into a folder; return the text of the first."""
    page = f"    {command}\n\n{markdown(results)}"
    for suffix, text in (("md", page), ("csv", as_csv(results)), ("tex", f"% {command}\n{latex(results)}")):
        write_file(folder / f"tables.{suffix}", text.encode(), mode=0o644)
    return page
