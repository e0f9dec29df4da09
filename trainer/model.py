"""The model file: a NumPy archive without pickles, of a JSON header and arrays. It is replaced in one step.

Atoms and crops look like the people they were made from: the file is biometric data, only its owner may read it, and it stays
on the workstation. The device gets a kit, made by `edge-export`.
"""

import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from edge.errors import ModelError
from edge.files import write_file
from edge.kit.manifest import ABSOLUTE, ALIGNMENTS, RELATIVE
from trainer.baselines.coders import AnyCoding, BaselineCoder, restored_coding
from trainer.data.archives import TooLargeError, open_npz
from trainer.data.gallery import Gallery
from trainer.features.spec import Spec, from_settings
from trainer.method.base import FaceClassifier
from trainer.method.blocks import Block
from trainer.method.coding import Coder, Coding
from trainer.method.experts import expert_rows
from trainer.method.parts import Grid, fuse, part_coders, part_rows, unit_part
from trainer.thresholds import StrangerCalibration
from trainer.types import Array

if TYPE_CHECKING:  # it needs this module
    from trainer.shards.model import ShardedModel

FORMAT = 1
MAX_HEADER = 64 << 20  # bytes, four for each letter; 10,000 people with names of 255 letters have 10 MB
ARRAYS = ("D", "W", "W_parts", "atom_people", "crops", "crop_people")
TEMPLATES = "templates"  # key of the cosine, if the model has experts
NETWORK = "backbone"  # key of the network file, if the features are those of a network


