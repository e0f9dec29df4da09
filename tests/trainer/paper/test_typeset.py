"""The tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest

from trainer.paper import typeset
from trainer.paper.experiments import CELLS
from trainer.paper.typeset import Mean, Results


def mean(value: float, deviation: float, splits: int) -> Mean:
    """Return the mean of as many splits with this standard deviation."""
    spread = np.linspace(-1, 1, splits) if splits > 1 else np.zeros(1)
    return Mean(tuple((value + deviation * spread / (np.std(spread, ddof=1) if splits > 1 else 1)).tolist()))


RESULTS = Results(
    rows=("lclrrdl", "srw", "src"),
    cells=CELLS,
    accuracy={
        (row, cell.name): mean(80.0 + 2 * i + (5 if row == "lclrrdl" else 0), 0.5, 10)
        for row in ("lclrrdl", "srw", "src")
        for i, cell in enumerate(CELLS)
        if (row, cell.name) != ("srw", "ar-mixed")
    },
    seconds={"lclrrdl": mean(4.0, 0.1, 3), "lclrrdl/schedule paper": mean(60.0, 1.0, 3), "srw": mean(0.01, 0.0, 3)},
)


def test_markdown_shows_published_and_measured_figures() -> None:
    text = typeset.markdown(RESULTS)
    assert "| LCLRRDL | 80.1 → **85.0** ± 0.5 (+4.9) | 84.6 → **87.0** ± 0.5 (+2.4) |" in text
    assert "| SRW | 79.3 → 80.0 ± 0.5 (+0.7) |" in text
    assert "| SRC, [D, I] | 80.0 ± 0.5 |" in text, "its paper has no figure"
    assert "| 79.2 → |" in text, "not measured"
    assert "| LCLRRDL, schedule paper | 38.7 → 60.0 ± 1.0 (+21.3) |" in text
    assert "over 10 random splits" in text
    assert "LCLRRDL is first among the measured methods of the paper in 8 of 8 columns." in text
    assert "Methods that train longer than LCLRRDL: LCLRRDL, schedule paper." in text
    assert "More than 2 points below the published figure: none" not in text
    worse = replace(RESULTS, accuracy=RESULTS.accuracy | {("srw", "yaleb-8-8"): mean(70.0, 0.0, 10)})
    assert "SRW in yaleb-8-8 (-9.3)" in typeset.markdown(worse)
    for table in text.split("###")[1:]:
        widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
        assert len(widths) == 1


def test_findings_count_a_tie_as_first_and_skip_unmeasured_methods() -> None:
    assert "first" not in typeset.markdown(replace(RESULTS, rows=("srw", "src")))
    tie = replace(
        RESULTS,
        rows=("srw", "lclrrdl"),
        cells=CELLS[:1],
        accuracy={(r, "yaleb-8-8"): Mean((9.0,)) for r in RESULTS.rows},
    )
    assert "in 1 of 1 columns" in typeset.markdown(tie)


def test_lead_over_the_best_other_method_is_paired_over_the_splits() -> None:
    ours, better = (90.0, 91, 92, 93, 94, 95), (91.0, 93, 95, 97, 99, 101)
    accuracy = {
        ("lclrrdl", "yaleb-8-8"): Mean(ours),
        ("srw", "yaleb-8-8"): Mean((1.0,) * 6),
        ("slrr", "yaleb-8-8"): Mean(better),
    }
    results = Results(rows=("lclrrdl", "srw", "slrr", "lrr"), cells=CELLS[:2], accuracy=accuracy, seconds={})
    assert typeset.findings(results)[-1].endswith("paired over the splits: yaleb-8-8 -3.50 (p 0.031), SLRR.")


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [((2.0,) * 5, (1.0,) * 5, "+1.00"), ((1.0,) * 6, (1.0,) * 6, "+0.00"), (range(1, 7), (0,) * 6, "+3.50 (p 0.031)")],
)
def test_p_needs_six_splits_and_a_difference(ours: tuple[float, ...], theirs: tuple[float, ...], text: str) -> None:
    assert typeset.paired(ours, theirs) == text


def test_forms_as_printed_are_compared_with_each_other() -> None:
    """A method whose usual row is as printed counts in both."""
    figures = {
        "lclrrdl": 90.0,
        "lclrrdl/as printed": 80.0,
        "lrrs": 91.0,
        "lrrs/as printed": 70.0,
        "srw/which is as printed": 75.0,
    }
    accuracy = {(row, "yaleb-8-8"): Mean((value,)) for row, value in figures.items()}
    text = typeset.markdown(Results(rows=tuple(figures), cells=CELLS[:1], accuracy=accuracy, seconds={}))
    assert "| LRSR, as printed | 75.3 → 70.0 (-5.3) |" in text
    assert "| SRW, which is as printed | 79.3 → 75.0 (-4.3) |" in text
    assert "- LCLRRDL is first among the measured methods of the paper in 0 of 1 columns." in text
    assert "- As printed, LCLRRDL is first among the measured methods of the paper in 1 of 1 columns." in text
    assert "published figure: LRSR, as printed in yaleb-8-8 (-5.3), SRW, which is as printed in yaleb-8-8 (-4.3)." in text


def test_csv_has_the_same_figures() -> None:
    lines = list(csv.DictReader(io.StringIO(typeset.as_csv(RESULTS))))
    assert len(lines) == 3 * 9 + 3
    assert lines[0] == {
        "table": "Table 1",
        "column": "yaleb-8-8",
        "method": "lclrrdl",
        "paper": "80.1",
        "ours": "85.000",
        "deviation": "0.500",
        "difference": "+4.9",
        "splits": "10",
    }
    assert [line["ours"] for line in lines if (line["method"], line["column"]) == ("srw", "ar-mixed")] == [""]


def test_latex_is_balanced_and_needs_no_package() -> None:
    text = typeset.latex(RESULTS)
    assert text.count("{") == text.count("}")
    assert text.count("$") % 2 == 0
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 3
    assert not {"_", "%", "±", "→"} & set(text), "would need an escape or a package"
    for table in text.split(r"\end{tabular}")[:-1]:
        columns = table.split(r"\begin{tabular}{")[1].split("}")[0]
        rows = [line for line in table.splitlines() if line.endswith((r"\\", r"\\[3pt]"))]
        assert {row.count("&") + 1 for row in rows} == {len(columns)}
