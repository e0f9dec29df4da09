"""Training: from photos and parameters to a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import TrainingError, UsageError
from edge.kit.manifest import ALIGNMENT
from edge.text import plural, some
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import FeatureSpec
from trainer import presets, thresholds
from trainer.baselines.registry import Method
from trainer.data.gallery import Gallery, check_not_enrolled, load, load_like
from trainer.features.illumination import without_misleading_pixels
from trainer.features.network import SIDE, Network
from trainer.features.spec import Spec, parse_network
from trainer.method.base import FaceClassifier
from trainer.method.estimator import LCLRRDL
from trainer.method.solver import Step
from trainer.model import Model

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


def fit(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    callback: Callable[[Step], None] | None = None,
    *,
    method: type[FaceClassifier] = LCLRRDL,
    fpir: float | None = None,
    strangers: Gallery | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train a model on a gallery. `parameters` belong to `method`: LCLRRDL, or a baseline that a device can run.

    `fpir` is the share of strangers' photos that may get a name. If it is given, the threshold is measured on people who are
    left out (if there are enough) and on `strangers` (if given). `progress` is called with (folds done, folds).
    """
    observer: dict[str, Any] = {"callback": callback} if method is LCLRRDL else {}
    estimator: Any = method(features=spec, **observer, **parameters)
    try:
        estimator.fit(gallery.images, gallery.labels)
    except FloatingPointError as error:
        raise TrainingError(f"Training failed: {error}.", "Use a larger gamma.") from None
    training: dict[str, Any] = {"method": method.__name__}
    if isinstance(estimator, LCLRRDL):
        training["iterations"] = estimator.n_iter_
        training["rank"] = estimator.result_.rank
        training["residuals"] = [[float(f"{value:.3g}") for value in step] for step in estimator.result_.residuals]
    training["accuracy"] = float(estimator.score(gallery.images, gallery.labels))
    model = to_model(estimator, gallery, spec, training)
    if fpir is None:
        return model
    left_out = given = np.zeros(0)
    if len(gallery.people) >= thresholds.MIN_PEOPLE:
        left_out = thresholds.stranger_confidences(gallery, spec, parameters, method=method, progress=progress)
    if strangers is not None:
        given = score_confidence(model.scores(strangers.images))
    return replace(model, calibration=thresholds.stricter_threshold(left_out, given, fpir))


def to_model(estimator: Any, gallery: Gallery, spec: Spec, training: dict[str, Any]) -> Model:
    """Return the model of an estimator that was fitted to a gallery, without a threshold; `training` is Model.training."""
    people = np.searchsorted(estimator.classes_, gallery.labels)
    seen = np.searchsorted(estimator.classes_, getattr(estimator, "looks_like_", gallery.labels))
    suspected = [[int(crop), int(seen[crop])] for crop in np.flatnonzero(seen != people)]
    versions = {name: version(name) for name in ("lclrr-edge", "numpy", "scipy", "scikit-learn")}
    coding = estimator.coder_.coding if isinstance(estimator, LCLRRDL) else estimator.coding
    parameters = estimator.get_params() | {"coding": coding.kind}
    return Model(
        spec=spec,
        alignment=gallery.alignment,
        coding=coding,
        labels=tuple(str(label) for label in estimator.classes_),
        D=estimator.D_.astype(np.float32),
        W=estimator.W_.astype(np.float32),
        parts=getattr(estimator, "parts", None),
        W_parts=getattr(estimator, "W_parts_", np.zeros((0, *estimator.W_.shape))).astype(np.float32),
        atom_people=estimator.atom_classes_.astype(np.int32),
        crops=gallery.images,
        crop_people=people.astype(np.int32),
        parameters={name: parameters[name] for name in sorted(parameters) if name not in ("callback", "features")},
        training=training | {"versions": versions, "doubted": suspected},
        calibration=None,
        fingerprint=gallery.fingerprint,
    )


