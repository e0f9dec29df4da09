"""Tuning: the candidates of a grid, compared on held-out photos."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from edge.errors import GalleryError, TrainingError
from edge.vision.preprocess import FeatureSpec
from tests.fixtures.data import faces
from tests.fixtures.embedding import EXPERTS, embedding_model, network_crops
from trainer import tuning
from trainer.baselines.registry import method_of
from trainer.data.gallery import Gallery
from trainer.features.network import Network
from trainer.method.estimator import LCLRRDL
from trainer.presets import NETWORK_ETAS, PRESETS
from trainer.tuning import Candidate, choose, tune, tune_gallery

pytestmark = pytest.mark.slow

L21 = partial(LCLRRDL, coding="l21")
SPEC_FOR = partial(FeatureSpec.for_crop, 24, 20)
GRID = {"features": ("pixels",), "lam": (25.0,), "alpha": (0.5,), "gamma": (0.05,), "eta": (1e-3, 1e-2)}


def test_candidates_are_sorted_and_a_collapsed_one_is_last() -> None:
    images, labels = faces(people=3, photos=4)
    grid = GRID | {"eta": (1e6, 1e-3), "lam": (1e-4, 25.0)}  # a tiny lam collapses
    progress: list[tuple[int, int]] = []
    candidates = tune(
        images,
        labels,
        spec_for=SPEC_FOR,
        grid=grid,
        estimator=partial(L21, atoms_per_class=3),
        folds=2,
        jobs=1,
        progress=lambda done, total: progress.append((done, total)),
    )
    assert len(candidates) == 4
    assert candidates[0].parameters["lam"] == 25.0
    assert candidates[0].accuracy > 80
    accuracies = [candidate.accuracy for candidate in candidates]
    assert accuracies == sorted(accuracies, reverse=True)
    assert all(candidate.accuracy == 0 for candidate in candidates if candidate.parameters["lam"] == 1e-4)
    assert progress == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_same_seed_gives_the_same_candidates_in_one_process_or_two() -> None:
    images, labels = faces(people=3, photos=4)
    one, two = (
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID, estimator=L21, folds=2, jobs=jobs, seed=3) for jobs in (1, 2)
    )
    assert one == two


def test_usual_parameters_are_kept_within_one_standard_error() -> None:
    usual = {"lam": 25.0, "eta": 1e-3}
    candidates = [
        Candidate({"lam": 5.0, "eta": 1e-2}, 98.0, 1.0),
        Candidate({"lam": 25.0, "eta": 1e-2}, 97.9, 1.0),
        Candidate({"lam": 25.0, "eta": 1e-3}, 97.0, 1.0),
    ]
    assert choose(candidates, 100, usual) is candidates[2], "100 photos: one standard error is 1.4 points"
    assert choose(candidates, 1000, usual) is candidates[1], "1,000 photos: 0.44 points"
    assert choose(candidates, 100_000, usual) is candidates[0], "100,000 photos: 0.044 points"


def test_tuning_without_held_out_photo_or_usable_candidate_fails() -> None:
    images, labels = faces(people=3, photos=1)
    with pytest.raises(GalleryError, match="only one"):
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID)
    images, labels = faces(people=2, photos=4)
    with pytest.raises(TrainingError, match="No candidate"):
        tune(images, labels, spec_for=SPEC_FOR, grid=GRID | {"lam": (1e-5,)}, folds=2, jobs=1)


def test_network_is_tuned_with_experts() -> None:
    images, names = network_crops()
    photos = Gallery(images=images, labels=names, sources=tuple(map(str, range(len(names)))))
    spec = Network(model=embedding_model(), mean=20, scale=0.5)
    one = {"lam": (25.0,), "alpha": (0.5,), "gamma": (0.05,)}
    how: dict[str, Any] = {"atoms": 3, "coding": "l21", "folds": 2, "jobs": 1, "hard": False}
    candidates, best, parameters = tune_gallery(
        photos, method_of("lclrrdl"), features=["onnx:x"], network=spec, values=one, **how
    )
    assert {candidate.parameters["eta"] for candidate in candidates} == set(NETWORK_ETAS)
    assert best.parameters["eta"] == PRESETS["network"]["eta"], "all are right, so the usual value stays"
    assert parameters == best.parameters | {"coding": "l21", "atoms_per_class": 3}
    assert best.accuracy > 80
    # A candidate's accuracy is that of experts with its eta: the last one is still learned.
    train, test = next(StratifiedKFold(2, shuffle=True, random_state=0).split(images, names))
    swept = L21(features=spec, **EXPERTS | {"eta": 7.0})
    found = tuning._accuracies(swept, images, names, train, test, (0.1, 1e4), None)
    model = L21(features=spec, **EXPERTS | {"eta": 1e4}).fit(images[train], names[train])
    np.testing.assert_allclose(swept.W_, model.W_, atol=1e-6)
    assert found[-1] == pytest.approx(100 * model.score(images[test], names[test]))
