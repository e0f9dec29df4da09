"""From photos to trials: a model or a kit is shown every photo, and what it makes of them is kept beside who they show."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from edge.errors import GalleryError, ModelError, UsageError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.text import plural, some
from edge.vision.confidence import score_confidence
from edge.vision.recognize import Recognizer
from trainer.data import gallery
from trainer.data.gallery import Gallery, RejectedPhoto
from trainer.model import Model
from trainer.types import Array

CHUNK = 256  # crops given to a graph at once: bounds memory, changes nothing
REFUSED = -2.0  # the confidence of a face that the kit gives no name whatever its score: less than any threshold


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """What is measured: what a model and a kit have in common."""

    kind: str
    """model or kit."""
    file: str
    """Its name."""
    labels: tuple[str, ...]
    size: tuple[int, int]
    """(height, width) of a crop."""
    alignment: str
    threshold: float | None
    """The confidence that a name takes; None where it was never measured."""
    provisional: bool
    """Whether that was set without having seen strangers."""
    features: str
    coding: str
    photos: str
    """Fingerprint of the training photos."""
    score: Callable[[Array], tuple[Array, Array]]
    """Scores (N, C) and confidence (N,) of crops (N, H, W)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trials:
    """Photos, what was made of them, and who they really show: all that is measured follows from this."""

    labels: tuple[str, ...]
    """The enrolled people, in the order of the scores."""
    scores: Array
    """(N, C)."""
    confidence: Array
    """(N,), REFUSED where the kit gives no name for another reason."""
    truth: Array
    """(N,) index into labels; -1 for a stranger."""
    people: Array
    """(N,) names."""
    conditions: Array
    """(N,) names; empty where there is none."""
    sources: tuple[str, ...]
    crops: Array
    """(N, H, W) uint8."""
    refused: tuple[RejectedPhoto, ...] = ()
    """Photos without a usable face."""

    @cached_property
    def enrolled(self) -> Array:
        return self.truth >= 0

    @cached_property
    def named(self) -> Array:
        """(N,) index of the highest score."""
        return self.scores.argmax(axis=1)

    @cached_property
    def rank(self) -> Array:
        """(N,) place of the right person, from 1; a tie counts as lost. 0 for strangers."""
        own = np.take_along_axis(self.scores, np.maximum(self.truth, 0)[:, None], axis=1)
        return np.where(self.enrolled, (self.scores >= own).sum(axis=1), 0)

    @cached_property
    def genuine(self) -> Array:
        """(N,) confidence with which the right name is given; REFUSED where it comes second, and for strangers."""
        return np.where(self.rank == 1, self.confidence, REFUSED)

    @cached_property
    def own_score(self) -> Array:
        """(N,) score of the right person over the norm of all scores; 0 for strangers."""
        own = np.take_along_axis(self.scores, np.maximum(self.truth, 0)[:, None], axis=1)[:, 0]
        norm = np.linalg.norm(self.scores, axis=1)
        return np.where(self.enrolled & (norm > 0), own / np.where(norm > 0, norm, 1), 0)

    @cached_property
    def condition_names(self) -> tuple[str, ...]:
        """In the order in which they are met; none where photos have no condition."""
        names = dict.fromkeys([*self.conditions.tolist(), *(photo.condition for photo in self.refused)])
        return tuple(names) if any(names) else ()


def open_subject(file: Path, model_file: Path | None = None) -> tuple[Subject, Model | None]:
    """The model or kit in a file, and the model for the pictures if there is one."""
    if _is_model(file):
        if model_file is not None:
            raise UsageError(f"{file} is a model itself.", "Pass --model with a kit only.")
        model = Model.load(file)
        return of_model(model, file.name), model
    kit = kits.read(file)
    subject = of_kit(kit, file.name)
    if model_file is None:
        return subject, None
    model = Model.load(model_file)
    if model.labels != subject.labels or model.fingerprint != subject.photos:
        raise ModelError(f"The kit was not made from {model_file}.", "Pass the model that it was built from.")
    return subject, model


