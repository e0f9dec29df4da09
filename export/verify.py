"""The parity check: compares the graph in onnxruntime with the trainer's NumPy code, face by face.

The NumPy side uses the kit's weights and manifest, the features of edge.vision.preprocess and the trainer's coder. (A network
has no NumPy side: its part of the graph runs alone.) If the model is given, the kit is also compared with the model itself.

The limits are the same for kits that multiply integers (int8 with the coding l21): the reference has the same digits, and
their sums are exact. Features that differ by 1e-7 may round to another last digit (export.integer): on 2,040 faces and noise
images of AR, scores differed by up to 3e-5. A label may then differ if the scores of both people are closer than the limit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge.errors import GalleryError, KitError, ParityError
from edge.kit import selftest
from edge.kit.format import Kit
from edge.vision.confidence import score_confidence, score_margin
from edge.vision.preprocess import FeatureSpec, features
from edge.vision.recognize import Recognizer
from export.graph import CONTRAST, has_network, stored_in
from export.integer_graph import IntegerFactors
from export.measure import FACES, evenly, non_faces
from export.pack import fingerprint
from export.run import Outputs, in_chunks, in_parallel, network_vectors, remember, run_graph
from trainer.baselines.coders import restored_coding
from trainer.data.gallery import Gallery
from trainer.features.network import KIND, stacked
from trainer.model import Model
from trainer.types import Array

SCORE_DIFFERENCE = 1e-4
OUTPUT_DIFFERENCE = 1e-3  # of confidence and the like, which divide by small numbers
ROUNDING = 1e-6
NETWORK_FACES = 128
HARD, UNFOLDED = "hardened", "training, unfolded"


@dataclass(frozen=True, kw_only=True)
class Parity:
    """Differences between the graph and NumPy on some crops."""

    crops: str
    """Which crops: random, given, training..."""
    number: int
    """How many crops."""
    score_difference: float
    """Largest absolute difference of a score."""
    output_difference: float
    """Largest absolute difference of another output."""
    other_labels: int
    """Faces whose label differs, though the scores of both labels are not equal."""
    accuracy: float | None = None
    """Accuracy of the kit, if the people are known."""

    @property
    def holds(self) -> bool:
        """Whether all differences are within the limits."""
        close = self.score_difference < SCORE_DIFFERENCE and self.output_difference < OUTPUT_DIFFERENCE
        return close and self.other_labels == 0


def verify_kit(
    kit: Kit, faces: Gallery | None = None, model: Model | None = None, measured: Array | None = None
) -> list[Parity]:
    """Compare on random crops, on `faces` and on the training crops of its `model`. Raise ParityError or SelfTestError.

    Of more than 1,024 faces, that many are used, of as many people as possible. With a network 128: it takes long, and has no
    NumPy side. `measured` are crops that its network has seen in this process: the rest of the graph is compared on all.
    """
    recognizer, reference = Recognizer(kit), Reference(kit)
    most, run = (NETWORK_FACES, in_parallel) if has_network(kit.recognizer) else (FACES, in_chunks)

    def compare(crops: Array, name: str, people: Array | None = None) -> Parity:
        outputs, expected = run(recognizer.outputs, crops), in_chunks(reference.outputs, crops)
        return _compare(kit, outputs, expected, name, people, integers=reference.integers)

    found = [compare(non_faces(kit.manifest.crop_shape, number=8, seed=1), "random")]
    if faces is not None:
        if faces.crop_shape != kit.manifest.crop_shape:
            size = "x".join(map(str, kit.manifest.crop_shape))
            raise GalleryError(f"The faces of --data must have {size} pixels.", "Crop them like the training photos.")
        some = evenly(faces.labels, most)
        found.append(compare(faces.images[some], "given", faces.labels[some]))
    if model is not None:
        if kit.manifest.model["sha256"] != fingerprint(model):
            raise ParityError("The kit was not built from this model.", "Pass the model from which it was built.")
        some = evenly(model.crop_people, most)
        found += _compare_with(model, kit, reference, partial(run, recognizer.outputs), some)
    if measured is not None and has_network(kit.recognizer):
        expected = in_chunks(reference.outputs, measured)
        found.append(_compare(kit, run_graph(kit.recognizer, measured), expected, HARD, integers=reference.integers))
    for parity in found:
        if not parity.holds:
            raise ParityError(
                f"The graph differs from NumPy on {parity.number} {parity.crops} crops: {parity.other_labels} other labels, "
                f"scores by up to {parity.score_difference:.1e}, other outputs by up to {parity.output_difference:.1e}.",
                "Do not use this kit: build it again, with another onnxruntime or precision.",
            )
    selftest.check(recognizer)
    return found


def _compare_with(
    model: Model, kit: Kit, reference: "Reference", run: Callable[[Array], Outputs], some: Array
) -> list[Parity]:
    """Compare with NumPy on some crops of the model; with all digits, also with the model itself."""
    names, crops = np.array(model.labels)[model.crop_people[some]], model.crops[some]
    unfolded = None
    if kit.manifest.precision == "fp32":
        coded = model if reference.coding == model.coding else model.with_coding(reference.coding)
        unfolded = in_chunks(lambda chunk: {"scores": coded.scores(chunk)}, crops)
        if model.spec.network is not None:
            remember(kit.recognizer, model.spec.network)
    outputs, expected = run(crops), in_chunks(reference.outputs, crops)
    found = [_compare(kit, outputs, expected, "training", names, integers=reference.integers)]
    return found if unfolded is None else [*found, _compare(kit, outputs, unfolded, UNFOLDED, names)]


class Reference:
    """The NumPy coder with a kit's weights."""

    def __init__(self, kit: Kit) -> None:
        try:
            self.coding = restored_coding(kit.manifest.coding)
            self.factors = stored_in(kit.recognizer, self.coding)
            self._features = _features(kit)
            if self.factors.confidence != kit.manifest.confidence:
                raise ValueError("another kind of confidence")
        except (TypeError, ValueError, KeyError, StopIteration):
            raise KitError("The kit's manifest does not match its graph.", "Build the kit again.") from None

    @property
    def integers(self) -> bool:
        """Whether the kit multiplies integers."""
        return isinstance(self.factors, IntegerFactors)

    def outputs(self, crops: Array) -> Outputs:
        found, code_norm, residual = self.factors.results(self._features(crops).T)
        scores = found.T
        channels = np.ascontiguousarray(np.moveaxis(crops.reshape(*crops.shape[:3], -1), 3, 1))  # much faster than strides
        visible = np.ptp(channels, axis=(2, 3)).max(axis=1) > CONTRAST
        return {
            "scores": scores,
            "confidence": score_confidence(scores, self.factors.confidence) * visible,
            "margin": score_margin(scores, self.factors.confidence) * visible,
            "code_norm": code_norm,
            "residual": residual,
        }


