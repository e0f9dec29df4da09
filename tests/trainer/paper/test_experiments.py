"""The paper's protocols, and cells of its tables measured on real data."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from edge.errors import GalleryError, UsageError
from tests.fixtures.data import file_of
from trainer.baselines.registry import METHODS
from trainer.paper.experiments import (
    CELLS,
    SCENARIOS,
    TUNED,
    Cell,
    ar_split,
    load_arrays,
    random_split,
    reproduce,
    tune_cell,
    tuned_parameters,
)
from trainer.presets import DEFAULT, PRESETS

AR_LABELS = np.repeat(np.arange(3), 26)


@pytest.mark.parametrize(("scenario", "train", "test"), [("sunglasses", 8, 12), ("scarf", 8, 12), ("mixed", 9, 17)])
def test_ar_split_is_the_papers(scenario: str, train: int, test: int) -> None:
    chosen, others = ar_split(AR_LABELS, scenario, np.random.default_rng(1))
    assert len(chosen) == 3 * train
    assert len(others) == 3 * test
    assert not set(chosen) & set(others)
    for person in range(3):
        own = sorted(i % 26 for i in chosen if AR_LABELS[i] == person)
        assert own[:7] == list(range(7)), "the neutral images of session 1 train"
        for first in SCENARIOS[scenario]:
            assert sum(first <= i < first + 3 for i in own) == 1, "one occluded image of session 1 trains"
        assert max(own) < 13, "nothing of session 2 trains"


def test_ar_split_picks_at_random_and_by_seed() -> None:
    one, again, other = (ar_split(AR_LABELS, "mixed", np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)


def test_ar_split_refuses_another_count() -> None:
    with pytest.raises(GalleryError, match="25 images"):
        ar_split(AR_LABELS[:-1], "scarf", np.random.default_rng(0))


def test_random_split_takes_as_many_of_each_and_leaves_the_rest() -> None:
    labels = np.repeat([3, 7, 9], [10, 12, 11])
    train, test = random_split(labels, 8, np.random.default_rng(0))
    assert np.array_equal(np.unique(labels[train], return_counts=True)[1], [8, 8, 8])
    assert sorted([*train, *test]) == list(range(len(labels)))
    with pytest.raises(UsageError, match="--per-class"):
        random_split(labels, 10, np.random.default_rng(0))


def test_rate_is_the_cell_of_the_pixels() -> None:
    lengths = [Cell(dataset="yaleb", rate=rate).spec("pixels").length for rate in (2, 4, 8)]
    assert lengths == [8064, 2016, 504], "the dimensions that the paper states"


@pytest.mark.parametrize("wrong", [{"dataset": "orl"}, {"rate": 3}, {"scenario": "hat"}, {"per_class": 0}])
def test_unknown_cells_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Cell(**({"dataset": "yaleb"} | wrong))  # type: ignore[arg-type]


def test_arrays_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "wrong.npz"
    np.savez(file, images=np.zeros((4, 10, 10), np.uint8), labels=np.arange(4))
    with pytest.raises(GalleryError, match="42x30"):
        load_arrays(file, Cell(dataset="ar"))
    with pytest.raises(GalleryError, match="cannot be opened"):
        load_arrays(tmp_path / "missing.npz", Cell(dataset="ar"))
    np.savez(file, pictures=np.zeros(3))
    with pytest.raises(GalleryError, match="lacks"):
        load_arrays(file, Cell(dataset="ar"))


def test_every_cell_of_the_tables_has_tuned_parameters() -> None:
    tuned = tomllib.loads(TUNED.read_text())
    for cell in CELLS:
        assert set(tuned[cell.name]) == set(METHODS), cell.name
        for name, method in METHODS.items():
            found = tuned[cell.name][name]["pixels"]
            assert set(found) == set(method.grid), (cell.name, name)
            assert tuned_parameters(cell, "pixels", name) == found
        assert tuned_parameters(cell, "both")["gamma"] == PRESETS[DEFAULT]["gamma"]


@pytest.mark.parametrize(("features", "coding", "at_least"), [("pixels", "l1", 78), ("gradient", "l21", 98)])
def test_yale_b_reaches_its_neighbourhood(features: str, coding: str, at_least: float) -> None:
    """One split of one cell: a quick form of the tables, which are a command of their own."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    result = reproduce(images, labels, cell, features=features, coding=coding, splits=1)
    assert result["accuracy_mean"] >= at_least
    assert result["splits"][0]["train_seconds"] > 0


def test_tuning_a_cell_looks_at_training_images_only() -> None:
    """The test images are replaced by noise: the choice must not change."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    few = labels < 4
    images, labels = images[few], labels[few]
    _, test = cell.split(labels, np.random.default_rng([0, 2**31]))
    spoiled = images.copy()
    spoiled[test] = np.random.default_rng(0).integers(0, 256, spoiled[test].shape, dtype=np.uint8)
    one, other = (tune_cell(pictures, labels, cell, features="pixels", coding="l21", seed=0) for pictures in (images, spoiled))
    assert one == other
    assert one[0].accuracy > 25