def _is_model(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return kits.MANIFEST not in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return file.suffix != ".kit"


def of_model(model: Model, file: str = "") -> Subject:
    def score(crops: Array) -> tuple[Array, Array]:
        scores = model.scores(crops)
        return scores, score_confidence(scores)

    return Subject(
        kind="model",
        file=file,
        labels=model.labels,
        size=(model.spec.height, model.spec.width),
        alignment=model.alignment,
        threshold=None if model.calibration is None else model.calibration.confidence,
        provisional=False,
        features=model.spec.kind,
        coding=model.coding.kind,
        photos=model.fingerprint,
        score=score,
    )


def of_kit(kit: Kit, file: str = "") -> Subject:
    recognizer, manifest = Recognizer(kit), kit.manifest

    def score(crops: Array) -> tuple[Array, Array]:
        chunks = [recognizer.outputs(crops[i : i + CHUNK]) for i in range(0, len(crops), CHUNK)]
        found = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        sound = np.all([np.isfinite(found[name].reshape(len(crops), -1)).all(axis=1) for name in found], axis=0)
        like = (found["residual"] <= manifest.thresholds.residual) & (found["code_norm"] > 0)
        scores = np.where(sound[:, None], found["scores"], 0)
        return scores, np.where(sound & like, found["confidence"], REFUSED)

    return Subject(
        kind="kit",
        file=file,
        labels=manifest.labels,
        size=manifest.size,
        alignment=manifest.alignment,
        threshold=manifest.thresholds.confidence,
        provisional=manifest.thresholds.provisional,
        features=str(manifest.features.get("kind", "")),
        coding=str(manifest.coding.get("kind", "")),
        photos=str(manifest.model.get("photos", "")),
        score=score,
    )


def try_out(
    subject: Subject,
    faces: Gallery,
    strangers: Gallery | None = None,
    *,
    model: Model | None = None,
    pattern: re.Pattern[str] | None = None,
) -> tuple[Trials, list[str]]:
    """Score every photo; and notes.

    People of `faces` whom the subject does not know are strangers, unless there are `strangers`. `model` tells which photos
    it was trained on. What the first group of `pattern`, or else all of it, finds in a photo's name is the photo's condition.
    """
    notes: list[str] = []
    index = {label: i for i, label in enumerate(subject.labels)}
    known = np.array([label in index for label in faces.labels])
    if not known.any():
        raise GalleryError(f"The photos show nobody whom the {subject.kind} knows.", "Name their people as in training.")
    keep = np.ones(len(known), bool)
    refused = list(faces.rejected)
    if strangers is not None and not known.all():
        keep &= known
        refused = [photo for photo in refused if photo.person in index]
        notes.append(f"Left out: {plural((~known).sum(), 'photo')} of people whom the {subject.kind} does not know.")
    trained = _trained_on(subject, model, faces)
    if trained.any():
        keep &= ~trained
        notes.append(f"Left out: {plural(trained.sum(), 'photo')} that the {subject.kind} was trained on.")
    if not (keep & known).any():
        raise GalleryError("All photos of people it knows are photos it was trained on.", "Pass photos that it has not seen.")

    parts = [(faces, keep, [index.get(str(label), -1) for label in faces.labels])]
    if strangers is not None:
        gallery.check_not_enrolled(strangers, [*faces.images[known], *(() if model is None else model.crops)])
        parts.append((strangers, np.ones(len(strangers.labels), bool), [-1] * len(strangers.labels)))
        refused += strangers.rejected
        alike = sorted(set(strangers.people) & set(index))
        if alike:
            notes.append(f"Strangers with a name that the {subject.kind} knows count as strangers: {some(alike)}.")
    sources = [name for part, kept, _ in parts for name, wanted in zip(part.sources, kept, strict=True) if wanted]
    conditions = [
        name
        for part, kept, _ in parts
        for name, wanted in zip(part.conditions or [""] * len(kept), kept, strict=True)
        if wanted
    ]
    if pattern is not None:
        conditions = [_condition(pattern, source) for source in sources]
        refused = [replace(photo, condition=_condition(pattern, photo.source)) for photo in refused]
        if not any(conditions):
            raise UsageError(f"--condition finds nothing in {sources[0]}, nor in any other name.", "Check the expression.")
    crops = np.concatenate([part.images[kept] for part, kept, _ in parts])
    scores, confidence = subject.score(crops)
    trials = Trials(
        labels=subject.labels,
        scores=scores.astype(np.float64),
        confidence=confidence.astype(np.float64),
        truth=np.concatenate([np.array(who)[kept] for _, kept, who in parts]),
        people=np.concatenate([part.labels[kept] for part, kept, _ in parts]),
        conditions=np.array(conditions),
        sources=tuple(sources),
        crops=crops,
        refused=tuple(refused),
    )
    return trials, notes


def _condition(pattern: re.Pattern[str], source: str) -> str:
    match = pattern.search(source)
    return "" if match is None else (match[1] if pattern.groups else match[0]) or ""


def _trained_on(subject: Subject, model: Model | None, faces: Gallery) -> Array:
    """(N,) whether each photo is one of training: measured on these, everything looks well."""
    if model is None:
        return np.full(len(faces.images), faces.fingerprint == subject.photos)
    seen = {crop.tobytes() for crop in model.crops}
    return np.array([image.tobytes() in seen for image in faces.images])


def pattern_of(condition: str | None) -> re.Pattern[str] | None:
    try:
        return None if condition is None else re.compile(condition)
    except re.error as error:
        raise UsageError(
            f"--condition is not a regular expression ({error}).", "For example --condition '_(clean|sunglasses|scarf)'."
        ) from None
