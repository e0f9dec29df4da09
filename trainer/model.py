"""A trained model: what it holds, how it recognises, and the file it lives in.

The file is a NumPy archive without pickles: a JSON header and plain arrays. It is replaced in one step, so that it opens
after a crash as either the old or the new one. Atoms and crops look like the people they were made from: the file is
biometric data, readable by its owner alone, and stays on the workstation (the device gets a kit, made by `edge-export`).
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import ModelError, TrainingError
from edge.files import write_atomically
from edge.kit.manifest import ALIGNMENTS
from edge.vision.confidence import score_confidence
from trainer import thresholds as calibrate
from trainer.baselines.coders import BaselineCoder, restored_coding
from trainer.data.gallery import Gallery
from trainer.features.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.features.spec import Spec, from_settings
from trainer.method.base import FaceClassifier
from trainer.method.coding import Coder, Coding
from trainer.method.estimator import LCLRRDL
from trainer.method.solver import Step
from trainer.thresholds import Rejection
from trainer.types import Array

FORMAT = 1
ARRAYS = ("D", "W", "W_parts", "atom_people", "crops", "crop_people")
NETWORK = "backbone"  # key of the network file, if the features are those of a network


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """Everything that was learned, and all that is needed to use it, export it or train on."""

    spec: Spec
    alignment: str
    """How the crops were made: one of edge.kit.manifest's ALIGNMENTS."""
    coding: Any
    """A Coding, or a BaselineCoding (trainer.baselines.coders); which of them, the coder and the exporter's factors know."""
    labels: tuple[str, ...]
    """The people, in the order of W's rows."""
    D: Array
    """(d, m) float32, the dictionary."""
    W: Array
    """(C, m) float32, the classifier."""
    parts: Grid | None
    """The grid of the parts that are coded beside the whole face (trainer.features.parts), or None."""
    W_parts: Array
    """(P, C, m) float32, a classifier for each part."""
    atom_people: Array
    """(m,) index into labels: whose photo each atom started from."""
    crops: Array
    """(N, H, W) uint8, the training crops: the exporter calibrates on them."""
    crop_people: Array
    """(N,) index into labels."""
    parameters: dict[str, Any]
    """Of the estimator that was trained."""
    training: dict[str, Any]
    """How training went: the method, versions, iterations, the crops that W was not learned on, with the index of the person
    they look like (trainer.data.label_noise); of `fit` also residuals (solver.Step), rank, and accuracy on the training crops."""
    rejection: Rejection | None
    """The confidence that keeps strangers out; None where it was not measured."""
    fingerprint: str
    """Of the training photos."""

    @cached_property
    def coder(self) -> Coder | BaselineCoder:
        if isinstance(self.coding, Coding):
            return Coder(self.D, self.coding)
        return BaselineCoder.of(self.D, self.W, self.coding)

    @cached_property
    def part_coders(self) -> list[tuple[Array, Coder]]:
        """The rows of each part, and its coder; the baselines know of no parts."""
        if not isinstance(self.coding, Coding):
            return []
        rows = part_rows(self.spec, self.parts)
        return list(zip(rows, part_coders(self.D, rows, self.coding), strict=True))

    def scores(self, crops: Array) -> Array:
        """(N, C) scores of grey crops (N, H, W)."""
        return fuse(self.votes(crops)).T

    def votes(self, crops: Array) -> list[Array]:
        """(C, N) scores of the whole face, and of each of its parts, that `scores` puts together."""
        X = self.spec.vectors(crops).T
        if isinstance(self.coder, BaselineCoder):
            return [self.coder.scores(X)]
        parts = zip(self.W_parts, self.part_coders, strict=True)
        return [self.W @ self.coder.code(X), *(W @ coder.code(unit_part(X, rows)) for W, (rows, coder) in parts)]

    def predict(self, crops: Array) -> Array:
        """(N,) names."""
        return np.array(self.labels)[self.scores(crops).argmax(axis=1)]

    def doubted(self, sources: Sequence[str]) -> list[str]:
        """What to say of the photos that probably have a wrong name; `sources` are those of the gallery it was trained on."""
        return [f"{sources[crop]} (looks like {self.labels[person]})" for crop, person in self.training.get("doubted", ())]

    def facts(self) -> dict[str, Any]:
        """What a person or a script may want to know of it: no name, no pixel."""
        return {
            "people": len(self.labels),
            "photos": len(self.crops),
            "crop": f"{self.spec.height}x{self.spec.width}",
            "alignment": self.alignment,
            "features": self.spec.settings(),
            "coding": asdict(self.coding),
            "D": self.D.shape,
            "W": self.W.shape,
            "parts": self.parts,
            "parameters": self.parameters,
            "training": {name: value for name, value in self.training.items() if name != "residuals"},
            "rejection": self.rejection and asdict(self.rejection),
            "fingerprint": self.fingerprint,
            "format": FORMAT,
        }

    def save(self, path: str | Path) -> None:
        header = {
            "format": FORMAT,
            "spec": self.spec.settings(),
            "alignment": self.alignment,
            "coding": asdict(self.coding),
            "parts": self.parts,
            "labels": self.labels,
            "parameters": self.parameters,
            "training": self.training,
            "rejection": self.rejection and asdict(self.rejection),
            "fingerprint": self.fingerprint,
        }
        arrays = {name: getattr(self, name) for name in ARRAYS}
        if self.spec.network is not None:
            arrays[NETWORK] = np.frombuffer(self.spec.network.model, np.uint8)
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(json.dumps(header, default=_plain)), **arrays)
        try:
            write_atomically(path, buffer.getvalue())
        except OSError as error:
            raise ModelError(
                f"{path} cannot be written ({error.strerror}).", "Choose another place, or check its room and permissions."
            ) from None

    @classmethod
    def load(cls, path: str | Path) -> Model:
        again = "Train it again with `trainer fit`."
        try:
            if not zipfile.is_zipfile(path):
                open(path, "rb").close()  # says why a file cannot be opened, where that is what is wrong
                raise ModelError(f"{path} is not a model file.", "Pass a file that `trainer fit` wrote.")
            with np.load(path, allow_pickle=False) as archive:
                if "header" not in archive:
                    raise ModelError(f"{path} is not a model file.", "Pass a file that `trainer fit` wrote.")
                header = json.loads(str(archive["header"]))
                if not isinstance(header, dict):
                    raise ModelError(f"{path} is damaged.", again)
                if header.get("format") != FORMAT:
                    raise ModelError(f"{path} has format {header.get('format')}, and this version reads {FORMAT}.", again)
                model = cls(
                    spec=from_settings(header["spec"], archive[NETWORK].tobytes() if NETWORK in archive else None),
                    alignment=header["alignment"],
                    coding=restored_coding(header["coding"]),
                    parts=header["parts"] and tuple(header["parts"]),
                    labels=tuple(header["labels"]) if isinstance(header["labels"], list) else (),
                    parameters=header["parameters"],
                    training=header["training"],
                    rejection=header["rejection"] and Rejection(**header["rejection"]),
                    fingerprint=header["fingerprint"],
                    **{name: archive[name] for name in ARRAYS},
                )
                fits = model._fits()
        except ModelError:
            raise
        except OSError as error:
            raise ModelError(f"{path} cannot be opened ({error.strerror or error}).", "Check the path.") from None
        except Exception:  # zipfile, numpy and json have a dozen ways to choke on bytes that nobody wrote
            raise ModelError(f"{path} is damaged.", again) from None
        if not fits:
            raise ModelError(f"The parts of {path} do not fit together.", again)
        return model

    def _fits(self) -> bool:
        (d, m), people, n = self.D.shape, len(self.labels), len(self.crops)
        return bool(
            d == self.spec.length
            and self.alignment in ALIGNMENTS
            and m > 0
            and len(set(self.labels)) == people
            and all(isinstance(label, str) for label in self.labels)
            and self.D.dtype == self.W.dtype == np.float32
            and self.crops.dtype == np.uint8
            and self.W.shape == (people, m)
            and self.W_parts.dtype == np.float32
            and self.W_parts.shape == (len(part_rows(self.spec, self.parts)), people, m)
            and np.isfinite(self.W_parts).all()
            and self.atom_people.shape == (m,)
            and self.crops.shape == (n, self.spec.height, self.spec.width)
            and self.crop_people.shape == (n,)
            and np.isfinite(self.D).all()
            and np.isfinite(self.W).all()
            and all(
                index.dtype.kind in "iu" and (index >= 0).all() and (index < people).all()
                for index in (self.atom_people, self.crop_people)
            )
        )


