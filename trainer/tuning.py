"""Choosing parameters by cross-validation inside the training photos."""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import StratifiedKFold

from edge.errors import GalleryError, TrainingError, UsageError
from trainer.data.augment import harden
from trainer.features.spec import Spec
from trainer.method.base import CodeClassifier, FaceClassifier
from trainer.method.classifier import one_hot, ridge
from trainer.method.estimator import LCLRRDL
from trainer.parallel import each
from trainer.types import Array


@dataclass(frozen=True)
class Trial:
    """One choice of parameters, and how well it did on photos that it had not seen."""

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
    grid: dict[str, tuple[Any, ...]],
    fixed: dict[str, Any] | None = None,
    folds: int = 4,
    hard: bool = True,
    seed: int = 0,
    jobs: int = -1,
    scheduler: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Trial]:
    """Every combination of the grid, best first; of equals, the one that stands first in the grid.

    `hard` makes the held-out photos harder (see augment.harden): clean ones of the same sitting are often all recognised, and
    then choose nothing. eta costs nothing to try: a method that has it is trained once, and eta swept over its codes.
    """
    folds = min(folds, int(np.unique(labels, return_counts=True)[1].min()))
    if folds < 2:
        raise GalleryError("Tuning holds photos back, and somebody has only one.", "Give everybody two photos or more.")
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=seed).split(images, labels))
    names = [name for name in grid if name != "eta"]
    etas = grid.get("eta", (None,))
    choices = [dict(zip(names, values, strict=True)) for values in itertools.product(*(grid[name] for name in names))]
    work = [(choice, fold) for choice in choices for fold in range(len(splits))]

    def call(choice: dict[str, Any], fold: int) -> tuple[Any, ...]:
        spec = spec_for(choice["features"])
        others = {name: value for name, value in choice.items() if name != "features"}
        method = estimator(**(fixed or {}), **others, features=spec, random_state=seed)
        return method, spec, images, labels, *splits[fold], etas, [seed, fold] if hard else None

    results = each(_accuracies, (call(*one) for one in work), jobs=jobs, scheduler=scheduler)
    accuracy = np.array([_tick(result, i, len(work), progress) for i, result in enumerate(results)])
    accuracy = accuracy.reshape(len(choices), len(splits), -1)
    trials = [
        Trial(choice | ({} if eta is None else {"eta": eta}), float(accuracy[i, :, k].mean()), float(accuracy[i, :, k].std()))
        for i, choice in enumerate(choices)
        for k, eta in enumerate(etas)
    ]
    if max(trial.accuracy for trial in trials) == 0:
        raise TrainingError("No choice of parameters gave a usable model.", "Look at the photos, or widen the grid.")
    return sorted(trials, key=lambda trial: -trial.accuracy)


def choose(trials: list[Trial], photos: int, usual: dict[str, Any]) -> Trial:
    """The one-standard-error rule: of the trials that `photos` held-out photos cannot tell from the best, the one that differs
    from the `usual` parameters in the fewest; of those, the most accurate. A lucky draw is not worth leaving known ground for.
    """
    best = trials[0].accuracy / 100
    error = 100 * np.sqrt(best * (1 - best) / photos)

    def strangeness(trial: Trial) -> int:
        return sum(trial.parameters[name] != usual[name] for name in trial.parameters)

    close = [trial for trial in trials if trial.accuracy >= trials[0].accuracy - error]
    return min(close, key=strangeness)  # the first of equals, and they stand in falling accuracy


def _accuracies(
    estimator: FaceClassifier,
    spec: Spec,
    images: Array,
    labels: Array,
    train: Array,
    test: Array,
    etas: Sequence[float | None],
    hard_seed: list[int] | None,
) -> list[float]:
    """Percent of the test images recognised, for each eta."""
    held_out = images[test] if hard_seed is None else harden(images[test], np.random.default_rng(hard_seed))
    try:
        estimator.fit(images[train], labels[train])
    except (TrainingError, FloatingPointError, np.linalg.LinAlgError):
        return [0.0 for _ in etas]  # a collapsed choice loses, it does not stop the search
    if not isinstance(estimator, CodeClassifier):
        return [100 * float(estimator.score(held_out, labels[test]))]
    H = one_hot(np.searchsorted(estimator.classes_, labels[train]), len(estimator.classes_))
    codes = estimator.code(spec.vectors(held_out).T)
    scores = (ridge(estimator.codes_, H, estimator.eta if eta is None else eta) @ codes for eta in etas)
    return [100 * float(np.mean(estimator.classes_[score.argmax(axis=0)] == labels[test])) for score in scores]


def _tick(result: Any, done: int, total: int, progress: Callable[[int, int], None] | None) -> Any:
    if progress is not None:
        progress(done + 1, total)
    return result


def to_toml(parameters: dict[str, Any], comment: str) -> str:
    """Text that `trainer fit --config` reads."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
    return "\n".join(lines) + "\n"


def from_toml(path: str | Path, known: Iterable[str]) -> dict[str, Any]:
    """The parameters in a TOML file; a name that is not known is refused rather than passed over."""
    try:
        parameters = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror}).", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML ({error}).", "Write it with `trainer tune -o`.") from None
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise UsageError(f"{path} sets {', '.join(unknown)}, unknown here.", f"Known are {', '.join(sorted(known))}.")
    return parameters
