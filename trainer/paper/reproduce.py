"""`trainer reproduce`: measure one cell of the paper's tables on several random splits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from trainer.baselines.registry import Parameters, method_of
from trainer.paper.experiments import Cell, measure
from trainer.paper.tuned import tuned_parameters
from trainer.types import Array


def reproduce(
    images: Array,
    labels: Array,
    cell: Cell,
    *,
    method: str = "lclrrdl",
    features: str = "pixels",
    splits: int = 5,
    seed: int = 0,
    parameters: Parameters | None = None,
    progress: Callable[[int, int], None] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """Train and test on `splits` random splits; return mean and deviation of the accuracy, and the training time.

    `parameters` replace the tuned ones. `given` are parameters that are not tuned: coding, schedule and parts of LCLRRDL.
    """
    settings = method_of(method).settings(cell.atoms, given)
    parts = settings.get("parts") is not None
    used = tuned_parameters(cell, features, method, parts=parts) if parameters is None else parameters
    runs = []
    for k in range(splits):
        if progress is not None:
            progress(k, splits)
        run = measure(images, labels, cell, k, method=method, parameters=settings | used, features=features, seed=seed)
        runs.append(run)
    accuracies = np.array([run["accuracy"] for run in runs])
    return {
        "cell": cell.name,
        "method": method,
        "features": features,
        **{name: value for name, value in settings.items() if name != "atoms_per_class"},
        "parameters": {name: value for name, value in settings.items() if name == "atoms_per_class"} | used,
        "seed": seed,
        "accuracy_mean": round(float(accuracies.mean()), 2),
        "accuracy_std": round(float(accuracies.std(ddof=1)) if splits > 1 else 0.0, 2),
        "train_seconds_mean": round(float(np.mean([run["train_seconds"] for run in runs])), 2),
        "splits": runs,
    }
