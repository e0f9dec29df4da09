"""LCLRRDL as a scikit-learn classifier: a thin layer over solver, coder and classifier. Only here samples are rows."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Self

import numpy as np
from sklearn.utils.validation import check_random_state

from edge.errors import ParameterError, TrainingError
from edge.kit.manifest import ABSOLUTE, RELATIVE
from edge.vision.preprocess import CHUNK, LANDMARK_TEMPLATES, unit_rows
from trainer.data import augment
from trainer.data.covered import covered_embeddings
from trainer.method.base import COLLAPSED, CodeClassifier, check_codes, random_atoms
from trainer.method.classifier import one_hot, ridge
from trainer.method.coding import Coder, Coding
from trainer.method.experts import DOUBT_ETA, OWN_ETA, expert_rows, person_means, scaled, unit_ridge
from trainer.method.label_noise import apparent_classes
from trainer.method.locality import locality_weights
from trainer.method.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.method.result import SolverResult
from trainer.method.solver import SCHEDULES, Schedule, Step, solve
from trainer.presets import ETA
from trainer.types import Array


@dataclass(eq=False, repr=False)
class LCLRRDL(CodeClassifier):
    """Locality-constrained low-rank representation with dictionary learning (problem 5), and its linear classifier.

    Learned: classes_, D_ (d, m), W_ (C, m), atom_classes_ (m,), result_ (SolverResult), coder_, codes_ (m, n), part_rows_,
    part_coders_, W_parts_ (P, C, m), n_iter_, looks_like_ (n,): the class of each sample according to all other samples.
    With experts, D_ has the dictionary of each expert in its rows, coder_ and W_ are those of the network, the only part is
    that of our own features, and templates_ (C, d) is the cosine.
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
    label_weight: float = field(default=0.0, metadata={"least": 0})
    """Weight of labels as rows of X while D is learned: [X; weight H] = [D; B] Z + E. 0: none, as printed. See method.md."""
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
    experts: bool = False
    """Add up the scores of a network, of our own features beside it and of the cosine (trainer.method.experts)."""
    copies: int = field(default=0, metadata={"least": 0})
    """Altered copies of each crop (trainer.data.augment) that W is learned on too."""
    covered: bool = False
    """Experts: learn W of the network also on copies with a painted mask, sunglasses and scarf (trainer.data.augment)."""
    doubt: bool = True
    """Leave samples out of W that look like another class to all other samples: wrong names (trainer.method.label_noise)."""
    callback: Callable[[Step], None] | None = None
    """Called with a Step after each iteration of the solver."""

    def fit(self, X: Array, y: Array, certain: Array | None = None) -> Self:
        """Learn D and W from samples X and their labels y. Labels in `certain` (n,), as bool, are never doubted."""
        samples, labels = self._begin(X, y)
        rows = expert_rows(self.features) if self.experts else None
        results, self.atom_classes_ = self.learn_dictionary(samples, labels, rows)
        self.result_, self.D_ = results[0], np.vstack([result.D for result in results])
        self.n_iter_ = self.result_.iterations
        return self._learn_classifier(X, samples, labels, certain)

    def learn_dictionary(
        self, samples: Array, labels: Array, rows: Sequence[Array] | None = None
    ) -> tuple[list[SolverResult], Array]:
        """Return Algorithm 1 on samples (d, n) of classes (n,), and the classes of the atoms (m,).

        `rows`: of each expert, which has a dictionary of its own.
        """
        atoms = random_atoms(labels, self.atoms_per_class, self.random_state)
        of_experts = [samples] if rows is None else [unit_part(samples, own) for own in rows]
        return [self._solve(own, labels, atoms) for own in of_experts], labels[atoms]

    def fit_classifier(self, X: Array, y: Array, D: Array, atom_labels: Array) -> Self:
        """Learn only W, for a given dictionary D (d, m) and the classes of its atoms (m,)."""
        samples, labels = self._begin(X, y)
        self.D_, self.atom_classes_, self.n_iter_ = D, np.searchsorted(self.classes_, atom_labels), 0
        return self._learn_classifier(X, samples, labels)

    def _solve(self, samples: Array, labels: Array, atoms: Array) -> SolverResult:
        """Algorithm 1 on samples (d, n) and their labels, from the samples `atoms` as D. The result is without label rows."""
        d, R = len(samples), locality_weights(samples, samples[:, atoms], self.locality)
        X = np.vstack([samples, self.label_weight * one_hot(labels, labels.max() + 1)]) if self.label_weight else samples
        result = solve(
            X,
            X[:, atoms],
            R,
            lam=self.lam,
            alpha=self.alpha,
            gamma=self.gamma,
            schedule=self.schedule if isinstance(self.schedule, Schedule) else SCHEDULES[self.schedule],
            callback=self.callback,
        )
        check_solution(result)
        return replace(result, D=result.D[:d], E=result.E[:d])

    def _learn_classifier(self, X: Array, samples: Array, labels: Array, certain: Array | None = None) -> Self:
        if self.experts:
            return self._learn_experts(X, samples, labels, certain)
        coding, given, classes = self.coding_for(len(samples)), labels, len(self.classes_)
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
        own_codes = [Z[:, : len(given)] for Z in codes]
        seen = apparent_classes(own_codes, given, classes, self.eta, certain) if self.doubt else given
        self.looks_like_ = self.classes_[seen]
        weights *= np.tile(seen == given, 1 + self.copies)
        H = one_hot(labels, classes)
        self.W_, *W_parts = (ridge(Z, H, self.eta, weights) for Z in codes)
        self.W_parts_ = np.array(W_parts).reshape(-1, *self.W_.shape)
        return self

    def _learn_experts(self, X: Array, samples: Array, labels: Array, certain: Array | None) -> Self:
        rows = expert_rows(self.features)
        vectors = [unit_part(samples, own) for own in rows]
        self.network_rows_, *self.part_rows_ = rows
        self.coder_, *self.part_coders_ = coders = part_coders(self.D_.astype(np.float32), rows, self.coding_for(len(samples)))
        self.codes_, *part_codes = codes = [coder.code(own) for coder, own in zip(coders, vectors, strict=True)]
        check_codes(self.codes_)
        seen = apparent_classes(codes, labels, len(self.classes_), DOUBT_ETA, certain) if self.doubt else labels
        self.looks_like_ = self.classes_[seen]
        H = one_hot(labels, len(self.classes_)) * (seen == labels)
        Z, H_copies = self.codes_, H
        if self.covered:
            copies = self._covered(X)
            repeats = copies.shape[1] // len(labels)
            # All covered copies of a crop together weigh as much as the crop.
            Z, H_copies = np.hstack([Z, self.coder_.code(copies)]), np.hstack([H, *repeats * [H / repeats]])
        W = [unit_ridge(Z, H_copies, self.eta), *(unit_ridge(own, H, OWN_ETA) for own in part_codes)]
        experts = scaled([person_means(vectors[0], H), *W], [vectors[0], *codes], H)
        self.templates_, self.W_, *W_parts = experts
        self.W_parts_ = np.array(W_parts).reshape(-1, *self.W_.shape)
        return self

    @property
    def confidence(self) -> str:
        """The kind of confidence that its scores have (edge.vision.confidence)."""
        return ABSOLUTE if self.experts else RELATIVE

    def code(self, samples: Array) -> Array:
        return self.coder_.code(unit_part(samples, self.network_rows_) if self.experts else samples)

    def _scores(self, samples: Array) -> Array:
        parts = zip(self.W_parts_, self.part_coders_, self.part_rows_, strict=True)
        scores = [super()._scores(samples), *(W @ coder.code(unit_part(samples, own)) for W, coder, own in parts)]
        if not self.experts:
            return fuse(scores)
        total: Array = self.templates_ @ unit_part(samples, self.network_rows_) + sum(scores)
        return total

    def _covered(self, X: Array) -> Array:
        """Return the network's unit vectors (d, k n) of the crops with painted covers: k copies of all crops, in turn."""
        spec = self.features
        assert spec is not None
        assert spec.network is not None
        crops = np.reshape(X, (-1, *spec.crop_shape)).astype(np.uint8)
        chunks = [covered_embeddings(spec.network, crops[i : i + CHUNK]) for i in range(0, len(crops), CHUNK)]
        rows = np.moveaxis(np.concatenate(chunks), 1, 0).reshape(-1, len(self.network_rows_))
        return unit_rows(rows).T

    def _copies(self, X: Array) -> Array:
        """Return feature rows of altered copies of the crops. D is learned without them: with them the accuracy was lower."""
        spec = self.features
        assert spec is not None
        crops = np.reshape(X, (-1, *spec.crop_shape)).astype(np.uint8)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        return spec.vectors(augment.copies(crops, self.copies, rng, LANDMARK_TEMPLATES[spec.alignment]))

    def coding_for(self, d: int) -> Coding:
        """Return the settings of the coder for samples of d features."""
        if isinstance(self.coding, Coding):
            return self.coding
        coding = Coding.default(self.coding)
        return coding if self.code_lam is None else coding.weighted(self.code_lam, d)

    def check_parameters(self) -> None:
        super().check_parameters()
        if not isinstance(self.schedule, Schedule) and self.schedule not in SCHEDULES:
            raise ParameterError(f"schedule must be one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        if self.label_weight and self.classifier_codes != "coder":
            raise ParameterError("classifier_codes=training needs label_weight=0: the Z of training contains the labels")
        if self.copies and (self.features is None or self.classifier_codes != "coder"):
            raise ParameterError("copies need crops and the coder: set features, and classifier_codes=coder")
        self.coding_for(1)
        if self.experts:
            expert_rows(self.features)
            if self.parts is not None or self.copies or self.classifier_codes != "coder" or self.coding_for(1).kind == "batch":
                raise ParameterError("experts need parts=None, copies=0, classifier_codes=coder and the coding l1 or l21")
        elif self.covered:
            raise ParameterError("covered needs experts")


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
