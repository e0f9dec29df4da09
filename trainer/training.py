"""Training: from photos and parameters to a model."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import TrainingError, UsageError
from edge.kit.manifest import NO_ALIGNMENT
from edge.text import plural, some
from edge.vision.confidence import score_confidence
from edge.vision.preprocess import FeatureSpec
from trainer.baselines.registry import Method
from trainer.data.crop_cache import CropCache
from trainer.data.gallery import Gallery, check_not_enrolled, load_gallery, load_like
from trainer.features.network import SIDE, Network
from trainer.features.spec import Spec, parse_network
from trainer.method.base import FaceClassifier
from trainer.method.estimator import LCLRRDL
from trainer.method.solver import Step
from trainer.model import Model, PlainModel, stored_parameters, versions
from trainer.own_features import chosen_features
from trainer.presets import ONE_SHARD, PRESETS, default_preset, from_toml
from trainer.shards import fit as sharded
from trainer.shards.fit import NETWORK_VECTORS
from trainer.shards.work import WorkFolder
from trainer.thresholds import MIN_PEOPLE, stranger_confidences, stricter_threshold
from trainer.types import Array, Progress, Say, Stage, silent
from trainer.vectors import remember_vectors

NOT_ALIGNED = "A network needs faces that are aligned for it. If these crops give poor results, use --preset tiny."


def train(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    callback: Callable[[Step], None] | None = None,
    *,
    method: type[FaceClassifier] = LCLRRDL,
    fpir: float | None = None,
    strangers: Gallery | None = None,
    stage: Stage = silent,
    work: WorkFolder | None = None,
    **where: Any,
) -> Model:
    """Train a model on a gallery: with one dictionary (`fit`) or, for more than ONE_SHARD people, with shards.

    `work` keeps finished steps. `where` are options for shards: where to compute, and what is known already
    (trainer.shards.fit.fit).
    """
    if needs_shards(len(gallery.people), method, parameters):
        others = None if strangers is None else strangers.images
        return sharded.fit(gallery, spec, parameters, fpir=fpir, strangers=others, stage=stage, work=work, **where)
    options: dict[str, Any] = {"method": method, "fpir": fpir, "strangers": strangers, "stage": stage}
    if spec.network is not None:
        covered = bool(parameters.get("covered"))
        remember_vectors(gallery.images, spec, covered=covered, work=work, progress=partial(stage, NETWORK_VECTORS))
        if strangers is not None:
            progress = partial(stage, f"{NETWORK_VECTORS} of strangers")
            remember_vectors(strangers.images, spec, covered=False, work=work, progress=progress)
    return fit(gallery, spec, parameters, callback, **options)


def needs_shards(people: int, method: type[FaceClassifier], parameters: dict[str, Any]) -> bool:
    """Whether a training is split into shards. The method as published has one dictionary for any number of people."""
    if people <= ONE_SHARD or method is not LCLRRDL:
        return False
    estimator = LCLRRDL(**parameters)
    return estimator.classifier_codes == "coder" and estimator.coding_for(1).kind != "batch"


def fit(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    callback: Callable[[Step], None] | None = None,
    *,
    method: type[FaceClassifier] = LCLRRDL,
    fpir: float | None = None,
    strangers: Gallery | None = None,
    stage: Stage = silent,
) -> PlainModel:
    """Train one dictionary on a gallery. `parameters` belong to `method`: LCLRRDL, or a baseline that a device can run.

    `fpir` is the share of strangers' photos that may get a name. If it is given, the threshold is measured on people who are
    left out (if there are enough) and on `strangers` (if given).
    """
    observer: dict[str, Any] = {"callback": callback} if method is LCLRRDL else {}
    estimator: Any = method(features=spec, **observer, **parameters)
    try:
        certain = gallery.certain()
        estimator.fit(gallery.images, gallery.labels, **({} if certain is None else {"certain": certain}))
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
    if len(gallery.people) >= MIN_PEOPLE:
        progress = partial(stage, "threshold, fold")
        left_out = stranger_confidences(gallery, spec, parameters, method=method, progress=progress)
    if strangers is not None:
        given = score_confidence(model.scores(strangers.images), model.confidence)
    return replace(model, calibration=stricter_threshold(left_out, given, fpir))


def to_model(estimator: Any, gallery: Gallery, spec: Spec, training: dict[str, Any]) -> PlainModel:
    """Return the model of an estimator that was fitted to a gallery, without a threshold; `training` is Model.training."""
    people = np.searchsorted(estimator.classes_, gallery.labels)
    seen = np.searchsorted(estimator.classes_, getattr(estimator, "looks_like_", gallery.labels))
    suspected = [[int(crop), int(seen[crop])] for crop in np.flatnonzero(seen != people)]
    coding = estimator.coder_.coding if isinstance(estimator, LCLRRDL) else estimator.coding
    return PlainModel(
        spec=spec,
        alignment=gallery.alignment,
        coding=coding,
        labels=tuple(str(label) for label in estimator.classes_),
        D=estimator.D_.astype(np.float32),
        W=estimator.W_.astype(np.float32),
        parts=getattr(estimator, "parts", None),
        W_parts=getattr(estimator, "W_parts_", np.zeros((0, *estimator.W_.shape))).astype(np.float32),
        templates=estimator.templates_.astype(np.float32) if hasattr(estimator, "templates_") else None,
        atom_people=estimator.atom_classes_.astype(np.int32),
        crops=gallery.images,
        crop_people=people.astype(np.int32),
        parameters=stored_parameters(estimator, coding),
        training=training | {"versions": versions(), "doubted": suspected},
        calibration=None,
        fingerprint=gallery.fingerprint,
    )


def retrained(model: Model, gallery: Gallery) -> Callable[[Array], Model]:
    """Return a function that trains the model again on some of its photos (N,), as bool, quickly and without a threshold."""
    parameters = model.parameters | {"coding": model.coding, "parts": model.parts, "schedule": "quick", "doubt": False}

    def learn(chosen: Array) -> Model:
        some = gallery.selected(chosen)
        if model.sharded is None:
            return fit(some, model.spec, parameters)
        embeddings = model.sharded.embeddings
        given = None if embeddings is None else embeddings[chosen]
        return sharded.fit(
            some, model.spec, parameters, embeddings=given, shard_of_person=np.asarray(model.sharded.shard_of_person)
        )

    return learn


# --- From files, as `trainer fit` does ---


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A training whose photos are loaded and whose parameters are complete."""

    method: Method
    gallery: Gallery
    strangers: Gallery | None
    spec: Spec
    parameters: dict[str, Any]
    notes: tuple[str, ...]


