"""Cross-validation of a model on its own training photos: how well are people recognised in photos that it has not seen?

The photos of each person are dealt to folds. For each fold the model is trained again without its photos, and they are scored.
So every photo of a person with at least two is a new photo once. A model of shards is trained again once, and only some photos
are left out. Photos whose names are probably wrong (Model.training["doubted"]) take no part.

Each of these models has fewer photos than the real one, which is a little better. The threshold is that of the real one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edge.vision.confidence import score_confidence
from trainer.data.gallery import Gallery, crop_digests
from trainer.evaluation.measures import Point, Share, operating_point
from trainer.evaluation.trials import Trials
from trainer.model import Model
from trainer.types import Array, Progress, silent

FOLDS = 5
MAX_TESTED = 2048  # photos that are left out of a model of shards
NOT_TESTED = -1  # fold of a photo that is never left out

Learn = Callable[[Array], Model]
"""Trains the model again on some of its photos (N,), as bool."""


@dataclass(frozen=True, kw_only=True)
class PersonResult:
    """How well one person is recognised."""

    name: str
    photos: int
    """Photos that the model is trained on."""
    tested: int
    """Photos that were left out once; 0 if the person has only one."""
    recognised: int
    """Tested photos that get the right name, at the threshold of the model if it has one."""
    confidence: float | None
    """Mean confidence of the right name; 0 counts for a photo where another name is first. None if no photo was tested."""
    taken_for: str
    """The person most often confused with this one, or empty."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CrossValidation:
    """The result: trials, and what follows from them."""

    folds: int
    trials: Trials
    """One for each tested photo."""
    photos: dict[str, int]
    """Photos of each person that the model is trained on."""

    @cached_property
    def recognised(self) -> Share:
        """Photos whose person has the highest score."""
        return Share.among(self.trials.rank == 1)

    @cached_property
    def own(self) -> Point | None:
        """The error rates at the threshold of the model: `fnir` are the misses to expect. None without a threshold."""
        return None if self.trials.threshold is None else operating_point(self.trials, self.trials.threshold)

    @cached_property
    def people(self) -> tuple[PersonResult, ...]:
        """The result of each person, in the order of the model."""
        trials = self.trials
        right = trials.genuine >= (0 if trials.threshold is None else trials.threshold)
        of_person = _indices(trials.truth, len(trials.labels))
        return tuple(self._person(name, of_person[number], right) for number, name in enumerate(trials.labels))

    def _person(self, name: str, own: Array, right: Array) -> PersonResult:
        trials = self.trials
        confused = Counter(trials.nearest[own[trials.rank[own] > 1]].tolist()).most_common(1)
        return PersonResult(
            name=name,
            photos=self.photos.get(name, 0),
            tested=len(own),
            recognised=int(right[own].sum()),
            confidence=float(np.maximum(trials.genuine[own], 0).mean()) if len(own) else None,
            taken_for=trials.labels[confused[0][0]] if confused else "",
        )


def _indices(classes: Array, number: int) -> list[Array]:
    """Return the indices of each class 0 to number-1."""
    order = np.argsort(classes, kind="stable")
    return np.split(order, np.searchsorted(classes[order], np.arange(1, number)))


def cross_validate(model: Model, gallery: Gallery, learn: Learn, *, progress: Progress = silent) -> CrossValidation | None:
    """Cross-validate a model that was trained on this gallery. None if nobody has two photos.

    `learn` trains it again (trainer.training.retrained). The network is not run: its vectors are known from the training.
    """
    trusted = np.ones(len(gallery.labels), bool)
    trusted[[photo for photo, _ in model.training.get("doubted", ())]] = False
    is_plain = model.sharded is None
    fold = folds_of(gallery.labels, trusted) if is_plain else one_split(gallery.labels, trusted)
    tested = np.flatnonzero(fold != NOT_TESTED)
    if not len(tested):
        return None
    folds = int(fold.max()) + 1
    scores = np.zeros((len(gallery.labels), len(model.labels)), np.float64) if is_plain else np.zeros((0, 0))
    for k in range(folds):
        progress(k, folds)
        left_out = np.flatnonzero(fold == k)
        if model.sharded is not None and model.sharded.embeddings is not None and model.spec.network is not None:
            vectors = model.sharded.embeddings[left_out, 0]
            model.spec.network.known.update(zip(crop_digests(gallery.images[left_out]), vectors, strict=True))
        found = learn(trusted & (fold != k)).scores(gallery.images[left_out])
        if is_plain:
            scores[left_out] = found
        else:
            scores = found.astype(np.float64)
    progress(folds, folds)
    labels = gallery.labels[trusted].tolist()
    return CrossValidation(
        folds=folds, trials=_trials(model, gallery, tested, scores[tested] if is_plain else scores), photos=Counter(labels)
    )


def _trials(model: Model, gallery: Gallery, tested: Array, scores: Array) -> Trials:
    index = {label: number for number, label in enumerate(model.labels)}
    return Trials(
        labels=model.labels,
        scores=scores,
        confidence=score_confidence(scores, model.confidence).astype(np.float64),
        truth=np.array([index[label] for label in gallery.labels[tested]]),
        people=gallery.labels[tested],
        conditions=np.full(len(tested), ""),
        sources=tuple(gallery.sources[photo] for photo in tested),
        crops=gallery.images[tested],
        not_acquired=gallery.rejected,
        threshold=None if model.calibration is None else model.calibration.confidence,
    )


def folds_of(labels: Array, trusted: Array, most: int = FOLDS) -> Array:
    """Return the fold (N,) of each trusted photo of a person with at least two of them, else NOT_TESTED.

    At least one photo of a person is outside each fold.
    """
    fold = np.full(len(labels), NOT_TESTED)
    members = _trusted_photos(labels, trusted)
    folds = min(most, max((len(own) for own in members), default=0))
    for number, own in enumerate(members):
        if len(own) > 1:
            fold[own] = (number + np.arange(len(own))) % folds
    used = np.unique(fold[fold != NOT_TESTED])
    return np.where(fold == NOT_TESTED, NOT_TESTED, np.searchsorted(used, fold))


def one_split(labels: Array, trusted: Array, most: int = MAX_TESTED) -> Array:
    """Return 0 (N,) for one photo each of at most `most` people who have two or more, and NOT_TESTED for all others."""
    fold = np.full(len(labels), NOT_TESTED)
    last = np.array([own[-1] for own in _trusted_photos(labels, trusted) if len(own) > 1], int)
    chosen = np.unique(np.linspace(0, len(last) - 1, min(most, len(last))).astype(int))
    fold[last[chosen]] = 0
    return fold


def _trusted_photos(labels: Array, trusted: Array) -> list[Array]:
    """Return the indices of the trusted photos of each person, shuffled in a fixed way."""
    people, classes = np.unique(labels, return_inverse=True)
    order = np.random.default_rng(0).permutation(np.flatnonzero(trusted))
    return [order[own] for own in _indices(classes[order], len(people))]