def _plain(value: Any) -> Any:
    """NumPy's numbers and our settings, for JSON."""
    return value.item() if isinstance(value, np.generic) else asdict(value)


def fit(
    gallery: Gallery,
    spec: Spec,
    parameters: dict[str, Any],
    callback: Callable[[Step], None] | None = None,
    *,
    method: type[FaceClassifier] = LCLRRDL,
    fpir: float | None = None,
    strangers: Gallery | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Train on a gallery. `parameters` are those of the `method`: LCLRRDL, or a baseline that a device can use.

    `fpir` is the share of strangers' photos that may be given a name: with it the threshold is measured, on people who are
    left out, if there are enough, and on `strangers`, if there are any. `progress` is called with (folds done, folds).
    """
    watched = {"callback": callback} if method is LCLRRDL else {}
    estimator: Any = method(features=spec, **watched, **parameters)
    try:
        estimator.fit(gallery.images, gallery.labels)
    except FloatingPointError as error:
        raise TrainingError(f"Training broke down: {error}.", "Use a larger gamma.") from None
    training: dict[str, Any] = {"method": method.__name__}
    if isinstance(estimator, LCLRRDL):
        training["iterations"] = estimator.n_iter_
        training["rank"] = estimator.result_.rank
        training["residuals"] = [[float(f"{value:.3g}") for value in step] for step in estimator.result_.residuals]
    model = learned(estimator, gallery, spec, training)
    model.training["accuracy"] = float(estimator.score(gallery.images, gallery.labels))
    if fpir is None:
        return model
    left_out = public = np.zeros(0)
    if len(gallery.people) >= calibrate.FEWEST_PEOPLE:
        left_out = calibrate.strangers_confidence(gallery, spec, parameters, method=method, progress=progress)
    if strangers is not None:
        public = score_confidence(model.scores(strangers.images))
    return replace(model, rejection=calibrate.stricter(left_out, public, fpir))


def learned(estimator: Any, gallery: Gallery, spec: Spec, training: dict[str, Any]) -> Model:
    """The model of an estimator that was fitted to a gallery, without a threshold; `training` says how D was learned."""
    people = np.searchsorted(estimator.classes_, gallery.labels)
    coding = estimator.coder_.coding if isinstance(estimator, LCLRRDL) else estimator.coding
    stored = estimator.get_params() | {"coding": coding.kind}
    model = Model(
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
        parameters={name: stored[name] for name in sorted(stored) if name not in ("callback", "features")},
        training=training | {"versions": {name: version(name) for name in ("lclrr-edge", "numpy", "scipy", "scikit-learn")}},
        rejection=None,
        fingerprint=gallery.fingerprint,
    )
    seen = np.searchsorted(estimator.classes_, getattr(estimator, "looks_like_", gallery.labels))
    model.training["doubted"] = [[int(crop), int(seen[crop])] for crop in np.flatnonzero(seen != people)]
    return model
