"""Every parameter of every method has an effect."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.fixtures.small import vectors
from trainer.baselines.lclrr import LCLRR
from trainer.baselines.llc import LLC
from trainer.baselines.lrr import LRR
from trainer.baselines.lrrs import LRRS, RBDS
from trainer.baselines.rpca import LRSI, RPCA
from trainer.baselines.slrr import SLRR
from trainer.baselines.src import SRC
from trainer.method.base import CodeClassifier, FaceClassifier

OTHER: dict[str, Any] = {
    "atoms_per_class": 2,
    "neighbours": 9,
    "components": 3,
    "rounds": 3,
    "iterations": 3,
    "occlusion": True,
    "error": "l21",
    "locality": "squared",
    "classifier_codes": "training",
    "random_state": 1,
    "together": True,
    "scaling": "maximum",
}
"""Other values of parameters that are not weights. Weights are multiplied."""
START: dict[type[FaceClassifier], dict[str, Any]] = {
    SRC: {"atoms_per_class": 3, "lam": 0.03},
    LLC: {"atoms_per_class": 3, "beta": 0.1},
    RPCA: {"src_lam": 0.03},
    LRSI: {"src_lam": 0.03, "incoherence": 0.1},
    SLRR: {"atoms_per_class": 3, "code_lam": 3.0},
    RBDS: {"atoms_per_class": 3},
    LRRS: {"atoms_per_class": 3},
    LRR: {"atoms_per_class": 3},
    LCLRR: {"atoms_per_class": 3, "alpha": 0.1},
}
UNUSED = {(RPCA, "random_state"), (LRSI, "random_state")}


@pytest.mark.parametrize("method", START, ids=lambda method: method.__name__)
def test_every_parameter_changes_the_scores(method: type[FaceClassifier]) -> None:
    X, y = vectors()

    def scores(**changed: Any) -> Any:
        return method(**START[method] | changed).fit(X[::2], y[::2]).decision_function(X[1::2])

    start, parameters = scores(), method(**START[method]).get_params()
    for name in parameters.keys() - {"features", "scaling"}:
        moved = np.abs(scores(**{name: OTHER[name] if name in OTHER else 1.7 * parameters[name]}) - start).max()
        assert moved == 0 if (method, name) in UNUSED else moved > 1e-4, name


@pytest.mark.parametrize("method", [LRRS, RBDS, SLRR], ids=lambda method: method.__name__)
def test_every_parameter_changes_the_scores_of_faces_coded_together(method: type[CodeClassifier]) -> None:
    X, y = vectors()
    start = {"lam": 3.0, "beta": 0.1} if method is SLRR else {"classifier_codes": "training"}
    model = method(3, together=True, **start)
    before = clone(model).fit(X[::2], y[::2]).decision_function(X[1::2])
    for name in model.get_params().keys() - {"features", "together", "code_lam", "classifier_codes"}:
        changed = clone(model).set_params(**{name: OTHER[name] if name in OTHER else 1.7 * getattr(model, name)})
        assert np.abs(changed.fit(X[::2], y[::2]).decision_function(X[1::2]) - before).max() > 1e-4, name


OF_TRAINING = [
    (LRR, "error"),
    (LRR, "lam"),
    (LRRS, "lam"),
    (LRRS, "beta"),
    *((RBDS, name) for name in ("alpha", "lam", "beta", "gamma")),
]


@pytest.mark.parametrize(("method", "name"), OF_TRAINING, ids=lambda value: getattr(value, "__name__", value))
def test_parameter_changes_the_training_codes(method: type[CodeClassifier], name: str) -> None:
    X, y = vectors()
    start = method(**START[method], classifier_codes="training")
    other = OTHER[name] if name in OTHER else 1.7 * getattr(start, name)
    changed = clone(start).set_params(**{name: other})
    assert np.abs(start.fit(X, y).codes_ - changed.fit(X, y).codes_).max() > 1e-4
