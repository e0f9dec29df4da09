"""LCLRRDL as a scikit-learn classifier: a thin shell around solver, coder and classifier. Samples are rows only here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from numbers import Integral
from typing import Any

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
from edge.manifest import ALIGNMENT, ARCFACE_ALIGNMENT
from edge.preprocess import PLACES, unit_rows
from trainer import augment
from trainer.backbone import Backbone, Spec, features
from trainer.classifier import one_hot, ridge
from trainer.coding import Coder, Coding
from trainer.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.prox import Array
from trainer.solver import SCHEDULES, Schedule, SolverResult, Step, locality_weights, solve


class LCLRRDL(ClassifierMixin, BaseEstimator):
    """Locality-constrained low-rank representation with dictionary learning (problem 5), and its linear classifier.

    Parameters
    ----------
    atoms_per_class : dictionary atoms for each class; a class with fewer samples gets as many as it has.
    lam, alpha, gamma : weights of the error, of locality and of the dictionary's size in problem 5.
    eta : ridge of the classifier (eq. 8).
    locality : form of R, "exp" (as in the published experiments) or "squared" (as printed).
    schedule : "fast", "paper" or a Schedule.
    coding : how a face is coded at test time: "l1", "l21", "batch" or a Coding.
    classifier_codes : W is learned on codes made by that coder ("coder") or on the Z of training ("training", as printed).
    features : None where X holds vectors (n, d), which are brought to unit length; or a FeatureSpec or Backbone where X
        holds grey crops, (n, H, W) or flattened.
    parts : None, or the grid (rows, columns) of the parts of the face that are scored beside the whole (trainer.parts).
    copies : altered copies of each crop (trainer.augment) that W is learned on, beside the crops.
    random_state : seed of the choice of the first atoms, and of the copies.
    callback : called with a Step after each iteration of the solver.

    Attributes: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), result_ (SolverResult), coder_,
    codes_ (m, n), those that W was learned on, part_rows_, part_coders_, W_parts_ (P, C, m), n_iter_.
    """

    def __init__(
        self,
        atoms_per_class: int = 5,
        *,
        lam: float = 25.0,
        alpha: float = 0.5,
        gamma: float = 0.05,
        eta: float = 3e-3,
        locality: str = "exp",
        schedule: str | Schedule = "fast",
        coding: str | Coding = "l1",
        classifier_codes: str = "coder",
        features: Spec | None = None,
        parts: Grid | None = None,
        copies: int = 0,
        random_state: int | None = 0,
        callback: Callable[[Step], None] | None = None,
    ) -> None:
        self.atoms_per_class = atoms_per_class
        self.lam = lam
        self.alpha = alpha
        self.gamma = gamma
        self.eta = eta
        self.locality = locality
        self.schedule = schedule
        self.coding = coding
        self.classifier_codes = classifier_codes
        self.features = features
        self.parts = parts
        self.copies = copies
        self.random_state = random_state
        self.callback = callback

    def fit(self, X: Array, y: Array) -> LCLRRDL:
        """Learn D and W from samples X and their labels y."""
        samples, labels = self._begin(X, y)
        atoms = self._choose_atoms(labels)
        D0 = samples[:, atoms]
        self.atom_classes_ = labels[atoms]
        self.result_ = solve(
            samples,
            D0,
            locality_weights(samples, D0, self.locality),
            lam=self.lam,
            alpha=self.alpha,
            gamma=self.gamma,
            schedule=self.schedule if isinstance(self.schedule, Schedule) else SCHEDULES[self.schedule],
            callback=self.callback,
        )
        refuse_collapse(self.result_)
        self.n_iter_ = self.result_.iterations
        self.D_ = self.result_.D
        return self._learn_classifier(X, samples, labels)

    def fit_classifier(self, X: Array, y: Array, D: Array, atom_labels: Array) -> LCLRRDL:
        """Learn W alone, for a dictionary D (d, m) that is there already, and the classes of its atoms (m,)."""
        samples, labels = self._begin(X, y)
        self.D_, self.atom_classes_, self.n_iter_ = D, np.searchsorted(self.classes_, atom_labels), 0
        return self._learn_classifier(X, samples, labels)

    def _begin(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Samples as unit columns, and their classes as numbers; both checked."""
        self._check_parameters()
        self._coding()
        rows, y = self._rows(X, y)
        with warnings.catch_warnings():  # one photo of each person are classes all the same
            warnings.filterwarnings("ignore", "The number of unique classes")
            check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise TrainingError("There is only one class in the training data.", "Add samples of at least one more person.")
        return rows.T.astype(np.float64), labels

    def _learn_classifier(self, X: Array, samples: Array, labels: Array) -> LCLRRDL:
        coding = self._coding()
        self.coder_ = Coder(self.D_.astype(np.float32), coding)
        weights = None
        if self.copies:
            # All copies of a crop together count as much as the crop: with more, strangers pass for people they look like.
            weights = np.repeat([1, 1 / self.copies], [len(labels), self.copies * len(labels)])
            samples, labels = np.hstack([samples, self._copies(X).T]), np.tile(labels, 1 + self.copies)
        self.codes_ = self.coder_.code(samples) if self.classifier_codes == "coder" else self.result_.Z
        if np.abs(self.codes_).max() < 1e-5:
            raise TrainingError(
                "The coder codes every face as zero, so nobody could be told apart.", "Use a larger lam of the coding."
            )
        H = one_hot(labels, len(self.classes_))
        self.W_ = ridge(self.codes_, H, self.eta, weights)
        self.part_rows_ = part_rows(self.features, self.parts)
        self.part_coders_ = part_coders(self.coder_.D, self.part_rows_, coding)
        codes = [coder.code(unit_part(samples, own)) for coder, own in zip(self.part_coders_, self.part_rows_, strict=True)]
        self.W_parts_ = np.array([ridge(Z, H, self.eta, weights) for Z in codes]).reshape(-1, *self.W_.shape)
        return self

    def decision_function(self, X: Array) -> Array:
        """Scores (n, C), one column per class; for two classes (n,), positive where the second wins."""
        check_is_fitted(self)
        rows, _ = self._rows(X)
        parts = zip(self.W_parts_, self.part_coders_, self.part_rows_, strict=True)
        of_parts = [W @ coder.code(unit_part(rows.T, own)) for W, coder, own in parts]
        scores = fuse([self.W_ @ self.coder_.code(rows.T), *of_parts]).T
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Array) -> Array:
        """The class of each sample."""
        scores = self.decision_function(X)
        best = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

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
        return features(crops.reshape(-1, spec.height, spec.width), spec), y

    def _copies(self, X: Array) -> Array:
        """Feature rows of altered copies of the crops. D does without them: learned on them too, it recognised fewer."""
        spec: Any = self.features
        crops = np.reshape(X, (-1, spec.height, spec.width)).astype(np.uint8)
        places = PLACES[ARCFACE_ALIGNMENT if isinstance(spec, Backbone) else ALIGNMENT]
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        return features(augment.copies(crops, self.copies, rng, places), spec)

    def _choose_atoms(self, labels: Array) -> Array:
        """Random training samples, per class: the first dictionary of the published experiments."""
        rng = check_random_state(self.random_state)
        members = [np.flatnonzero(labels == c) for c in range(len(self.classes_))]
        return np.concatenate([np.sort(rng.permutation(own)[: self.atoms_per_class]) for own in members])

    def _coding(self) -> Coding:
        return self.coding if isinstance(self.coding, Coding) else Coding.default(self.coding)

    def _check_parameters(self) -> None:
        atoms: Any = self.atoms_per_class  # nothing stops a caller from passing text
        if not isinstance(atoms, Integral) or atoms < 1:
            raise ParameterError(f"atoms_per_class must be a whole number from 1 on, not {atoms!r}")
        for name in ("lam", "alpha", "gamma", "eta"):
            value = getattr(self, name)
            if not isinstance(value, (int, float, np.number)) or not 0 < value < np.inf:
                raise ParameterError(f"{name} must be more than 0 and finite, not {value!r}")
        if not isinstance(self.schedule, Schedule) and self.schedule not in SCHEDULES:
            raise ParameterError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        copies: Any = self.copies
        if not isinstance(copies, Integral) or copies < 0:
            raise ParameterError(f"copies must be a whole number from 0 on, not {copies!r}")
        if copies and (self.features is None or self.classifier_codes != "coder"):
            raise ParameterError("copies are made of crops and coded by the coder: set features and classifier_codes=coder")
        if self.classifier_codes not in ("coder", "training"):
            raise ParameterError(f"classifier_codes must be coder or training, not {self.classifier_codes!r}")


def refuse_collapse(result: SolverResult) -> None:
    """An all-zero or runaway solution is never a success."""
    if not (np.isfinite(result.Z).all() and np.isfinite(result.D).all()):
        raise TrainingError("Training diverged: the solution is not finite.", "Use a larger gamma or the schedule `paper`.")
    # The tolerance of a schedule leaves up to 1e-4 of a zero: rank, which is exact, decides.
    if result.rank == 0 or np.abs(result.Z).max() < 1e-3 or np.abs(result.D).max() < 1e-6:
        raise TrainingError(
            "Training collapsed: every code is zero, so nobody could be told apart.",
            "Use a larger lam or a smaller alpha.",
        )
    if not result.converged:
        raise TrainingError(
            f"Training did not converge in {result.iterations} iterations.",
            "Use the schedule `fast`, or a lam nearer to 25.",
        )
