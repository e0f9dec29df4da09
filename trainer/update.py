"""Enrol or forget a person without a complete training.

enrol   The dictionary stays. The new photos are added as atoms, scaled to the length of the others. W, which separates all
        people, is learned again by ridge regression.
forget  All atoms were learned together with the photos of the person who leaves, so no atom stays. D starts again from the
        photos of the others and is learned in one step instead of twenty; then W. The result does not depend on the person
        who left.

Both keep the threshold against strangers, unless it is measured again.
"""

from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any, overload

import numpy as np

from edge.errors import GalleryError, UsageError
from edge.text import same_spelling, some
from trainer.data.gallery import Gallery, check_usable, crop_digests
from trainer.method.base import random_atoms
from trainer.method.classifier import ridge
from trainer.method.estimator import LCLRRDL
from trainer.method.parts import unit_part
from trainer.method.prox import column_norms
from trainer.model import Model, PlainModel
from trainer.shards import update as shards
from trainer.thresholds import FPIR, MIN_PEOPLE, stranger_confidences, threshold
from trainer.training import to_model
from trainer.types import Array, Stage, silent

CODE_RIDGE = 0.5  # with this value a forgotten person leaves the confidence of strangers unchanged: the threshold stays valid


@overload
def enrol(model: PlainModel, photos: Gallery, *, calibrate: bool = False, stage: Stage = silent) -> PlainModel: ...
@overload
def enrol(model: Model, photos: Gallery, *, calibrate: bool = False, stage: Stage = silent) -> Model: ...
def enrol(model: Model, photos: Gallery, *, calibrate: bool = False, stage: Stage = silent) -> Model:
    """Add people to a model, or photos to people who are in it."""
    _parameters(model)
    new = _new_photos(model, photos)
    if model.sharded is not None:
        return shards.enrol(model.sharded, new, calibrate=calibrate, stage=stage)
    assert model.plain is not None
    return _enrol(model.plain, new, calibrate, stage)


def _enrol(model: PlainModel, new: Gallery, calibrate: bool, stage: Stage) -> PlainModel:
    per_person = _parameters(model)["atoms_per_class"]
    atoms = np.array(model.labels)[model.atom_people]
    # A person who already has atoms_per_class atoms gets no more.
    room = {person: per_person - int(np.sum(atoms == person)) for person in new.people}
    joining = np.concatenate([np.flatnonzero(new.labels == person)[: max(space, 0)] for person, space in room.items()])
    X = model.spec.vectors(new.images[joining]).T
    # The new atoms get the length of the others, in each dictionary by itself.
    D = np.vstack([
        np.hstack([model.D[rows], column_norms(model.D[rows]).mean() * (X if whole else unit_part(X, rows))])
        for rows, whole in _dictionaries(model)
    ])  # fmt: skip
    training = {name: value for name, value in model.training.items() if name != "accuracy"}  # the accuracy of the old W
    changed = _learn_classifier(model, model.gallery().joined(new), D, np.concatenate([atoms, new.labels[joining]]), training)
    return _calibrated(changed, stage) if calibrate else changed


def enrol_notes(old: Model, new: Model, photos: Gallery) -> list[str]:
    """Return notes for the user after `enrol` changed a model."""
    notes = []
    known = sorted(set(photos.people) & set(old.labels))
    if known:
        notes.append(f"Already in the model, so the photos were added to theirs: {some(known)}. Two people need two names.")
    sources = {image.tobytes(): source for image, source in zip(photos.images, photos.sources, strict=True)}
    crops = zip(new.crops, new.crop_people, strict=True)
    found = [sources.get(crop.tobytes(), f"an earlier photo of {new.labels[person]}") for crop, person in crops]
    suspected = new.suspected_labels(found)
    if suspected:
        notes.append(f"Not used, because the names may be wrong: {some(suspected)}.")
    return notes


def threshold_note(old: Model, new: Model) -> str:
    """Describe the threshold against strangers after a model was changed."""
    before, now = old.calibration, new.calibration
    if now is not None and now is not before:
        text = now.summary()
        if before is not None and (before.public or before.others_trials):
            text += f" It was {before.confidence:g}, measured with given strangers; `trainer fit` can use them again."
        return text
    state = "was not measured" if now is None else f"stays {now.confidence:g}"
    enough = len(new.labels) >= MIN_PEOPLE
    action = "--calibrate measures it" if enough else f"measuring it needs {MIN_PEOPLE} people"
    return f"The threshold against strangers {state}; {action}."