def _features(kit: Kit) -> Callable[[Array], Array]:
    """Return the function that computes feature rows from crops."""
    if kit.manifest.features["kind"] == KIND:
        beside = kit.manifest.features["beside"] and FeatureSpec(**kit.manifest.features["beside"])
        share = kit.manifest.features["share"]
        return lambda crops: stacked(network_vectors(kit.recognizer, crops), crops, beside, share)
    spec = FeatureSpec(**kit.manifest.features)
    return lambda crops: features(crops, spec)


def _compare(
    kit: Kit, graph: Outputs, expected: Outputs, name: str, people: Array | None = None, *, integers: bool = False
) -> Parity:
    # If the best two scores are equal, as on a blank crop, either label is right.
    equal = SCORE_DIFFERENCE if integers else ROUNDING
    number = len(graph["label"])
    best, found = expected["scores"].max(axis=1), expected["scores"][np.arange(number), graph["label"]]
    # NaN counts as an infinite difference.
    differences = {
        output: float(np.nan_to_num(np.abs(graph[output] - values), nan=np.inf).max()) for output, values in expected.items()
    }
    names = np.array(kit.manifest.labels)
    return Parity(
        crops=name,
        number=number,
        score_difference=differences.pop("scores"),
        output_difference=max(differences.values(), default=0.0),
        other_labels=int(np.sum(best - found > equal)),
        accuracy=None if people is None else float(np.mean(names[graph["label"]] == people)),
    )
