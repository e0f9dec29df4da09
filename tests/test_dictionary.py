"""The script that compares ways to learn the dictionary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripts.research import dictionary
from scripts.research.dictionary import USUAL, VARIANTS, Variant, incoherent, k_medoids, table
from trainer.method.estimator import LCLRRDL
from trainer.paper.experiments import Cell
from trainer.types import Array

PARAMETERS: dict[str, Any] = {
    "atoms_per_class": 3,
    "label_weight": 0.1,
    "doubt": False,
    "coding": "l21",
    "random_state": 1,
}


@pytest.fixture
def people() -> tuple[Array, Array]:
    """Eight noisy samples (rows) of each of four people."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 8)
    return rng.normal(size=(4, 30))[labels] + 0.4 * rng.normal(size=(32, 30)), labels


def test_a_variant_without_changes_is_lclrrdl(people: tuple[Array, Array]) -> None:
    ours, variant = (kind(**PARAMETERS).fit(*people) for kind in (LCLRRDL, Variant))
    assert np.allclose(ours.D_, variant.D_, atol=1e-6)
    assert np.allclose(ours.W_, variant.W_, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in (USUAL, "unit rows in W")])
def test_each_variant_has_another_dictionary_that_recognises_people(name: str, people: tuple[Array, Array]) -> None:
    parameters: dict[str, Any] = {
        "atoms_per_class": 3,
        "label_weight": 0.1,
        "doubt": False,
        "coding": "l21",
        "random_state": 1,
    }
    model = Variant(**(parameters | VARIANTS[name])).fit(*people)
    assert not np.allclose(model.D_, LCLRRDL(**parameters).fit(*people).D_)
    assert model.score(*people) > 0.9


def test_unit_atoms_have_unit_length(people: tuple[Array, Array]) -> None:
    model = Variant(atoms_per_class=3, unit_atoms=True, doubt=False, coding="l21").fit(*people)
    assert np.allclose(np.linalg.norm(model.D_, axis=0), 1)


def test_incoherent_dictionary_minimises_its_problem() -> None:
    rng = np.random.default_rng(0)
    T, D, Z = rng.normal(size=(12, 20)), rng.normal(size=(12, 6)), rng.normal(size=(6, 20))
    classes = np.repeat([0, 1, 2], 2)

    def cost(D: Array, weight: float) -> float:
        others = classes[:, None] != classes
        pairs = np.square((D.T @ D) * others).sum() / 2  # each pair of people once
        return float(np.square(T - D @ Z).sum() + 0.1 * np.square(D).sum() + weight * pairs)

    plain = incoherent(T, D, Z, classes, weight=1e-9, gamma=0.1, sweeps=200)
    assert np.allclose(plain, T @ Z.T @ np.linalg.inv(Z @ Z.T + 0.1 * np.eye(6)), atol=1e-4)
    found = incoherent(T, D, Z, classes, weight=2.0, gamma=0.1, sweeps=200)
    for step in 1e-3 * rng.normal(size=(20, *D.shape)):
        assert cost(found + step, 2.0) > cost(found, 2.0)


def test_medoids_are_near_to_the_samples_of_their_person() -> None:
    angles = np.array([0.0, 0.1, 0.2, 1.0, 1.1, 1.2])
    samples = np.vstack([np.cos(angles), np.sin(angles)])
    assert k_medoids(samples, np.zeros(6, int), np.array([0, 3])).tolist() == [1, 4]


def test_table_shows_the_difference_from_the_usual_row() -> None:
    cell = Cell(dataset="ar")
    results = {(cell.name, USUAL): [[90.0, 91.0]], (cell.name, "unit atoms"): [[92.5, 80.0]]}
    assert table(results, [cell], [USUAL, "unit atoms"]).splitlines()[2:] == [
        f"| {USUAL} | 91.00 |",
        "| unit atoms | 92.50 (+1.50) |",
    ]
    assert dictionary.DEVELOPMENT != 0, "seed 0 has the published splits"