@overload
def forget(model: PlainModel, name: str, *, calibrate: bool = False, stage: Stage = silent) -> PlainModel: ...
@overload
def forget(model: Model, name: str, *, calibrate: bool = False, stage: Stage = silent) -> Model: ...
def forget(model: Model, name: str, *, calibrate: bool = False, stage: Stage = silent) -> Model:
    """Remove a person from a model: photos, atoms, codes, and their influence on the atoms of others."""
    _parameters(model)
    name = same_spelling(name)
    if name not in model.labels:
        near = get_close_matches(name, model.labels, n=1)
        raise UsageError(f"There is no {name} in the model.", f"Did you mean {near[0]}?" if near else "Check the name.")
    if len(model.labels) < 3:
        raise UsageError("A model needs at least two people.", "Delete the file instead.")
    if model.sharded is not None:
        return shards.forget(model.sharded, name, calibrate=calibrate, stage=stage)
    assert model.plain is not None
    return _forget(model.plain, name, calibrate, stage)


def _forget(model: PlainModel, name: str, calibrate: bool, stage: Stage) -> PlainModel:
    parameters = _parameters(model)
    gallery = model.gallery()
    gallery = gallery.selected(gallery.labels != name)
    people = np.unique(gallery.labels, return_inverse=True)[1]
    atoms = random_atoms(people, parameters["atoms_per_class"], parameters["random_state"])
    X = model.spec.vectors(gallery.images).T
    samples = (X if whole else unit_part(X, rows) for rows, whole in _dictionaries(model))
    D = np.vstack([one_step_dictionary(own, atoms, parameters["gamma"]) for own in samples])
    changed = _learn_classifier(model, gallery, D, gallery.labels[atoms], {"method": LCLRRDL.__name__, "iterations": 1})
    return _calibrated(changed, stage) if calibrate else changed


def _dictionaries(model: PlainModel) -> list[tuple[Array, bool]]:
    """Return the rows of each dictionary in D, and whether it is the only one: with experts there may be two."""
    if model.network_rows is None:
        return [(np.arange(len(model.D)), True)]
    return [(rows, False) for rows in (model.network_rows, *model.part_rows)]


def one_step_dictionary(X: Array, atoms: Array, gamma: float) -> Array:
    """Return D (d,m) of samples X (d,n), by one step of Algorithm 1 (trainer.method.solver) from D0 = X[:, atoms]:

        Z = (D0'D0 + CODE_RIDGE I)^-1 D0'X     D = XZ'(ZZ' + gamma I)^-1

    These are eq. 15 and 19 with mu = 1 and with J, L, E and the multipliers zero, except CODE_RIDGE, which is 2 there.
    """
    Z = ridge(X[:, atoms].T, X.T, CODE_RIDGE).T
    return ridge(Z, X, gamma)


def _learn_classifier(
    model: PlainModel, gallery: Gallery, D: Array, atom_labels: Array, training: dict[str, Any]
) -> PlainModel:
    """Return a model with this D, W learned from this gallery, and the threshold as it was."""
    estimator = LCLRRDL(features=model.spec, **(_parameters(model) | {"classifier_codes": "coder"}))
    estimator.fit_classifier(gallery.images, gallery.labels, D, atom_labels)
    changed = to_model(estimator, gallery, model.spec, training)
    return replace(changed, parameters=model.parameters, calibration=model.calibration)


def _calibrated(model: PlainModel, stage: Stage) -> PlainModel:
    """Return the model with the threshold measured again, for the same rate; unchanged if it has too few people."""
    if len(model.labels) < MIN_PEOPLE:
        return model
    confidences = stranger_confidences(
        model.gallery(), model.spec, _parameters(model), progress=partial(stage, "threshold, fold")
    )
    return replace(model, calibration=threshold(confidences, model.calibration.target if model.calibration else FPIR))


def _parameters(model: Model) -> dict[str, Any]:
    """Return the parameters of the estimator, with the quick schedule for measuring a threshold."""
    method = model.training.get("method", LCLRRDL.__name__)
    if method != LCLRRDL.__name__:
        raise UsageError(f"A model of {method} cannot be changed.", "Train it again with `trainer fit`.")
    return model.parameters | {"coding": model.coding, "parts": model.parts, "schedule": "quick"}


def _new_photos(model: Model, photos: Gallery) -> Gallery:
    """Return the photos that are not in the model yet."""
    if photos.alignment != model.alignment or photos.images.shape[1:] != model.crops.shape[1:]:
        raise ValueError("photos to enrol must be cropped like those of the model")
    check_usable((photo.person for photo in photos.rejected), photos.people, photos.rejected)
    people = (model.labels[person] for person in model.crop_people)
    owner = dict(zip(crop_digests(model.crops), people, strict=True))
    owners = [owner.get(digest) for digest in crop_digests(photos.images)]
    pairs = list(zip(owners, photos.labels, photos.sources, strict=True))
    clashes = [f"{source} (of {other})" for other, label, source in pairs if other not in (None, label)]
    if clashes:
        raise GalleryError(f"The same photo has two names: {some(clashes)}.", "Remove it from the wrong person.")
    new = np.array([other is None for other in owners])
    if not new.any():
        raise GalleryError("All these photos are in the model already.", "Add other photos.")
    return photos.selected(new)
