"""Choose parameters by cross-validation inside the training photos."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from edge.errors import GalleryError, TrainingError, UsageError
from edge.vision.preprocess import FeatureSpec
from trainer.baselines.registry import Method
from trainer.data.augment import harden
from trainer.data.gallery import Gallery
from trainer.features.network import Network
from trainer.features.spec import Spec
from trainer.method.base import CodeClassifier, FaceClassifier
from trainer.method.classifier import one_hot, ridge
from trainer.method.estimator import LCLRRDL
from trainer.parallel import each
from trainer.presets import DEFAULT, NETWORK_ETAS, PRESETS
from trainer.types import Array, Progress, silent

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Candidate:
    """One point of a parameter grid, and its accuracy on held-out photos."""

    parameters: dict[str, Any]
    accuracy: float
    """Mean over the folds, in percent."""
    deviation: float
    """Standard deviation over the folds."""


def tune(
    images: Array,
    labels: Array,
    *,
    spec_for: Callable[[str], Spec],
    estimator: Callable[..., FaceClassifier] = LCLRRDL,
    grid: Grid,
    folds: int = 4,
    hard: bool = True,
    seed: int = 0,
    jobs: int = -1,
    scheduler: str | None = None,
    progress: Progress = silent,
) -> list[Candidate]:
    """Return all candidates of the grid, best first; of equals, the first of the grid comes first.

    `hard` makes the held-out photos harder (augment.harden): clean photos of one session are often all recognised, and then
    show no difference. For a method with eta, all values of eta share one training.
    """
    folds = min(folds, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        raise GalleryError(
            "Tuning needs held-out photos, but a person has only one photo.", "Add a second photo of each person."
        )
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(images, labels))
    names = [name for name in grid if name != "eta"]
    etas = grid.get("eta", (None,))
    choices = [dict(zip(names, values, strict=True)) for values in itertools.product(*(grid[name] for name in names))]
    work = [(choice, fold) for choice in choices for fold in range(len(splits))]

    def arguments(choice: dict[str, Any], fold: int) -> tuple[Any, ...]:
        method = estimator(**choice | {"features": spec_for(choice["features"]), "random_state": seed})
        return method, images, labels, *splits[fold], etas, [seed, fold] if hard else None

    found = []
    for result in each(_accuracies, (arguments(*one) for one in work), jobs=jobs, scheduler=scheduler):
        found.append(result)
        progress(len(found), len(work))
    accuracy = np.array(found).reshape(len(choices), len(splits), -1)
    candidates = [
        Candidate(choice | ({} if eta is None else {"eta": eta}), float(of_folds.mean()), float(of_folds.std()))
        for choice, of_etas in zip(choices, accuracy, strict=True)
        for eta, of_folds in zip(etas, of_etas.T, strict=True)
    ]
    if max(candidate.accuracy for candidate in candidates) == 0:
        raise TrainingError("No candidate gave a usable model.", "Check the photos, or try other parameter values.")
    return sorted(candidates, key=lambda candidate: -candidate.accuracy)


def choose(candidates: list[Candidate], photos: int, usual: dict[str, Any]) -> Candidate:
    """Choose by the one-standard-error rule.

    Of the candidates whose accuracy on `photos` held-out photos is within one standard error of the best, return the one that
    differs from the `usual` parameters in the fewest values; of equals, the most accurate.
    """
    best = candidates[0].accuracy / 100
    error = 100 * np.sqrt(best * (1 - best) / photos)

    def differences(candidate: Candidate) -> int:
        return sum(candidate.parameters[name] != usual[name] for name in candidate.parameters)

    close = [candidate for candidate in candidates if candidate.accuracy >= candidates[0].accuracy - error]
    return min(close, key=differences)


def tune_gallery(
    gallery: Gallery,
    method: Method,
    *,
    features: Sequence[str],
    network: Network | None,
    atoms: int,
    coding: str,
    values: Grid,
    **options: Any,
) -> tuple[list[Candidate], Candidate, dict[str, Any]]:
    """Tune a method for a device: return the candidates, the chosen one, and the parameters for `trainer fit --config`.

    `values` replace those of the method's grid. `options` are passed to `tune`.
    """
    grid, preset = method.photo_grid or method.grid, PRESETS["tiny" if network is None else DEFAULT]
    if not set(values) <= set(grid):
        raise UsageError(f"{method.title} is tuned by {', '.join(grid)}, not by {', '.join(values)}.", "Leave the others out.")
    fixed = method.settings(atoms, {"coding": coding} if "coding" in method.fixed else {})
    if network is not None and method.estimator is LCLRRDL:
        grid, fixed = grid | {"eta": NETWORK_ETAS}, fixed | {name: preset[name] for name in ("experts", "covered")}
    candidates = tune(
        gallery.images,
        gallery.labels,
        spec_for=lambda kind: network or FeatureSpec.for_crop(*gallery.crop_size, kind),
        estimator=partial(method.estimator, **fixed),
        grid={"features": tuple(features), **grid, **values},
        **options,
    )
    defaults = {name: parameter.default for name, parameter in signature(method.estimator).parameters.items()}
    usual = method.usual | preset if method.estimator is LCLRRDL else preset | method.usual
    best = choose(candidates, len(gallery.images), defaults | usual)
    return candidates, best, best.parameters | {name: fixed[name] for name in ("coding", "atoms_per_class") if name in fixed}


def _accuracies(
    estimator: FaceClassifier,
    images: Array,
    labels: Array,
    train: Array,
    test: Array,
    etas: Sequence[float | None],
    hard_seed: list[int] | None,
) -> list[float]:
    """Return the percentage of test images recognised, for each eta."""
    held_out = images[test] if hard_seed is None else harden(images[test], np.random.default_rng(hard_seed))
    try:
        estimator.fit(images[train], labels[train])
    except (TrainingError, FloatingPointError, np.linalg.LinAlgError):
        return [0.0 for _ in etas]  # a candidate that collapses must not stop the search
    if isinstance(estimator, LCLRRDL) and estimator.experts:
        atoms = estimator.classes_[estimator.atom_classes_]
        learned = (estimator.set_params(eta=eta or estimator.eta) for eta in etas)
        fitted = (one.fit_classifier(images[train], labels[train], estimator.D_, atoms) for one in learned)
        return [100 * float(one.score(held_out, labels[test])) for one in fitted]
    if not isinstance(estimator, CodeClassifier):
        return [100 * float(estimator.score(held_out, labels[test]))]
    H = one_hot(np.searchsorted(estimator.classes_, labels[train]), len(estimator.classes_))
    assert estimator.features is not None
    codes = estimator.code(estimator.features.vectors(held_out).T)
    scores = (ridge(estimator.codes_, H, estimator.eta if eta is None else eta) @ codes for eta in etas)
    return [100 * float(np.mean(estimator.classes_[score.argmax(axis=0)] == labels[test])) for score in scores]