def photo_loader(
    photos: Path, *, cropped: bool = False, size: tuple[int, int] | None = None, **options: Any
) -> Callable[[Network | None], Gallery]:
    """Return a function that loads the training photos for a network, or for our own features (None).

    `options` are those of load_gallery.
    """

    def load(network: Network | None) -> Gallery:
        crops: dict[str, Any] = {"size": size}
        if network is not None:
            if size not in (None, (SIDE, SIDE)):
                raise UsageError(f"A network needs crops of {SIDE}x{SIDE}.", "Leave --size out.")
            crops = {"size": (SIDE, SIDE), "alignment": network.alignment, "colour": network.colour}
        return load_gallery(photos, cropped=cropped, **crops, **options)

    return load


def prepare(
    load: Callable[[Network | None], Gallery],
    strangers: Path | None,
    *,
    method: Method,
    preset: str | None,
    config: Path | None,
    options: dict[str, Any],
    progress: Progress = silent,
    say: Say = silent,
    cache: CropCache | None = None,
) -> TrainingPlan:
    """Complete the parameters and load the photos: `options` override the TOML file `config`, which overrides the preset.

    `load` returns the training photos for a network, or for our own features (None). `cache` keeps the crops of strangers.
    """
    is_lclrrdl = method.estimator is LCLRRDL
    known = signature(method.estimator).parameters.keys() - {"callback", "random_state"}
    given = (from_toml(config, known) if config else {}) | options
    if is_lclrrdl:
        parameters = PRESETS[preset or default_preset(given.get("features"))] | given
    else:
        usual = {"features": PRESETS["tiny"]["features"]}
        parameters = usual | method.for_device(given | ({"preset": preset} if preset else {}))
    features = parameters.pop("features")
    network = parse_network(features, say)
    if is_lclrrdl and network is not None and "parts" not in options:
        parameters["parts"] = None
    if parameters.get("experts"):
        _check_options_of_experts(parameters, features, network)
    gallery, others = load(network), None
    notes = gallery.notes
    if strangers is not None:
        others = load_like(strangers, gallery.crop_shape, gallery.alignment, progress=progress, say=say, cache=cache)
        check_not_enrolled(others, gallery.images, gallery.people)
        notes += others.notes
    if network is not None and gallery.alignment == NO_ALIGNMENT:
        notes += (NOT_ALIGNED,)
    spec: Spec = network or FeatureSpec.for_crop(*gallery.crop_size, features)
    if is_lclrrdl and "features" not in given:
        spec, reasons = chosen_features(gallery.images, gallery.labels, spec)
        notes += reasons
    return TrainingPlan(method=method, gallery=gallery, strangers=others, spec=spec, parameters=parameters, notes=notes)


def _check_options_of_experts(parameters: dict[str, Any], features: str, network: Network | None) -> None:
    """Raise UsageError for options that the preset network cannot use, before photos are read."""
    if network is None:
        raise UsageError(f"The preset network cannot use the features {features}.", "Use --features sface, or --preset tiny.")
    if parameters.get("copies") or parameters.get("parts") or parameters.get("classifier_codes") == "training":
        options = "--augment, --parts and --classifier-codes training"
        raise UsageError(f"The preset network takes no {options}.", "Leave them out, or use --preset tiny.")


def result_notes(plan: TrainingPlan, model: Model, *, calibrated: bool, options: bool = True) -> list[str]:
    """Return notes for the user about the model of a plan. `calibrated`: the threshold was to be measured.

    `options`: name the options of `trainer fit` that would help.
    """
    notes = []
    if model.calibration is None:
        strangers = "--strangers" if options else "photos of strangers"
        why = f"needs {MIN_PEOPLE} people or {strangers}" if calibrated else "was turned off"
        notes.append(f"The threshold against strangers was not measured: the measurement {why}.")
    suspected = model.suspected_labels(plan.gallery.sources)
    if suspected:
        note = f"Not used, because the names may be wrong: {some(suspected)}."
        notes.append(note + (" --no-doubt uses them." if options else ""))
    atoms = model.parameters["atoms_per_class"] or 0
    few = sum(photos < atoms for photos in Counter(plan.gallery.labels.tolist()).values())
    if few:
        can_augment = options and model.parameters.get("copies") == 0 and model.templates is None
        hint = " --augment improves their recognition." if can_augment else ""
        notes.append(f"{plural(few, 'person has', 'people have')} fewer photos than {atoms} atoms." + hint)
    return notes
