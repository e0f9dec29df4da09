"""From photos to trials: the model or kit scores every photo, and the result is stored beside the true person."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import GalleryError, ModelError, UsageError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.text import plural, some
from edge.vision.confidence import score_confidence
from edge.vision.recognize import Recognizer
from trainer.data import gallery
from trainer.data.gallery import Gallery, RejectedPhoto
from trainer.model import Model, PlainModel
from trainer.types import Array

CHUNK = 256  # crops per call of the graph, to bound memory
NOT_NAMED = -2.0  # confidence of a crop that the kit does not name whatever its scores: below every threshold


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluatedSystem:
    """The model or kit that is evaluated."""

    kind: str  # model or kit
    file: str  # the name of its file
    labels: tuple[str, ...]
    crop_shape: tuple[int, ...]  # (height, width), or (height, width, 3) in colour
    alignment: str
    threshold: float | None  # the confidence that a label needs; None if it was never measured
    provisional: bool  # whether the threshold was set without strangers
    features: str
    coding: str
    photos: str  # fingerprint of the training photos
    score: Callable[[Array], tuple[Array, Array]]  # return scores (N, C) and confidence (N,) of crops (N, *crop_shape)
    model: Model | None = None  # for the pictures, and to leave out its training photos

    @property
    def plain(self) -> PlainModel | None:
        """The model, if it has one dictionary."""
        return None if self.model is None else self.model.plain


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One photo and its result."""

    index: int  # in the trials
    person: str
    source: str
    condition: str
    nearest: str  # the label with the highest score
    confidence: float | None  # None if the kit does not name the photo whatever its confidence
    rank: int  # rank of the right person; 0 for a stranger
    named: bool  # whether `nearest` is given as the label


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """All photos, their scores and the true people. Every measure is computed from this."""

    labels: tuple[str, ...]  # the enrolled people, in the order of the scores
    scores: Array  # (N, C)
    confidence: Array  # (N,), NOT_NAMED where the kit gives no label for another reason
    truth: Array  # (N,) index into labels; -1 for a stranger
    people: Array  # (N,) names
    conditions: Array  # (N,) names; empty if there is none
    sources: tuple[str, ...]
    crops: Array  # (N, H, W) uint8, or BGR (N, H, W, 3)
    not_acquired: tuple[RejectedPhoto, ...] = ()  # failures to acquire: photos without a usable face
    threshold: float | None = None  # of the model or kit

    @cached_property
    def enrolled(self) -> Array:
        return self.truth >= 0

    @cached_property
    def named(self) -> Array:
        """(N,) whether the label with the highest score is given at the threshold; never without a threshold."""
        return self.confidence >= (np.inf if self.threshold is None else self.threshold)

    @cached_property
    def nearest(self) -> Array:
        """(N,) index of the highest score."""
        return self.scores.argmax(axis=1)

    @cached_property
    def true_score(self) -> Array:
        """(N,) score of the right person; without meaning for strangers."""
        return self.scores[np.arange(len(self.truth)), np.maximum(self.truth, 0)]

    @cached_property
    def rank(self) -> Array:
        """(N,) rank of the right person, from 1; in a tie the last place. 0 for strangers."""
        return np.where(self.enrolled, (self.scores >= self.true_score[:, None]).sum(axis=1), 0)

    @cached_property
    def genuine(self) -> Array:
        """(N,) confidence of the right label; NOT_NAMED if another label is first, and for strangers."""
        return np.where(self.rank == 1, self.confidence, NOT_NAMED)

    @cached_property
    def condition_names(self) -> tuple[str, ...]:
        """In order of appearance; empty if no photo has a condition."""
        names = dict.fromkeys([*self.conditions.tolist(), *(photo.condition for photo in self.not_acquired)])
        return tuple(names) if any(names) else ()

    def trial(self, i: Any) -> Trial:
        return Trial(
            index=int(i),
            person=str(self.people[i]),
            source=self.sources[i],
            condition=str(self.conditions[i]),
            nearest=self.labels[self.nearest[i]],
            confidence=None if self.confidence[i] == NOT_NAMED else float(self.confidence[i]),
            rank=int(self.rank[i]),
            named=bool(self.named[i]),
        )


def open_system(file: Path, model_file: Path | None = None) -> EvaluatedSystem:
    """Read a model, or a kit and if given the model that it was made from."""
    try:
        with zipfile.ZipFile(file) as archive:
            is_model = kits.MANIFEST not in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        is_model = file.suffix != ".kit"
    if is_model:
        if model_file is not None:
            raise UsageError(f"{file} is a model, not a kit.", "Use --model with a kit only.")
        return system_of_model(Model.load(file), file.name)
    system = system_of_kit(kits.read(file), file.name)
    if model_file is None:
        return system
    model = Model.load(model_file)
    if model.labels != system.labels or model.fingerprint != system.photos:
        raise ModelError(f"The kit was not made from {model_file}.", "Pass the model that it was built from.")
    return replace(system, model=model)


