"""LCLRRDL as a scikit-learn classifier: a thin shell around solver, coder and classifier. Samples are rows only here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from sklearn.utils.validation import check_random_state

from edge.errors import ParameterError, TrainingError
from edge.vision.preprocess import LANDMARK_TEMPLATES
from trainer.data import augment
from trainer.data.label_noise import apparent_classes
from trainer.features.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.features.spec import Spec
from trainer.method.base import CodeClassifier, check_count, check_positive, random_atoms
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.solver import SCHEDULES, Schedule, SolverResult, Step, locality_weights, solve
from trainer.presets import ETA
from trainer.types import Array


class LCLRRDL(CodeClassifier):
    """Locality-constrained low-rank representation with dictionary learning (problem 5), and its linear classifier.

    Parameters
    ----------
    atoms_per_class : dictionary atoms for each class; a class with fewer samples gets as many as it has.
    lam, alpha, gamma : weights of the error, of locality and of the dictionary's size in problem 5.
    eta : ridge of the classifier (eq. 8).
    locality : form of R, "exp" (as in the published experiments) or "squared" (as printed).
    schedule : "fast", "paper" or a Schedule.
    coding : how a face is coded at test time: "l1", "l21", "batch" or a Coding.
    code_lam : weight of the error there, for l1 and batch over sqrt(d) (Coding.weighted); None for the coding's own.
    classifier_codes : W is learned on codes made by that coder ("coder") or on the Z of training ("training", as printed).
    features : None where X holds vectors (n, d), which are brought to unit length; or a Spec where X
        holds grey crops, (n, H, W) or flattened.
    parts : None, or the grid (rows, columns) of the parts of the face that are scored beside the whole (trainer.features.parts).
    copies : altered copies of each crop (trainer.data.augment) that W is learned on, beside the crops.
    doubt : leave samples that look like another class to all others out of W: wrong names (trainer.data.label_noise).
    random_state : seed of the choice of the first atoms, and of the copies.
    callback : called with a Step after each iteration of the solver.

    Attributes: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), result_ (SolverResult), coder_,
    codes_ (m, n), those that W was learned on, part_rows_, part_coders_, W_parts_ (P, C, m), n_iter_,
    looks_like_ (n,), the class of each sample to all others: its label, unless it was doubted.
    """

    def __init__(
        self,
        atoms_per_class: int = 5,
        *,
        lam: float = 25.0,
        alpha: float = 0.5,
        gamma: float = 0.05,
        eta: float = ETA,
        locality: str = "exp",
        schedule: str | Schedule = "fast",
        coding: str | Coding = "l1",
        code_lam: float | None = None,
        classifier_codes: str = "coder",
        features: Spec | None = None,
        parts: Grid | None = None,
        copies: int = 0,
        doubt: bool = True,
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
        self.code_lam = code_lam
        self.classifier_codes = classifier_codes
        self.features = features
        self.parts = parts
        self.copies = copies
        self.doubt = doubt
        self.random_state = random_state
        self.callback = callback

    def fit(self, X: Array, y: Array) -> LCLRRDL:
        """Learn D and W from samples X and their labels y."""
        samples, labels = self._begin(X, y)
        atoms = random_atoms(labels, self.atoms_per_class, self.random_state)
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

    def _learn_classifier(self, X: Array, samples: Array, labels: Array) -> LCLRRDL:
        coding, told, classes = self._coding(len(samples)), labels, len(self.classes_)
        self.coder_ = Coder(self.D_.astype(np.float32), coding)
        weights = np.ones(len(told))
        if self.copies:
            # All copies of a crop together count as much as the crop: with more, strangers pass for people they look like.
            weights = np.repeat([1, 1 / self.copies], [len(told), self.copies * len(told)])
            samples, labels = np.hstack([samples, self._copies(X).T]), np.tile(told, 1 + self.copies)
        self.codes_ = self.coder_.code(samples) if self.classifier_codes == "coder" else self.result_.Z
        if np.abs(self.codes_).max() < 1e-5:
            raise TrainingError(
                "The coder codes every face as zero, so nobody could be told apart.", "Use a larger lam of the coding."
            )
        self.part_rows_ = part_rows(self.features, self.parts)
        self.part_coders_ = part_coders(self.coder_.D, self.part_rows_, coding)
        of_parts = [coder.code(unit_part(samples, own)) for coder, own in zip(self.part_coders_, self.part_rows_, strict=True)]
        codes = [self.codes_, *of_parts]
        seen = apparent_classes([Z[:, : len(told)] for Z in codes], told, classes, self.eta) if self.doubt else told
        self.looks_like_ = self.classes_[seen]
        weights *= np.tile(seen == told, 1 + self.copies)
        H = one_hot(labels, classes)
        self.W_, *W_parts = (ridge(Z, H, self.eta, weights) for Z in codes)
        self.W_parts_ = np.array(W_parts).reshape(-1, *self.W_.shape)
        return self

    def code(self, samples: Array) -> Array:
        """Z (m, n) of samples (d, n), as the device makes it."""
        return self.coder_.code(samples)

    def _scores(self, samples: Array) -> Array:
        parts = zip(self.W_parts_, self.part_coders_, self.part_rows_, strict=True)
        of_parts = [W @ coder.code(unit_part(samples, own)) for W, coder, own in parts]
        return fuse([super()._scores(samples), *of_parts])

    def _copies(self, X: Array) -> Array:
        """Feature rows of altered copies of the crops. D does without them: learned on them too, it recognised fewer."""
        spec = self.features
        assert spec is not None
        crops = np.reshape(X, (-1, spec.height, spec.width)).astype(np.uint8)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        return spec.vectors(augment.copies(crops, self.copies, rng, LANDMARK_TEMPLATES[spec.alignment]))

    def _coding(self, d: int) -> Coding:
        if isinstance(self.coding, Coding):
            return self.coding
        coding = Coding.default(self.coding)
        return coding if self.code_lam is None else coding.weighted(self.code_lam, d)

    def _check_parameters(self) -> None:
        check_count(self, "atoms_per_class")
        check_count(self, "copies", least=0)
        check_positive(self, "lam", "alpha", "gamma", "eta")
        if not isinstance(self.schedule, Schedule) and self.schedule not in SCHEDULES:
            raise ParameterError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.copies and (self.features is None or self.classifier_codes != "coder"):
            raise ParameterError("copies are made of crops and coded by the coder: set features and classifier_codes=coder")
        if self.classifier_codes not in ("coder", "training"):
            raise ParameterError(f"classifier_codes must be coder or training, not {self.classifier_codes!r}")
        if self.code_lam is not None:
            check_positive(self, "code_lam")
        self._coding(1)


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
