"""The script that compares dictionaries of several sizes, with made-up people in arrays of the right shape."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from edge.errors import UsageError
from scripts.research import compact
from scripts.research.compact import KINDS, CorruptedCell, Point, VectorCell
from tests.fixtures.data import faces
from trainer.paper.experiments import CELLS


@pytest.mark.parametrize("kind", KINDS)
def test_share_of_the_training_images_is_corrupted(kind: str) -> None:
    images, labels = faces(people=4, photos=10, size=(42, 30))
    cell = CorruptedCell(dataset="ar", kind=kind, share=0.3)
    given, names = cell.corrupt(images, labels, np.random.default_rng(0))
    changed = (given != images).any(axis=(1, 2)), names != labels
    assert [int(rows.sum()) for rows in changed] == ([0, 12] if kind == "wrong names" else [12, 0])
    again, _ = cell.corrupt(images, labels, np.random.default_rng(0))
    assert np.array_equal(again, given)
    assert cell.name == f"ar-{kind}-0.3"


def test_mask_covers_the_lower_face() -> None:
    images, labels = faces(people=4, photos=10, size=(42, 30))
    given, _ = CorruptedCell(dataset="ar", kind="masks", share=1.0).corrupt(images, labels, np.random.default_rng(0))
    changed = (given != images).mean(axis=0)
    assert changed[26:38, 10:20].min() > 0.9
    assert changed[:14].max() == 0


def test_vectors_of_masked_faces_are_only_tested() -> None:
    labels, masked = np.repeat([0, 1, 2, 3], [6, 6, 3, 6]), frozenset({0, 1, 6, 12, 13})
    train, test = VectorCell(dataset="comask20", per_class=3, masked=masked).split(labels, np.random.default_rng(0))
    assert np.array_equal(np.bincount(labels[train]), [3, 3]), "2 has too few bare photos, 3 no masked one"
    assert sorted(test) == [0, 1, 6]
    train, test = VectorCell(dataset="lfw", per_class=3).split(labels, np.random.default_rng(0))
    assert sorted(np.concatenate([train, test])) == [row for row in range(21) if labels[row] != 2]
    assert np.array_equal(np.bincount(labels[train], minlength=4), [3, 3, 0, 3])


def test_atoms_up_to_all_training_images_of_each_cell() -> None:
    atoms = {
        name: [cell.atoms for cell in compact.atoms_cells(name)] for name in ("yaleb-8-8", "yaleb-32-2", "ar-m", "comask20")
    }
    assert atoms == {
        "yaleb-8-8": [1, 2, 3, 5, 8],
        "yaleb-32-2": [1, 2, 3, 5, 8, 32],
        "ar-m": [1, 2, 3, 5, 8, 9],
        "comask20": [1, 2, 3],
    }
    assert compact.atoms_cells("yaleb-8-8")[3] == CELLS[0], "with the atoms of the paper it is the cell of the tables"
    everything = compact.atoms_cells(None)
    assert {cell.standard.name for cell in everything} == {*(cell.name for cell in CELLS), "lfw", "comask20"}


def test_unknown_kind_is_an_error() -> None:
    assert len(compact.corrupted_cells(None)) == 2 * (1 + 4 * 5)
    assert {cell.atoms for cell in compact.corrupted_cells("masks")} == {2, 5}
    with pytest.raises(UsageError, match="no kind 'hats'"):
        compact.corrupted_cells("hats")


def test_table_compares_learned_and_random_atoms() -> None:
    ours = np.array([90.0, 91, 92, 93, 94, 95])
    points = [Point(method="lclrrdl", cell=CELLS[0], accuracy=ours, fnir=ours)]
    assert "| yaleb-8-8, 5 atoms | 92.5 ± 1.9 |  |" in compact.table(points, "accuracy")
    points.append(Point(method="lrr", cell=CELLS[0], accuracy=ours - np.arange(1, 7), fnir=ours))
    assert "| yaleb-8-8, 5 atoms | 92.5 ± 1.9 | 89.0 ± 0.0 | +3.50 (p 0.031) |" in compact.table(points, "accuracy")


@pytest.mark.slow
def test_results_are_measured_once_and_drawn(tmp_path: Path) -> None:
    data, output = tmp_path / "data", tmp_path / "results"
    data.mkdir()
    images, labels = faces(people=10, photos=12, size=(96, 84))
    np.savez(data / "yaleb_96x84.npz", images=images, labels=labels)
    command = [
        "atoms",
        "--data",
        str(data),
        "-o",
        str(output),
        "--only",
        "yaleb-8-8",
        "--methods",
        "lclrrdl,ksvd",
        "--splits",
        "1",
    ]
    command += ["--jobs", "1"]
    done = CliRunner().invoke(compact.app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("| yaleb-8-8, 2 atoms |") == 2, "accuracy and FNIR"
    lines = (output / "runs.jsonl").read_text().splitlines()
    assert len(lines) == 2 * 5
    for figure in ("accuracy", "fnir"):
        picture = cv2.imread(str(output / f"atoms-{figure}.png"))
        assert picture is not None
        assert np.mean(picture != 255) > 0.02
    assert CliRunner().invoke(compact.app, command).exit_code == 0
    assert (output / "runs.jsonl").read_text().splitlines() == lines