class InconsistentError(Exception):
    """The arrays of a model file do not fit together."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Model:
    """The trained model, of one dictionary or of shards: the people, the training photos, and how it was trained."""

    spec: Spec
    """The features of a crop."""
    alignment: str
    """How the crops were made: one of edge.kit.manifest's ALIGNMENTS."""
    coding: AnyCoding
    """Settings of the coder."""
    labels: tuple[str, ...]
    """The people, in the order of the scores."""
    parts: Grid | None
    """Grid of the parts of the face (trainer.method.parts), or None."""
    templates: Array | None = None
    """(C, k) float32, the cosine beside a network (trainer.method.experts). None: the model has no experts."""
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
    def plain(self) -> "PlainModel | None":
        """The model itself if it has one dictionary, whose atoms and codes can be shown."""
        return None

    @property
    def sharded(self) -> "ShardedModel | None":
        """The model itself if it has shards."""
        return None

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

    def scores(self, crops: Array) -> Array:
        """Return (N, C) scores of crops (N, *spec.crop_shape)."""
        raise NotImplementedError

    @property
    def blocks(self) -> tuple[Block, ...]:
        """What the device needs: of the whole face and its parts, or of the experts. None of a baseline."""
        raise NotImplementedError

    def computing_arrays(self) -> list[Array]:
        """Return the arrays that scores are computed with, for a fingerprint."""
        raise NotImplementedError

    def save(self, path: str | Path) -> None:
        """Write the model file in one step."""
        raise NotImplementedError

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file that `trainer fit` wrote: a PlainModel, or a trainer.shards.model.ShardedModel."""
        from trainer.shards.model import ShardedModel  # it needs this class

        again = "Train it again with `trainer fit`."
        try:
            with open_npz(path) as archive:
                if archive.zip.getinfo("header.npy").file_size > MAX_HEADER:
                    raise ValueError("as objects of Python, the header would take much memory")
                header = json.loads(str(archive["header"]))
                if (found := header.get("format")) not in (FORMAT, ShardedModel.FORMAT):
                    raise ModelError(f"{path} has format {found}, but this version reads {FORMAT}.", again)
                model: Model
                model = PlainModel.read(header, archive) if found == FORMAT else ShardedModel.read(header, archive, Path(path))
        except ModelError:
            raise
        except TooLargeError as error:
            raise ModelError(f"{path} {error}.", again) from None
        except InconsistentError:
            raise ModelError(f"The parts of {path} do not fit together.", again) from None
        except Exception as error:  # zipfile, numpy and json raise many kinds of errors on damaged bytes and on other files
            if isinstance(error, OSError) and error.errno is not None:
                raise ModelError(f"{path} cannot be read ({error.strerror}). Check the path.") from None
            raise ModelError(f"{path} is damaged, or not a model file.", "Pass a file that `trainer fit` wrote.") from None
        if not isinstance(model, cls):
            raise ModelError(f"{path} is another kind of model.", "Read it with Model.load.")
        return model

    def with_coding(self, coding: AnyCoding) -> Self:
        """Return the model with other settings of the coder."""
        return replace(self, coding=coding)

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

    def summary(self) -> str:
        """Describe what was learned, in a few words."""
        raise NotImplementedError

    def suspected_labels(self, sources: Sequence[str]) -> list[str]:
        """Describe the crops with a suspected wrong label; `sources` says where each crop came from."""
        return [f"{sources[crop]} (looks like {self.labels[person]})" for crop, person in self.training.get("doubted", ())]

    def facts(self) -> dict[str, Any]:
        """Return a description without names and pixels."""
        facts = self.header() | {
            "people": len(self.labels),
            "photos": len(self.crops),
            "crop": "x".join(map(str, self.spec.crop_shape)),
            "features": self.spec.settings(),
            "training": {name: value for name, value in self.training.items() if name != "residuals"},
        }
        return {name: value for name, value in facts.items() if name not in ("labels", "spec")}

    def header(self) -> dict[str, Any]:
        """Return all that is not an array, for the file."""
        return {
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

    def has_consistent_photos(self) -> bool:
        """Whether labels, crops and templates fit together."""
        people, n = len(self.labels), len(self.crops)
        return bool(
            self.alignment in ALIGNMENTS
            and len(set(self.labels)) == people
            and all(isinstance(label, str) for label in self.labels)
            and self.crops.dtype == np.uint8
            and self.crops.shape == (n, *self.spec.crop_shape)
            and self.crop_people.shape == (n,)
            and (self.templates is None or self.templates.shape == (people, len(expert_rows(self.spec)[0])))
            and are_people(self.crop_people, people)
        )


def stored_parameters(estimator: FaceClassifier, coding: AnyCoding) -> dict[str, Any]:
    """Return the parameters of an estimator as a model stores them."""
    parameters = estimator.get_params() | {"coding": coding.kind}
    return {name: parameters[name] for name in sorted(parameters) if name not in ("callback", "features")}


def versions() -> dict[str, str]:
    """Return the versions of the software that trains a model."""
    return {name: version(name) for name in ("lclrr-edge", "numpy", "scipy", "scikit-learn")}


def are_people(index: Array, people: int) -> bool:
    """Whether all entries are indices of people."""
    return bool(index.dtype.kind in "iu" and (index >= 0).all() and (index < people).all())


def are_finite(arrays: Iterable[Array]) -> bool:
    """Whether all arrays are float32 without NaN or infinity."""
    return all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays)


def header_fields(header: dict[str, Any], network: bytes | None) -> dict[str, Any]:
    """Return the fields of Model that a header has; `network` is the file of a network."""
    return {
        "spec": from_settings(header["spec"], network),
        "alignment": header["alignment"],
        "coding": restored_coding(header["coding"]),
        "parts": header["parts"] and tuple(header["parts"]),
        "labels": tuple(header["labels"]) if isinstance(header["labels"], list) else (),
        "parameters": header["parameters"],
        "training": header["training"],
        "calibration": header["rejection"] and StrangerCalibration(**header["rejection"]),
        "fingerprint": header["fingerprint"],
    }


def header_array(header: dict[str, Any]) -> Array:
    """Return a header as the array that the file stores."""
    return np.array(json.dumps(header, default=_to_json))


@dataclass(frozen=True, kw_only=True, eq=False)
class PlainModel(Model):
    """The model of one dictionary: what recognition, export and further training need."""

    D: Array
    """(d, m) float32, the dictionary. Experts: that of each expert in its rows."""
    W: Array
    """(C, m) float32, the classifier. Experts: that of the network."""
    W_parts: Array
    """(P, C, m) float32, a classifier for each part. Experts: the only part is that of our own features."""
    atom_people: Array
    """(m,) index into labels: the person of the photo that the atom started from."""

    @property
    def plain(self) -> "PlainModel":
        return self

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

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """What the device needs of D and W. s rises: sums from small to large lose the fewest digits."""
        if not isinstance(self.coder, Coder):
            return ()
        parts = ((rows, coder, W) for (rows, coder), W in zip(self.part_coders, self.W_parts, strict=True))
        found = []
        for rows, coder, W in ((self.network_rows, self.coder, self.W), *parts):
            U, s, V = (factor[..., ::-1] for factor in coder.svd)
            found.append(Block(rows, np.ascontiguousarray(U), np.ascontiguousarray(s), W @ V))
        return tuple(found)

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

    def computing_arrays(self) -> list[Array]:
        return [self.D, self.W, self.W_parts, *([] if self.templates is None else [self.templates])]

    def summary(self) -> str:
        text, iterations = f"{self.D.shape[1]} atoms of {self.D.shape[0]} values", self.training.get("iterations")
        return f"{text}, {iterations} iterations" if iterations else text

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"D": self.D.shape, "W": self.W.shape}

    def save(self, path: str | Path) -> None:
        arrays = {name: getattr(self, name) for name in ARRAYS}
        if self.spec.network is not None:
            arrays[NETWORK] = np.frombuffer(self.spec.network.model, np.uint8)
        if self.templates is not None:
            arrays[TEMPLATES] = self.templates
        buffer = io.BytesIO()
        np.savez(buffer, header=header_array({"format": FORMAT, **self.header()}), **arrays)
        write_file(path, buffer.getvalue(), failure=ModelError)

    @classmethod
    def read(cls, header: dict[str, Any], archive: Any) -> "PlainModel":
        """Return the model of a header and an open archive. Raise ValueError if they do not fit together."""
        model = cls(
            **header_fields(header, archive[NETWORK].tobytes() if NETWORK in archive else None),
            templates=archive.get(TEMPLATES),
            **{name: archive[name] for name in ARRAYS},
        )
        if not model._is_consistent():
            raise InconsistentError
        return model

    def _is_consistent(self) -> bool:
        (d, m), people = self.D.shape, len(self.labels)
        return bool(
            self.has_consistent_photos()
            and d == self.spec.length
            and m > 0
            and self.W.shape == (people, m)
            and self.W_parts.shape == (len(self.part_rows), people, m)
            and self.atom_people.shape == (m,)
            and are_people(self.atom_people, people)
            and are_finite([self.D, self.W, self.W_parts, *([] if self.templates is None else [self.templates])])
        )


def _to_json(value: Any) -> Any:
    """Return NumPy numbers and our settings as plain values."""
    return value.item() if isinstance(value, np.generic) else asdict(value)
