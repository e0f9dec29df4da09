"""Tuning: the best of a grid by held-out photos, and the TOML between `tune` and `fit`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge.errors import GalleryError, TrainingError, UsageError
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces
from trainer.data.augment import harden
from trainer.presets import from_toml, to_toml
from trainer.tuning import Candidate, choose, tune

SPEC_FOR = partial(FeatureSpec.for_crop, 24, 20)
GRID = {"features": ("pixels",), "lam": (25.0,), "alpha": (0.5,), "gamma": (0.05,), "eta": (1e-3, 1e-2)}


def test_a_ruinous_choice_loses_and_the_best_stands_first() -> None:
    images, labels = faces()
    grid = GRID | {"eta": (1e6, 1e-3), "lam": (1e-4, 25.0)}  # a tiny lam collapses
    seen: list[tuple[int, int]] = []
    candidates = tune(
        images,
        labels,
        spec_for=SPEC_FOR,
        grid=grid,
        fixed={"coding": "l21", "atoms_per_class": 3},
        folds=3,
        jobs=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert len(candidates) == 4
    assert candidates[0].parameters["lam"] == 25.0
    assert candidates[0].accuracy > 80
    accuracies = [candidate.accuracy for candidate in candidates]
    assert accuracies == sorted(accuracies, reverse=True)
    assert all(candidate.accuracy == 0 for candidate in candidates if candidate.parameters["lam"] == 1e-4)
    assert seen[-1] == (6, 6)


def test_the_same_seed_gives_the_same_table_in_one_process_or_two() -> None:
    images, labels = faces()
    one, two = (
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID, fixed={"coding": "l21"}, folds=2, jobs=jobs, seed=3)
        for jobs in (1, 2)
    )
    assert one == two


def test_known_ground_is_left_only_for_a_gain_that_can_be_told_from_luck() -> None:
    usual = {"lam": 25.0, "eta": 1e-3}
    candidates = [
        Candidate({"lam": 5.0, "eta": 1e-2}, 98.0, 1.0),
        Candidate({"lam": 25.0, "eta": 1e-2}, 97.9, 1.0),
        Candidate({"lam": 25.0, "eta": 1e-3}, 97.0, 1.0),
    ]
    assert choose(candidates, 100, usual) is candidates[2], "100 photos: one standard error is 1.4 points"
    assert choose(candidates, 1000, usual) is candidates[1], "1,000 photos: 0.44 points"
    assert choose(candidates, 100_000, usual) is candidates[0], "100,000 photos: 0.044 points"


def test_one_photo_cannot_be_held_back() -> None:
    images, labels = faces(people=3, photos=1)
    with pytest.raises(GalleryError, match="only one"):
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID)


def test_nothing_usable_is_said_and_not_returned() -> None:
    images, labels = faces(people=2)
    with pytest.raises(TrainingError, match="No candidate"):
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID | {"lam": (1e-5,)}, folds=2, jobs=1)


def test_hardened_faces_differ_but_stay_faces() -> None:
    images, _ = faces()
    harder = harden(images, np.random.default_rng(0))
    assert harder.shape == images.shape
    assert harder.dtype == np.uint8
    changed = np.abs(harder.astype(int) - images).mean(axis=(1, 2))
    assert (changed > 1).all(), "every one is changed"
    assert np.median(changed) < 60, "and none is another picture"
    assert np.array_equal(harder, harden(images, np.random.default_rng(0))), "by the seed alone"


def test_toml_goes_there_and_back(tmp_path: Path) -> None:
    parameters = {"features": "both", "lam": 25.0, "eta": 1e-3, "atoms_per_class": 5}
    file = tmp_path / "tuned.toml"
    file.write_text(to_toml(parameters, "made by\na test"))
    assert from_toml(file, parameters) == parameters


@pytest.mark.parametrize(("text", "word"), [("lamda = 3", "lamda"), ("lam = = 3", "TOML"), (None, "opened")])
def test_bad_toml_is_one_sentence(tmp_path: Path, text: str | None, word: str) -> None:
    file = tmp_path / "bad.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=word):
        from_toml(file, ["lam"])
