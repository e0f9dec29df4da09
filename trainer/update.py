"""People who come and go: one is added to a model, or forgotten, without training it all over again.

enrol   The dictionary is kept. The new photos join it as atoms, as long as those of the others; W, which must tell everybody
        from everybody, is learned anew, and that is a ridge regression.
forget  The atoms of all others were learned together with the photos of the one who leaves, so none of them is kept: D starts
        again from the photos of those who stay, by one step instead of twenty, and W with it. What comes out depends on
        nothing else: had the person been somebody else, the same D and W would come out.

Both keep the threshold against strangers, a number that was measured by leaving people out, unless it is to be measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import GalleryError, UsageError
from edge.kit.manifest import NO_ALIGNMENT
from edge.text import count, same_spelling, some
from trainer import model as models
from trainer.data import gallery
from trainer.data.gallery import Gallery
from trainer.method.base import random_atoms
from trainer.method.classifier import ridge
from trainer.method.estimator import LCLRRDL
from trainer.method.prox import column_norms
from trainer.model import Model
from trainer.thresholds import FEWEST_PEOPLE, FPIR, Rejection, strangers_confidence, threshold
from trainer.types import Array

Progress = Callable[[int, int], None]
RIDGE = 0.5  # with it, strangers are as confident as before a person was forgotten, so that the threshold can be kept


def photos_for(
    model: Model,
    folder: Path,
    *,
    skip_bad: bool = False,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Gallery:
    """The photos in the folder of a person, cropped like those of the model."""
    found = gallery.load(
        folder,
        cropped=model.alignment == NO_ALIGNMENT,
        size=(model.spec.height, model.spec.width),
        alignment=model.alignment,
        progress=progress,
        say=say,
        testing=True,  # one person is enough
    )
    if found.refused and not skip_bad:
        bad = [f"{photo.source} ({photo.reason})" for photo in found.refused]
        raise GalleryError(
            f"{count(bad, 'photo')} cannot be used: {some(bad)}.", "Replace them, or pass --skip-bad to leave them out."
        )
    return found


def enrol(model: Model, photos: Gallery, *, calibrate: bool = False, progress: Progress | None = None) -> Model:
    """The model with the people of `photos` added; photos of somebody who is in it already join those that are there."""
    _refuse_baselines(model)
    new = _new(model, photos)
    everybody = _gallery(model, np.ones(len(model.crops), bool), new)
    people = np.array(model.labels)
    atoms = people[model.atom_people]
    # As many as there is room for: somebody who has all their atoms gets no more by coming back with photos.
    room = {person: _settings(model)["atoms_per_class"] - int(np.sum(atoms == person)) for person in new.people}
    joining = np.concatenate([np.flatnonzero(new.labels == person)[: max(space, 0)] for person, space in room.items()])
    length = column_norms(model.D).mean()
    D = np.hstack([model.D, length * model.spec.vectors(new.images[joining]).T])
    how = {name: value for name, value in model.training.items() if name != "accuracy"}  # which was that of another W
    more = _learned(model, everybody, D, np.concatenate([atoms, new.labels[joining]]), how)
    return replace(more, rejection=_threshold(model, everybody, calibrate, progress))


def sources(model: Model, photos: Gallery) -> list[str]:
    """Where each crop of a model came from, of which these photos were enrolled last."""
    new = {image.tobytes(): source for image, source in zip(photos.images, photos.sources, strict=True)}
    pairs = zip(model.crops, model.crop_people, strict=True)
    return [new.get(crop.tobytes(), f"an earlier photo of {model.labels[person]}") for crop, person in pairs]


def forget(model: Model, name: str, *, calibrate: bool = False, progress: Progress | None = None) -> Model:
    """The model without a person: learned again from the photos of all others."""
    _refuse_baselines(model)
    name = same_spelling(name)  # as in a gallery
    if name not in model.labels:
        near = get_close_matches(name, model.labels, n=1)
        raise UsageError(f"There is no {name} in the model.", f"Did you mean {near[0]}?" if near else "Check the name.")
    if len(model.labels) < 3:
        raise UsageError("A model of one person can recognise nobody.", "Delete the file instead.")
    others = _gallery(model, np.array(model.labels)[model.crop_people] != name)
    settings = _settings(model)
    people = np.unique(others.labels, return_inverse=True)[1]
    atoms = random_atoms(people, settings["atoms_per_class"], settings["random_state"])
    D = dictionary(model.spec.vectors(others.images).T, atoms, settings["gamma"])
    less = _learned(model, others, D, others.labels[atoms], {"method": LCLRRDL.__name__, "iterations": 1})
    return replace(less, rejection=_threshold(model, others, calibrate, progress))


def dictionary(X: Array, atoms: Array, gamma: float) -> Array:
    """D (d,m) of samples X (d,n), by one step of Algorithm 1 (trainer.method.solver) from the samples that are `atoms`, D0:

        Z = (D0'D0 + RIDGE I)^-1 D0'X     D = XZ'(ZZ' + gamma I)^-1

    which is eq. 15 and 19 with mu = 1, while J, L, E and the multipliers are zero; but for RIDGE, which is 2 there.
    """
    Z = ridge(X[:, atoms].T, X.T, RIDGE).T
    return ridge(Z, X, gamma)


def _learned(model: Model, photos: Gallery, D: Array, atom_labels: Array, training: dict[str, Any]) -> Model:
    """The model with this D, and a W for it that is learned from these photos; `training` says how D was."""
    estimator = LCLRRDL(features=model.spec, **(_settings(model) | {"classifier_codes": "coder"}))
    estimator.fit_classifier(photos.images, photos.labels, D, atom_labels)
    return replace(models.learned(estimator, photos, model.spec, training), parameters=model.parameters)


def _refuse_baselines(model: Model) -> None:
    method = model.training.get("method", LCLRRDL.__name__)
    if method != LCLRRDL.__name__:
        raise UsageError(f"Nobody can be added to a model of {method}, or forgotten.", "Train it again, with `trainer fit`.")


def _settings(model: Model) -> dict[str, Any]:
    """The parameters of the model's estimator, as they were before they went through its file; and the quick schedule, for
    the trainings that measure a threshold."""
    return model.parameters | {"coding": model.coding, "parts": model.parts, "schedule": "quick"}


def _new(model: Model, photos: Gallery) -> Gallery:
    """The photos that the model does not have yet."""
    if photos.alignment != model.alignment or photos.images.shape[1:] != model.crops.shape[1:]:
        raise ValueError("photos to enrol must be cropped like those of the model")
    owner = {crop.tobytes(): model.labels[person] for crop, person in zip(model.crops, model.crop_people, strict=True)}
    owners = [owner.get(image.tobytes()) for image in photos.images]
    pairs = list(zip(owners, photos.labels, photos.sources, strict=True))
    clashes = [f"{source} (of {other})" for other, label, source in pairs if other not in (None, label)]
    if clashes:
        raise GalleryError(f"The same photo stands for two people: {some(clashes)}.", "Remove it where it does not belong.")
    fresh = np.array([other is None for other in owners])
    if not fresh.any():
        raise GalleryError("All these photos are in the model already.", "Add others.")
    return _part(photos, fresh)


def _gallery(model: Model, keep: Array, more: Gallery | None = None) -> Gallery:
    """Photos of the model, and more."""
    own = Gallery(
        images=model.crops,
        labels=np.array(model.labels)[model.crop_people],
        sources=tuple(f"model[{i}]" for i in range(len(model.crops))),
        alignment=model.alignment,
    )
    kept = _part(own, keep)
    if more is None:
        return kept
    return replace(
        kept,
        images=np.concatenate([kept.images, more.images]),
        labels=np.concatenate([kept.labels, more.labels]),
        sources=kept.sources + more.sources,
    )


def _part(gallery: Gallery, keep: Array) -> Gallery:
    chosen = np.flatnonzero(keep)
    return Gallery(
        images=gallery.images[chosen],
        labels=gallery.labels[chosen],
        sources=tuple(gallery.sources[i] for i in chosen),
        alignment=gallery.alignment,
    )


def _threshold(model: Model, gallery: Gallery, calibrate: bool, progress: Progress | None) -> Rejection | None:
    """The model's own, or measured again, with the rate of false positives that it was made for (the usual one, for none)."""
    old = model.rejection
    if not calibrate or len(gallery.people) < FEWEST_PEOPLE:
        return old
    confidence = strangers_confidence(gallery, model.spec, _settings(model), progress=progress)
    return threshold(confidence, FPIR if old is None else old.target)
