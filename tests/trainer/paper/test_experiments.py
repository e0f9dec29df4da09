"""The paper's protocols, and one cell of its tables measured on real data."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from edge.errors import GalleryError, UsageError
from tests.fixtures.data import file_of
from trainer.baselines.registry import METHODS, method_of, with_printed
from trainer.method.estimator import LCLRRDL
from trainer.paper.experiments import (
    CELLS,
    SCENARIOS,
    TUNED,
    Cell,
    ar_split,
    load_arrays,
    random_split,
    reproduce,
    tuned_entry,
    tuned_parameters,
)
from trainer.paper.tuned import tune_cell
from trainer.paper.typeset import METHODS_OF_THE_PAPER, PUBLISHED
from trainer.presets import PRESETS

AR_LABELS = np.repeat(np.arange(3), 26)


@pytest.mark.parametrize(("scenario", "train", "test"), [("sunglasses", 8, 12), ("scarf", 8, 12), ("mixed", 9, 17)])
def test_ar_split_follows_the_paper(scenario: str, train: int, test: int) -> None:
    chosen, rest = ar_split(AR_LABELS, scenario, np.random.default_rng(1))
    assert len(chosen) == 3 * train
    assert len(rest) == 3 * test
    assert not set(chosen) & set(rest)
    for person in range(3):
        images = sorted(i % 26 for i in chosen if AR_LABELS[i] == person)
        assert images[:7] == list(range(7)), "the neutral images of session 1 train"
        for first in SCENARIOS[scenario]:
            assert sum(first <= i < first + 3 for i in images) == 1, "one occluded image of session 1 trains"
        assert max(images) < 13, "session 2 does not train"


def test_ar_split_depends_on_the_seed_and_needs_26_images() -> None:
    one, again, other = (ar_split(AR_LABELS, "mixed", np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    with pytest.raises(GalleryError, match="25 images"):
        ar_split(AR_LABELS[:-1], "scarf", np.random.default_rng(0))


def test_random_split_takes_the_same_number_of_each_person() -> None:
    labels = np.repeat([3, 7, 9], [10, 12, 11])
    train, test = random_split(labels, 8, np.random.default_rng(0))
    assert np.array_equal(np.unique(labels[train], return_counts=True)[1], [8, 8, 8])
    assert sorted([*train, *test]) == list(range(len(labels)))
    with pytest.raises(UsageError, match="--per-class"):
        random_split(labels, 10, np.random.default_rng(0))


def test_rate_gives_the_dimensions_of_the_paper() -> None:
    lengths = [Cell(dataset="yaleb", rate=rate).spec("pixels").length for rate in (2, 4, 8)]
    assert lengths == [8064, 2016, 504]


def test_unknown_rate_is_an_error() -> None:
    with pytest.raises(UsageError, match="no rate 3"):
        Cell(dataset="yaleb", rate=3)


def test_unusable_array_file_is_an_error(tmp_path: Path) -> None:
    file, cell = tmp_path / "wrong.npz", Cell(dataset="ar")
    np.savez(file, images=np.zeros((4, 10, 10), np.uint8), labels=np.arange(4))
    with pytest.raises(GalleryError, match="42x30"):
        load_arrays(file, cell)
    np.savez(file, pictures=np.zeros(3))
    with pytest.raises(GalleryError, match="lacks"):
        load_arrays(file, cell)
    with pytest.raises(GalleryError, match="cannot be opened"):
        load_arrays(tmp_path / "missing.npz", cell)


def test_every_cell_has_tuned_parameters_and_published_results() -> None:
    tuned = tomllib.loads(TUNED.read_text())
    for cell in CELLS:
        forms = {name: method_of(name) for name in with_printed(METHODS)}
        assert set(tuned[cell.name]) == {name for name, method in forms.items() if method.grid}, cell.name
        for name in tuned[cell.name]:
            assert set(tuned[cell.name][name]["pixels"]) >= set(forms[name].grid), (cell.name, name)
    cell = CELLS[-1]
    for name in METHODS:
        assert tuned_parameters(cell, "pixels", name) == tuned[cell.name][name]["pixels"]
    assert tuned_parameters(cell, "both")["gamma"] == LCLRRDL().gamma
    assert tuned_parameters(cell, "both", parts=True)["eta"] == PRESETS["tiny"]["eta"]
    assert set(PUBLISHED) == {*(cell.name for cell in CELLS), "seconds"}
    for column in (cell.name for cell in CELLS):
        assert set(METHODS_OF_THE_PAPER) <= set(PUBLISHED[column]) <= set(METHODS)
    assert set(PUBLISHED["seconds"]) <= set(METHODS_OF_THE_PAPER)


@pytest.mark.slow
@pytest.mark.parametrize(("features", "coding", "at_least"), [("pixels", "l1", 78), ("gradient", "l21", 98)])
def test_yale_b_reaches_its_accuracy(features: str, coding: str, at_least: float) -> None:
    """One split of one cell; `trainer tables` measures all."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    result = reproduce(images, labels, cell, features=features, coding=coding, splits=1)
    assert result["accuracy_mean"] >= at_least
    assert result["splits"][0]["train_seconds"] > 0


def test_number_of_atoms_is_part_of_a_cell() -> None:
    cell = Cell(dataset="yaleb", per_class=8, rate=8, atoms_per_class=3)
    assert (cell.name, cell.atoms, cell.standard) == ("yaleb-8-8@3", 3, CELLS[0])
    assert tuned_parameters(cell, "pixels") == tuned_parameters(CELLS[0], "pixels"), "not tuned, so with those of the paper's"
    known = {"yaleb-8-8@3": {"lrr": {"pixels": {"lam": 3.0}}}, "yaleb-8-8": {"lrr": {"pixels": {"lam": 5.0}}}}
    assert tuned_entry(known, cell, "pixels", "lrr") == {"lam": 3.0}
    assert (CELLS[0].atoms, CELLS[3].atoms) == (5, 20)


@pytest.mark.slow
def test_labels_help_a_small_dictionary() -> None:
    """One atom per person, on a split that no table uses."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    train, test = cell.split(labels, np.random.default_rng([777, 0]))
    plain, labelled = (
        LCLRRDL(atoms_per_class=1, label_weight=weight, code_lam=0.35, features=cell.spec("pixels"), doubt=False)
        .fit(images[train], labels[train])
        .score(images[test], labels[test])
        for weight in (0.0, 0.3)
    )
    assert labelled > plain + 0.05


@pytest.mark.slow
def test_tuning_uses_training_images_only() -> None:
    """With noise instead of the test images, the result must be the same."""
    cell = Cell(dataset="yaleb", per_class=8, rate=8)
    images, labels = load_arrays(file_of("yaleb_96x84.npz"), cell)
    few = labels < 4
    images, labels = images[few], labels[few]
    _, test = cell.split(labels, np.random.default_rng([0, 2**31]))
    noisy = images.copy()
    noisy[test] = np.random.default_rng(0).integers(0, 256, noisy[test].shape, dtype=np.uint8)
    one, other = (tune_cell(pictures, labels, cell, "lclrrdl") for pictures in (images, noisy))
    assert one == other
    assert one.accuracy > 25
