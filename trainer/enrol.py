"""People who come and go: one is added to a model, or forgotten, without training it all over again.

enrol   The dictionary is kept. The new photos join it as atoms, as long as those of the others; W, which must tell everybody
        from everybody, is learned anew, and that is a ridge regression.
forget  The atoms of all others were learned together with the photos of the one who leaves, so none of them is kept: D starts
        again from the photos of those who stay (solver's `quick` schedule), and W with it. What comes out depends on nothing
        else: had the person been somebody else, the same D and W would come out.

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
from edge.manifest import NO_ALIGNMENT
from trainer import gallery
from trainer import model as models
from trainer.backbone import features
from trainer.calibrate import FEWEST_PEOPLE, Rejection, strangers_confidence, threshold
from trainer.estimator import LCLRRDL
from trainer.gallery import Gallery
from trainer.model import Model
from trainer.prox import Array, column_norms
from trainer.words import count, some

Progress = Callable[[int, int], None]


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
    D = np.hstack([model.D, length * features(new.images[joining], model.spec).T]).astype(np.float32)
    estimator = LCLRRDL(features=model.spec, **(_settings(model) | {"classifier_codes": "coder"}))
    estimator.fit_classifier(everybody.images, everybody.labels, D, np.concatenate([atoms, new.labels[joining]]))
    rejection = _threshold(model, everybody, calibrate, progress)
    return replace(models.learned(estimator, everybody, model.spec, model.training, rejection), parameters=model.parameters)


def forget(model: Model, name: str, *, calibrate: bool = False, progress: Progress | None = None) -> Model:
    """The model without a person: learned again from the photos of all others."""
    _refuse_baselines(model)
    if name not in model.labels:
        near = get_close_matches(name, model.labels, n=1)
        raise UsageError(f"There is no {name} in the model.", f"Did you mean {near[0]}?" if near else "Check the name.")
    if len(model.labels) < 3:
        raise UsageError("A model of one person can recognise nobody.", "Delete the file instead.")
    others = _gallery(model, np.array(model.labels)[model.crop_people] != name)
    again = models.fit(others, model.spec, _settings(model))
    return replace(again, parameters=model.parameters, rejection=_threshold(model, others, calibrate, progress))


def _refuse_baselines(model: Model) -> None:
    method = model.training.get("method", LCLRRDL.__name__)
    if method != LCLRRDL.__name__:
        raise UsageError(f"Nobody can be added to a model of {method}, or forgotten.", "Train it again, with `trainer fit`.")


def _settings(model: Model) -> dict[str, Any]:
    """The parameters of the model's estimator, as they were before they went through its file, and the quick schedule."""
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
    """The model's own, or measured again, with the rate of false positives that it was made for."""
    old = model.rejection
    if not calibrate or old is None or len(gallery.people) < FEWEST_PEOPLE:
        return old
    return threshold(strangers_confidence(gallery, model.spec, _settings(model), progress=progress), old.target)