# --- From files, as `trainer fit` does ---


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training whose photos are loaded and whose parameters are complete."""

    method: Method
    gallery: Gallery
    strangers: Gallery | None
    spec: Spec
    parameters: dict[str, Any]
    notes: tuple[str, ...]


def prepare(
    gallery: Callable[[Network | None], Gallery],
    strangers: Path | None,
    *,
    method: Method,
    preset: str | None,
    config: Path | None,
    options: dict[str, Any],
    progress: Progress | None = None,
    say: Say = lambda _: None,
) -> Job:
    """Complete the parameters and load the photos: `options` override the TOML file `config`, which overrides the preset.

    `gallery` loads the training photos for a network, or for our own features (None).
    """
    is_lclrrdl = method.estimator is LCLRRDL
    default = presets.PRESETS[presets.DEFAULT]
    given = presets.from_toml(config, default if is_lclrrdl else signature(method.estimator).parameters) if config else {}
    given |= options
    if is_lclrrdl:
        parameters = presets.PRESETS[preset or presets.default_preset(given.get("features"))] | given
    else:
        parameters = {"features": default["features"]} | method.for_device(given | ({"preset": preset} if preset else {}))
    features = parameters.pop("features")
    network = parse_network(features, say)
    if is_lclrrdl and network is not None and "parts" not in options:
        parameters["parts"] = None
    photos, others = gallery(network), None
    notes = photos.notes
    if strangers is not None:
        others = load_like(strangers, size=photos.crop_size, alignment=photos.alignment, progress=progress, say=say)
        check_not_enrolled(others, photos.images, photos.people)
        notes += others.notes
    spec = spec_for(photos, features, network)
    if is_lclrrdl and "features" not in given:
        usual, spec = spec, without_misleading_pixels(photos.images, photos.labels, spec)
        if spec != usual:
            notes += ("The light differs much between the photos: using --features gradient instead of both.",)
    return Job(method=method, gallery=photos, strangers=others, spec=spec, parameters=parameters, notes=notes)


def train(
    job: Job,
    *,
    fpir: float | None,
    seed: int,
    callback: Callable[[Step], None] | None = None,
    progress: Progress | None = None,
) -> tuple[Model, list[str]]:
    """Train the model of a job; also return notes for the user. Without `fpir`, no threshold is measured."""
    model = fit(
        job.gallery,
        job.spec,
        job.parameters | {"random_state": seed},
        callback,
        method=job.method.estimator,
        fpir=fpir,
        strangers=job.strangers,
        progress=progress,
    )
    notes = []
    if model.calibration is None:
        why = "was turned off" if fpir is None else f"needs {thresholds.MIN_PEOPLE} people or --strangers"
        notes.append(f"The threshold against strangers was not measured: the measurement {why}.")
    suspected = model.suspected_labels(job.gallery.sources)
    if suspected:
        notes.append(f"Not used, because the names may be wrong: {some(suspected)}. --no-doubt uses them.")
    atoms = job.parameters.get("atoms_per_class") or 0
    few = sum(photos < atoms for photos in Counter(job.gallery.labels.tolist()).values())
    if few:
        hint = " --augment improves their recognition." if job.parameters.get("copies") == 0 else ""
        notes.append(f"{plural(few, 'person has', 'people have')} fewer photos than {atoms} atoms.{hint}")
    return model, notes


def load_gallery(
    photos: Path,
    network: Network | None,
    *,
    cropped: bool,
    size: tuple[int, int] | None,
    skip_bad: bool,
    progress: Progress | None = None,
    say: Say = lambda _: None,
) -> Gallery:
    """Load training photos with the crop size and alignment that the features need."""
    alignment = ALIGNMENT
    if network is not None:
        if size not in (None, (SIDE, SIDE)):
            raise UsageError(f"A network needs crops of {SIDE}x{SIDE}.", "Leave --size out.")
        size, alignment = (SIDE, SIDE), network.alignment
    return load(photos, cropped=cropped, size=size, skip_bad=skip_bad, alignment=alignment, progress=progress, say=say)


def spec_for(gallery: Gallery, features: str, network: Network | None) -> Spec:
    """Return the spec for the crops of a gallery: the network, or our own features of this kind."""
    return network or FeatureSpec.for_crop(*gallery.crop_size, features)
