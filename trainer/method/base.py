"""What every method shares: the door at which samples come in as rows, are checked, and go on as unit columns.

A method stores its parameters in `__init__`, learns in `_learn`, and scores in `_scores`; scikit-learn's conventions are
kept here, once.
"""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)

from edge.errors import ParameterError, TrainingError
from edge.vision.preprocess import unit_rows
from trainer.features.spec import Spec
from trainer.method.classifier import one_hot, ridge
from trainer.types import Array


class FaceClassifier(ClassifierMixin, BaseEstimator):
    """Samples X as rows: vectors (n, d) where `features` is None, else grey crops, (n, H, W) or flattened."""

    features: Spec | None
    classes_: Array

    def fit(self, X: Array, y: Array) -> Self:
        """Learn from samples X and their labels y."""
        self._learn(*self._begin(X, y))
        return self

    def decision_function(self, X: Array) -> Array:
        """Scores (n, C), one column per class; for two classes (n,), positive where the second wins."""
        check_is_fitted(self)
        rows, _ = self._rows(X)
        scores = self._scores(rows.T).T
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Array) -> Array:
        """The class of each sample."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

    def _learn(self, samples: Array, labels: Array) -> None:
        """From samples (d, n), unit columns in float64, and their classes 0..C-1 (n,)."""
        raise NotImplementedError

    def _scores(self, samples: Array) -> Array:
        """(C, n) of samples (d, n): the highest names the class."""
        raise NotImplementedError

    def _check_parameters(self) -> None:
        """Raises ParameterError."""

    def _begin(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Samples as unit columns, and their classes as numbers; both checked."""
        self._check_parameters()
        rows, y = self._rows(X, y)
        with warnings.catch_warnings():  # one photo of each person are classes all the same
            warnings.filterwarnings("ignore", "The number of unique classes")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TrainingError("There is only one class in the training data.", "Add samples of at least one more person.")
        return rows.T.astype(np.float64), labels

    def _rows(self, X: Array, y: Array | None = None) -> tuple[Array, Any]:
        """Unit feature vectors as rows, and y, both checked."""
        if self.features is None:
            if y is None:
                return unit_rows(validate_data(self, X, dtype=np.float64, reset=False)), None
            rows, y = validate_data(self, X, y, dtype=np.float64)
            return unit_rows(rows), y
        spec = self.features
        crops = check_array(np.reshape(X, (len(X), -1)), dtype=None)
        if crops.shape[1] != spec.height * spec.width or crops.min() < 0 or crops.max() > 255:
            raise ValueError(f"X must hold grey crops of {spec.height}x{spec.width} pixels, 0 to 255")
        if y is not None:
            y = column_or_1d(y)
            check_consistent_length(crops, y)
            if (crops == crops[:, :1]).all(axis=1).any():
                raise TrainingError("A training image is blank.", "Remove images that show nothing.")
        self.n_features_in_ = crops.shape[1]
        return spec.vectors(crops.reshape(-1, spec.height, spec.width)), y


class CodeClassifier(FaceClassifier):
    """A method whose label is argmax Wz (eq. 8 to 10): a linear classifier on codes z.

    `_learn` sets codes_ (m, n), those that W is learned on, and W_ (C, m), by `_learn_linear`; `eta` can then be changed
    without another training.
    """

    eta: float
    codes_: Array
    W_: Array

    def code(self, samples: Array) -> Array:
        """Z (m, n) of samples (d, n), as unit columns."""
        raise NotImplementedError

    def _learn_linear(self, codes: Array, labels: Array) -> None:
        self.codes_ = codes
        self.W_ = ridge(codes, one_hot(labels, len(self.classes_)), self.eta)

    def _scores(self, samples: Array) -> Array:
        return self.W_ @ self.code(samples)


def random_atoms(labels: Array, per_class: int, random_state: Any) -> Array:
    """Indices of random samples of each class, all of a class that has fewer: the first D of the published experiments."""
    rng = check_random_state(random_state)
    members = [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]
    return np.concatenate([np.sort(rng.permutation(own)[:per_class]) for own in members])


def check_positive(method: Any, *names: str) -> None:
    """The parameters of these names are numbers above zero."""
    for name in names:
        value = getattr(method, name)
        if not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
            raise ParameterError(f"{name} must be more than 0 and finite, not {value!r}")


def check_count(method: Any, name: str, least: int = 1) -> None:
    """The parameter of this name is a whole number."""
    value = getattr(method, name)
    if not isinstance(value, Integral) or value < least:
        raise ParameterError(f"{name} must be a whole number from {least} on, not {value!r}")