def system_of_model(model: Model, file: str = "") -> EvaluatedSystem:
    def score(crops: Array) -> tuple[Array, Array]:
        scores = model.scores(crops)
        return scores, score_confidence(scores, model.confidence)

    return EvaluatedSystem(
        kind="model",
        file=file,
        labels=model.labels,
        crop_shape=model.spec.crop_shape,
        alignment=model.alignment,
        threshold=None if model.calibration is None else model.calibration.confidence,
        provisional=False,
        features=model.spec.kind,
        coding=model.coding.kind,
        photos=model.fingerprint,
        score=score,
        model=model,
    )


def system_of_kit(kit: Kit, file: str = "") -> EvaluatedSystem:
    recognizer, manifest = Recognizer(kit), kit.manifest

    def score(crops: Array) -> tuple[Array, Array]:
        chunks = [recognizer.outputs(crops[i : i + CHUNK]) for i in range(0, len(crops), CHUNK)]
        found = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        finite = np.all([np.isfinite(found[name].reshape(len(crops), -1)).all(axis=1) for name in found], axis=0)
        like_a_face = (found["residual"] <= manifest.thresholds.residual) & (found["code_norm"] > 0)
        scores = np.where(finite[:, None], found["scores"], 0)
        return scores, np.where(finite & like_a_face, found["confidence"], NOT_NAMED)

    return EvaluatedSystem(
        kind="kit",
        file=file,
        labels=manifest.labels,
        crop_shape=manifest.crop_shape,
        alignment=manifest.alignment,
        threshold=manifest.thresholds.confidence,
        provisional=manifest.thresholds.provisional,
        features=str(manifest.features.get("kind", "")),
        coding=str(manifest.coding.get("kind", "")),
        photos=str(manifest.model.get("photos", "")),
        score=score,
    )


def run_trials(
    system: EvaluatedSystem, faces: Gallery, strangers: Gallery | None = None, pattern: re.Pattern[str] | None = None
) -> tuple[Trials, list[str]]:
    """Score every photo that the model was not trained on; return the trials and notes for the user. See `evaluate`."""
    notes: list[str] = []
    index = {label: i for i, label in enumerate(system.labels)}
    enrolled = np.array([label in index for label in faces.labels])
    if not enrolled.any():
        message = f"The photos show no person who is enrolled in the {system.kind}."
        raise GalleryError(message, "Name the people as in training.")
    used, not_acquired = np.ones(len(enrolled), bool), list(faces.rejected)
    if strangers is not None and not enrolled.all():
        used &= enrolled
        not_acquired = [photo for photo in not_acquired if photo.person in index]
        notes.append(f"Left out: {plural((~enrolled).sum(), 'photo')} of people who are not enrolled in the {system.kind}.")
    if system.model is None:
        trained = np.full(len(enrolled), faces.fingerprint == system.photos)
    else:
        seen = set(gallery.crop_digests(system.model.crops))
        trained = np.array([digest in seen for digest in gallery.crop_digests(faces.images)])
    if trained.any():  # results on these would look too good
        used &= ~trained
        notes.append(f"Left out: {plural(trained.sum(), 'photo')} that the {system.kind} was trained on.")
    if not (used & enrolled).any():
        message = f"The {system.kind} was trained on all photos of enrolled people."
        raise GalleryError(message, "Pass photos that it was not trained on.")

    photos = faces.selected(used)
    truth = [index.get(str(label), -1) for label in photos.labels]
    conditions = [faces.conditions[i] if faces.conditions else "" for i in np.flatnonzero(used)]
    if strangers is not None:
        gallery.check_not_enrolled(strangers, chain(faces.images[enrolled], system.model.crops if system.model else ()))
        photos = photos.joined(strangers)
        truth += [-1] * len(strangers.labels)
        conditions += strangers.conditions or [""] * len(strangers.labels)
        not_acquired += strangers.rejected
        same_name = sorted(set(strangers.people) & set(index))
        if same_name:
            notes.append(f"Strangers with the name of an enrolled person count as strangers: {some(same_name)}.")
    if pattern is not None:
        conditions = [_condition(pattern, source) for source in photos.sources]
        not_acquired = [replace(photo, condition=_condition(pattern, photo.source)) for photo in not_acquired]
        if not any(conditions):
            raise UsageError(f"--condition does not match {photos.sources[0]}, nor any other name.", "Check the expression.")
    scores, confidence = system.score(photos.images)
    trials = Trials(
        labels=system.labels,
        scores=scores.astype(np.float64),
        confidence=confidence.astype(np.float64),
        truth=np.array(truth),
        people=photos.labels,
        conditions=np.array(conditions),
        sources=photos.sources,
        crops=photos.images,
        not_acquired=tuple(not_acquired),
    )
    return trials, notes


def _condition(pattern: re.Pattern[str], source: str) -> str:
    match = pattern.search(source)
    return "" if match is None else (match[1] if pattern.groups else match[0]) or ""
