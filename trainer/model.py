"""The model file: a NumPy archive without pickles, of a JSON header and arrays. It is replaced in one step.

Atoms and crops look like the people they were made from: the file is biometric data, only its owner may read it, and it stays
on the workstation. The device gets a kit, made by `edge-export`.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import ModelError
from edge.files import read_bytes, write_file
from edge.kit.manifest import ABSOLUTE, ALIGNMENTS, RELATIVE
from trainer.baselines.coders import AnyCoding, BaselineCoder, restored_coding
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec, from_settings
from trainer.method.coding import Coder, Coding
from trainer.method.experts import expert_rows
from trainer.method.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.thresholds import StrangerCalibration
from trainer.types import Array

FORMAT = 1
ARRAYS = ("D", "W", "W_parts", "atom_people", "crops", "crop_people")
TEMPLATES = "templates"  # key of the cosine, if the model has experts
NETWORK = "backbone"  # key of the network file, if the features are those of a network


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """A trained model: what recognition, export and further training need."""

    spec: Spec
    alignment: str
    """How the crops were made: one of edge.kit.manifest's ALIGNMENTS."""
    coding: AnyCoding
    """Settings of the coder."""
    labels: tuple[str, ...]
    """The people, in the order of W's rows."""
    D: Array
    """(d, m) float32, the dictionary. Experts: that of each expert in its rows."""
    W: Array
    """(C, m) float32, the classifier. Experts: that of the network."""
    parts: Grid | None
    """Grid of the parts of the face (trainer.method.parts), or None."""
    W_parts: Array
    """(P, C, m) float32, a classifier for each part. Experts: the only part is that of our own features."""
    templates: Array | None = None
    """(C, k) float32, the cosine beside a network (trainer.method.experts). None: the model has no experts."""
    atom_people: Array
    """(m,) index into labels: the person of the photo that the atom started from."""
    crops: Array
    """(N, *spec.crop_shape) uint8, the training crops. The exporter calibrates on them."""
    crop_people: Array
    """(N,) index into labels."""
    parameters: dict[str, Any]
    """Parameters of the estimator."""
    training: dict[str, Any]
    """Facts: method, versions, iterations, suspected labels; after `fit` also residuals, rank, accuracy on the crops."""
    calibration: StrangerCalibration | None
    """The threshold that rejects strangers; None if it was not measured."""
    fingerprint: str
    """Gallery.fingerprint of the training photos."""

    @property
    def confidence(self) -> str:
        """The kind of confidence that the scores have (edge.vision.confidence)."""
        return RELATIVE if self.templates is None else ABSOLUTE

    @cached_property
    def part_rows(self) -> list[Array]:
        """The feature rows of each part. Experts: those of our own features."""
        return part_rows(self.spec, self.parts) if self.templates is None else expert_rows(self.spec)[1:]

    @cached_property
    def network_rows(self) -> Array | None:
        """Experts: the feature rows of the network."""
        return None if self.templates is None else expert_rows(self.spec)[0]

    @cached_property
    def coder(self) -> Coder | BaselineCoder:
        if isinstance(self.coding, Coding):
            return Coder(self.D if self.network_rows is None else self.D[self.network_rows], self.coding)
        return BaselineCoder.of(self.D, self.W, self.coding)

    @cached_property
    def part_coders(self) -> list[tuple[Array, Coder]]:
        """The feature rows of each part, and its coder. Baselines have no parts."""
        if not isinstance(self.coding, Coding):
            return []
        return list(zip(self.part_rows, part_coders(self.D, self.part_rows, self.coding), strict=True))

    def scores(self, crops: Array) -> Array:
        """Return (N, C) scores of crops (N, *spec.crop_shape)."""
        parts = self.part_scores(crops)
        return (fuse(parts) if self.templates is None else np.sum(parts, axis=0)).T

    def part_scores(self, crops: Array) -> list[Array]:
        """Return the scores (C, N) of the whole face and of each part, or of each expert, before `scores` combines them."""
        X = whole = self.spec.vectors(crops).T
        if isinstance(self.coder, BaselineCoder):
            return [self.coder.scores(X)]
        if self.network_rows is not None:
            whole = unit_part(X, self.network_rows)
        parts = zip(self.W_parts, self.part_coders, strict=True)
        scores = [self.W @ self.coder.code(whole), *(W @ coder.code(unit_part(X, rows)) for W, (rows, coder) in parts)]
        return scores if self.templates is None else [self.templates @ whole, *scores]

    def predict(self, crops: Array) -> Array:
        """Return the (N,) labels of crops (N, *spec.crop_shape)."""
        return np.array(self.labels)[self.scores(crops).argmax(axis=1)]

    def gallery(self) -> Gallery:
        """Return the training crops as a gallery."""
        return Gallery(
            images=self.crops,
            labels=np.array(self.labels)[self.crop_people],
            sources=tuple(f"model[{i}]" for i in range(len(self.crops))),
            alignment=self.alignment,
        )

    def suspected_labels(self, sources: Sequence[str]) -> list[str]:
        """Describe the crops with a suspected wrong label; `sources` says where each crop came from."""
        return [f"{sources[crop]} (looks like {self.labels[person]})" for crop, person in self.training.get("doubted", ())]

    def facts(self) -> dict[str, Any]:
        """Return a description without names and pixels."""
        facts = self._header() | {
            "people": len(self.labels),
            "photos": len(self.crops),
            "crop": "x".join(map(str, self.spec.crop_shape)),
            "features": self.spec.settings(),
            "D": self.D.shape,
            "W": self.W.shape,
            "training": {name: value for name, value in self.training.items() if name != "residuals"},
        }
        return {name: value for name, value in facts.items() if name not in ("labels", "spec")}

    def _header(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "spec": self.spec.settings(),
            "alignment": self.alignment,
            "coding": asdict(self.coding),
            "parts": self.parts,
            "labels": self.labels,
            "parameters": self.parameters,
            "training": self.training,
            "rejection": self.calibration and asdict(self.calibration),
            "fingerprint": self.fingerprint,
        }

    def save(self, path: str | Path) -> None:
        arrays = {name: getattr(self, name) for name in ARRAYS}
        if self.spec.network is not None:
            arrays[NETWORK] = np.frombuffer(self.spec.network.model, np.uint8)
        if self.templates is not None:
            arrays[TEMPLATES] = self.templates
        buffer = io.BytesIO()
        np.savez(buffer, header=np.array(json.dumps(self._header(), default=_to_json)), **arrays)
        write_file(path, buffer.getvalue(), failure=ModelError)

    @classmethod
    def load(cls, path: str | Path) -> "Model":
        again = "Train it again with `trainer fit`."
        data = io.BytesIO(read_bytes(path, failure=ModelError))
        try:
            with np.load(data, allow_pickle=False) as archive:
                header = json.loads(str(archive["header"]))
                if header.get("format") != FORMAT:
                    raise ModelError(f"{path} has format {header.get('format')}, but this version reads {FORMAT}.", again)
                model = cls(
                    spec=from_settings(header["spec"], archive[NETWORK].tobytes() if NETWORK in archive else None),
                    alignment=header["alignment"],
                    coding=restored_coding(header["coding"]),
                    parts=header["parts"] and tuple(header["parts"]),
                    labels=tuple(header["labels"]) if isinstance(header["labels"], list) else (),
                    parameters=header["parameters"],
                    training=header["training"],
                    calibration=header["rejection"] and StrangerCalibration(**header["rejection"]),
                    fingerprint=header["fingerprint"],
                    templates=archive.get(TEMPLATES),
                    **{name: archive[name] for name in ARRAYS},
                )
                consistent = model._is_consistent()
        except ModelError:
            raise
        except Exception:  # zipfile, numpy and json raise many kinds of errors on damaged bytes and on other files
            raise ModelError(f"{path} is damaged, or not a model file.", "Pass a file that `trainer fit` wrote.") from None
        if not consistent:
            raise ModelError(f"The parts of {path} do not fit together.", again)
        return model

    def _is_consistent(self) -> bool:
        (d, m), people, n = self.D.shape, len(self.labels), len(self.crops)
        floats = [self.D, self.W, self.W_parts, *([] if self.templates is None else [self.templates])]
        return bool(
            d == self.spec.length
            and self.alignment in ALIGNMENTS
            and m > 0
            and len(set(self.labels)) == people
            and all(isinstance(label, str) for label in self.labels)
            and self.crops.dtype == np.uint8
            and self.W.shape == (people, m)
            and self.W_parts.shape == (len(self.part_rows), people, m)
            and (self.templates is None or self.templates.shape == (people, len(expert_rows(self.spec)[0])))
            and self.atom_people.shape == (m,)
            and self.crops.shape == (n, *self.spec.crop_shape)
            and self.crop_people.shape == (n,)
            and all(array.dtype == np.float32 and np.isfinite(array).all() for array in floats)
            and all(
                index.dtype.kind in "iu" and (index >= 0).all() and (index < people).all()
                for index in (self.atom_people, self.crop_people)
            )
        )


def _to_json(value: Any) -> Any:
    """Return NumPy numbers and our settings as plain values."""
    return value.item() if isinstance(value, np.generic) else asdict(value)
