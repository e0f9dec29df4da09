"""Base classes of all methods: they check the input, turn rows into unit columns and follow scikit-learn's conventions.

A method is a dataclass; its fields are its parameters. It fits in `_learn` and scores in `_scores`, with samples as columns.
"""

import math
import warnings
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Integral
from types import NoneType
from typing import Any, Self, get_args

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, check_random_state, check_X_y, validate_data

from edge.errors import ParameterError, TrainingError
from edge.kit.manifest import RELATIVE
from edge.vision.preprocess import unit_rows
from trainer.features.spec import Spec
from trainer.method.classifier import one_hot, ridge
from trainer.types import Array

CHOICES = {
    "classifier_codes": ("coder", "training"),
    "error": ("l1", "l21"),
    "locality": ("exp", "squared"),
    "scaling": ("unit", "maximum"),
}
"""Values of the parameters with these names."""
COLLAPSED = "Training collapsed: every code is zero, so people cannot be distinguished."


@dataclass(eq=False, repr=False)
class FaceClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A method. Samples X are rows: vectors (n, d) if `features` is None, else crops (n, *features.crop_shape), or flattened.

    Learned: classes_ (C,).
    """

    _: KW_ONLY
    features: Spec | None = None
    """The features to compute from crops. None: X holds vectors, which are scaled to unit length."""
    random_state: int | None = 0
    """Seed of all random choices."""

    def fit(self, X: Array, y: Array) -> Self:
        """Learn from samples X and their labels y."""
        self._learn(*self._begin(X, y))
        return self

    @property
    def confidence(self) -> str:
        """The kind of confidence that the scores have (edge.vision.confidence)."""
        return RELATIVE

    def decision_function(self, X: Array) -> Array:
        """Return scores (n, C). For two classes (n,): positive if the second class wins."""
        check_is_fitted(self)
        rows, _ = self._rows(X)
        scores = self._scores(rows.T).T
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Array) -> Array:
        """Return the class of each sample."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        names: Array = self.classes_[best]
        return names

    def _learn(self, samples: Array, labels: Array) -> None:
        """Learn from samples (d, n), unit columns in float64, and their classes 0..C-1 (n,)."""
        raise NotImplementedError

    def _scores(self, samples: Array) -> Array:
        """Return scores (C, n) of samples (d, n). The highest score of a column names the class."""
        raise NotImplementedError

    def check_parameters(self) -> None:
        """Raise ParameterError unless floats are positive and finite, and integers at least 1; 0 is valid if `least` is 0."""
        for field in fields(self):
            name, kinds, value = field.name, get_args(field.type) or (field.type,), getattr(self, field.name)
            least, zero = field.metadata.get("least", 1), field.metadata.get("least")
            if name in CHOICES and value not in CHOICES[name]:
                raise ParameterError(f"{name} must be one of {', '.join(CHOICES[name])}, not {value!r}")
            if name == "random_state" or (value is None and NoneType in kinds):
                continue
            if float in kinds and not (isinstance(value, (int, float, np.number)) and (0 < value < np.inf or value == zero)):
                raise ParameterError(f"{name} must be {'at least' if zero == 0 else 'more than'} 0 and finite, not {value!r}")
            if int in kinds and not (isinstance(value, Integral) and value >= least):
                raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}")

    def _begin(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Check parameters, X and y. Return samples (d, n) as unit columns and their classes 0..C-1 (n,)."""
        self.check_parameters()
        rows, y = self._rows(X, y)
        with warnings.catch_warnings():  # one photo of each person is valid
            warnings.filterwarnings("ignore", "The number of unique classes")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TrainingError("There is only one class in the training data.", "Add samples of at least one more person.")
        return rows.T.astype(np.float64), labels

    def _rows(self, X: Array, y: Array | None = None) -> tuple[Array, Any]:
        """Return feature vectors (n, d), and y, both checked."""
        if self.features is None:
            if y is None:
                return self._vectors(validate_data(self, X, dtype=np.float64, reset=False)), None
            rows, y = validate_data(self, X, y, dtype=np.float64)
            return self._vectors(rows, training=True), y
        spec, crops = self.features, np.reshape(X, (len(X), -1))
        crops, y = (check_array(crops, dtype=None), None) if y is None else check_X_y(crops, y, dtype=None)
        if crops.shape[1] != math.prod(spec.crop_shape) or crops.min() < 0 or crops.max() > 255:
            kind = "colour" if spec.colour else "grey"
            raise ValueError(f"X must hold {kind} crops of {spec.height}x{spec.width} pixels, 0 to 255")
        pixels = crops.reshape(len(crops), spec.height * spec.width, -1)
        if y is not None and (pixels == pixels[:, :1]).all(axis=(1, 2)).any():
            raise TrainingError("A training image is blank.", "Remove images that show nothing.")
        self.n_features_in_ = crops.shape[1]
        return self._vectors(crops.reshape(-1, *spec.crop_shape), training=y is not None), y

    def _vectors(self, samples: Array, *, training: bool = False) -> Array:
        """Return feature vectors (n, d) of samples, which are rows or, with `features`, crops: rows of unit length."""
        return unit_rows(samples) if self.features is None else self.features.vectors(samples)


@dataclass(eq=False, repr=False)
class CodeClassifier(FaceClassifier):
    """A method with a dictionary D and the label argmax Wz: a linear classifier on codes z (eq. 8 to 10).

    Learned: D_ (d, m), atom_classes_ (m,), W_ (C, m), codes_ (m, n): the codes that W was learned on (for another eta).
    """

    atoms_per_class: int | None = 5
    """Training samples of each class that D starts from; a class with fewer gives all it has. None: all samples."""
    _: KW_ONLY
    eta: float = 1e-3
    """Ridge of the classifier (eq. 8)."""

    def code(self, samples: Array) -> Array:
        """Return codes Z (m, n) of samples (d, n). Each sample is coded by itself, except in the forms as printed."""
        raise NotImplementedError

    def _choose_atoms(self, samples: Array, labels: Array) -> Array:
        """Return random samples of each class (d, m), the first D, and set atom_classes_."""
        atoms = random_atoms(labels, self.atoms_per_class, self.random_state)
        self.atom_classes_ = labels[atoms]
        return samples[:, atoms]

    def _learn_linear(self, codes: Array, labels: Array) -> None:
        """Learn W on codes (m, n)."""
        check_codes(codes)
        self.codes_ = codes
        self.W_ = ridge(codes, one_hot(labels, len(self.classes_)), self.eta)

    def _scores(self, samples: Array) -> Array:
        scores: Array = self.W_ @ self.code(samples)
        return scores


def random_atoms(labels: Array, per_class: int | None, random_state: Any) -> Array:
    """Return indices of random samples of each class, as in the published experiments."""
    rng = check_random_state(random_state)
    members = [np.flatnonzero(labels == c) for c in range(labels.max() + 1)]
    return np.concatenate([np.sort(rng.permutation(own)[:per_class]) for own in members])


def check_codes(codes: Array) -> None:
    """Raise TrainingError if all codes are zero, within the tolerance of the solvers: such a model is useless."""
    if not np.isfinite(codes).all() or np.abs(codes).max() < 1e-3:
        raise TrainingError(COLLAPSED, "Use a larger lam.")
