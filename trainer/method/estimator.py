"""LCLRRDL as a scikit-learn classifier: a thin layer over solver, coder and classifier. Only here samples are rows."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Self

import numpy as np
from sklearn.utils.validation import check_random_state

from edge.errors import ParameterError, TrainingError
from edge.vision.preprocess import LANDMARK_TEMPLATES
from trainer.data import augment
from trainer.method.base import COLLAPSED, CodeClassifier
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.label_noise import apparent_classes
from trainer.method.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.method.solver import SCHEDULES, Schedule, SolverResult, Step, locality_weights, solve
from trainer.presets import ETA
from trainer.types import Array


@dataclass(eq=False, repr=False)
class LCLRRDL(CodeClassifier):
    """Locality-constrained low-rank representation with dictionary learning (problem 5), and its linear classifier.

    Learned: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), result_ (SolverResult), coder_, codes_ (m, n), part_rows_,
    part_coders_, W_parts_ (P, C, m), n_iter_, looks_like_ (n,): the class of each sample according to all other samples.
    """

    _: KW_ONLY
    lam: float = 25.0
    """Weight of the error in problem 5."""
    alpha: float = 0.5
    """Weight of locality."""
    gamma: float = 0.05
    """Weight of the dictionary's size."""
    eta: float = ETA
    """Ridge of the classifier (eq. 8)."""
    locality: str = "exp"
    """Form of R: "exp" (as in the published experiments) or "squared" (as printed)."""
    schedule: str | Schedule = "fast"
    """A name in SCHEDULES, or a Schedule."""
    coding: str | Coding = "l1"
    """How a face is coded at test time: "l1", "l21", "batch" or a Coding."""
    code_lam: float | None = None
    """Weight of the error in `coding` (Coding.weighted). None: the default of the coding."""
    classifier_codes: str = "coder"
    """W is learned on codes of this coder ("coder") or on the Z of training ("training", as printed)."""
    parts: Grid | None = None
    """Grid (rows, columns) of the parts that are scored beside the whole face (trainer.method.parts)."""
    copies: int = field(default=0, metadata={"least": 0})
    """Altered copies of each crop (trainer.data.augment) that W is learned on too."""
    doubt: bool = True
    """Leave samples out of W that look like another class to all other samples: wrong names (trainer.method.label_noise)."""
    callback: Callable[[Step], None] | None = None
    """Called with a Step after each iteration of the solver."""

    def fit(self, X: Array, y: Array) -> Self:
        """Learn D and W from samples X and their labels y."""
        samples, labels = self._begin(X, y)
        D0 = self._choose_atoms(samples, labels)
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
        check_solution(self.result_)
        self.n_iter_ = self.result_.iterations
        self.D_ = self.result_.D
        return self._learn_classifier(X, samples, labels)

    def fit_classifier(self, X: Array, y: Array, D: Array, atom_labels: Array) -> Self:
        """Learn only W, for a given dictionary D (d, m) and the classes of its atoms (m,)."""
        samples, labels = self._begin(X, y)
        self.D_, self.atom_classes_, self.n_iter_ = D, np.searchsorted(self.classes_, atom_labels), 0
        return self._learn_classifier(X, samples, labels)

    def _learn_classifier(self, X: Array, samples: Array, labels: Array) -> Self:
        coding, given, classes = self._coding(len(samples)), labels, len(self.classes_)
        self.coder_ = Coder(self.D_.astype(np.float32), coding)
        weights = np.ones(len(given))
        if self.copies:
            # All copies of a crop together weigh as much as the crop. With more weight, more strangers are accepted.
            weights = np.repeat([1, 1 / self.copies], [len(given), self.copies * len(given)])
            samples, labels = np.hstack([samples, self._copies(X).T]), np.tile(given, 1 + self.copies)
        self.codes_ = self.coder_.code(samples) if self.classifier_codes == "coder" else self.result_.Z
        if np.abs(self.codes_).max() < 1e-5:
            raise TrainingError("Every code is zero, so people cannot be distinguished.", "Use a larger lam of the coding.")
        self.part_rows_ = part_rows(self.features, self.parts)
        self.part_coders_ = part_coders(self.coder_.D, self.part_rows_, coding)
        of_parts = [coder.code(unit_part(samples, own)) for coder, own in zip(self.part_coders_, self.part_rows_, strict=True)]
        codes = [self.codes_, *of_parts]
        seen = apparent_classes([Z[:, : len(given)] for Z in codes], given, classes, self.eta) if self.doubt else given
        self.looks_like_ = self.classes_[seen]
        weights *= np.tile(seen == given, 1 + self.copies)
        H = one_hot(labels, classes)
        self.W_, *W_parts = (ridge(Z, H, self.eta, weights) for Z in codes)
        self.W_parts_ = np.array(W_parts).reshape(-1, *self.W_.shape)
        return self

    def code(self, samples: Array) -> Array:
        return self.coder_.code(samples)

    def _scores(self, samples: Array) -> Array:
        parts = zip(self.W_parts_, self.part_coders_, self.part_rows_, strict=True)
        of_parts = [W @ coder.code(unit_part(samples, own)) for W, coder, own in parts]
        return fuse([super()._scores(samples), *of_parts])

    def _copies(self, X: Array) -> Array:
        """Return feature rows of altered copies of the crops. D is learned without them: with them the accuracy was lower."""
        spec = self.features
        assert spec is not None
        crops = np.reshape(X, (-1, *spec.crop_shape)).astype(np.uint8)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        return spec.vectors(augment.copies(crops, self.copies, rng, LANDMARK_TEMPLATES[spec.alignment]))

    def _coding(self, d: int) -> Coding:
        if isinstance(self.coding, Coding):
            return self.coding
        coding = Coding.default(self.coding)
        return coding if self.code_lam is None else coding.weighted(self.code_lam, d)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.schedule, Schedule) and self.schedule not in SCHEDULES:
            raise ParameterError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.copies and (self.features is None or self.classifier_codes != "coder"):
            raise ParameterError("copies need crops and the coder: set features, and classifier_codes=coder")
        self._coding(1)


def check_solution(result: SolverResult) -> None:
    """Raise TrainingError if the solution is not finite, all zero or not converged."""
    if not (np.isfinite(result.Z).all() and np.isfinite(result.D).all()):
        raise TrainingError("Training diverged: the solution is not finite.", "Use a larger gamma or the schedule `paper`.")
    # A zero solution may have entries up to the schedule's tolerance. The rank is exact.
    if result.rank == 0 or np.abs(result.Z).max() < 1e-3 or np.abs(result.D).max() < 1e-6:
        raise TrainingError(COLLAPSED, "Use a larger lam or a smaller alpha.")
    if not result.converged:
        raise TrainingError(
            f"Training did not converge in {result.iterations} iterations.", "Use the schedule `fast`, or a lam nearer to 25."
        )
