"""The parity check rejects a kit that computes something else than the trainer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.errors import GalleryError, KitError, ParityError, SelfTestError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.vision.preprocess import FeatureSpec
from export import graph
from export.graph import Factors
from export.nodes import PRECISIONS, Precision
from export.pack import fingerprint
from export.verify import verify_kit
from tests.fixtures import kits as doors
from trainer.data.gallery import Gallery
from trainer.method.coding import Coding


def kit(coding: str = "l21", precision: Precision = "fp32") -> Kit:
    return kits.parse(doors.kit(coding, precision))


def faces() -> Gallery:
    images, names = doors.held_out()
    return Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))


@pytest.mark.parametrize("coding", ["l1", "l21"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_correct_kit_passes(coding: str, precision: Precision) -> None:
    model = doors.model("pixels", coding, 4)
    found = {parity.crops: parity for parity in verify_kit(kit(coding, precision), faces(), model)}
    assert all(parity.holds and parity.score_difference < 1e-4 for parity in found.values())
    assert found["given"].number == len(faces().images)
    assert found["training"].accuracy == 1
    assert ("training, unfolded" in found) == (precision == "fp32")


def test_other_coding_fails() -> None:
    l1, l21 = kit("l1"), kit()
    with pytest.raises(ParityError, match="differs from NumPy"):
        verify_kit(replace(l1, manifest=replace(l1.manifest, coding={**l1.manifest.coding, "iterations": 3})), faces())
    factors = Factors.of(doors.model("pixels", "l21", 4))
    spec = doors.model("pixels", "l21", 4).spec
    other = graph.build(replace(factors, coding=replace(factors.coding, lam=1.0)), spec)
    with pytest.raises(ParityError):  # even without faces
        verify_kit(replace(l21, recognizer=other))


def test_other_model_or_other_weights_fail() -> None:
    with pytest.raises(ParityError, match="not built from this model"):
        verify_kit(kit("l21"), model=doors.model("pixels", "l1", 4))
    # A graph that agrees with its own weights, but not with the model that the manifest names.
    model = doors.model("pixels", "l21", 4)
    factors = Factors.of(model)
    changed = replace(kit(), recognizer=graph.build(replace(factors, B=factors.B[::-1].copy()), model.spec))
    with pytest.raises(SelfTestError):
        verify_kit(changed, faces())
    with pytest.raises(ParityError, match="unfolded"):
        verify_kit(changed, model=model)


def test_faces_of_another_size_are_rejected() -> None:
    with pytest.raises(GalleryError, match="24x20"):
        verify_kit(kit(), replace(faces(), images=np.zeros((len(faces().images), 8, 8), np.uint8)))


def test_manifest_that_does_not_match_the_graph_is_rejected() -> None:
    correct = kit()
    for changed in ({"kind": "wavelets"}, {"more": 1}):
        broken = replace(correct.manifest, features={**correct.manifest.features, **changed})
        with pytest.raises(KitError, match="does not match"):
            verify_kit(replace(correct, manifest=broken))


def test_fingerprint_covers_all_data_of_the_model() -> None:
    model = doors.model("pixels", "l21", 4)
    assert isinstance(model.spec, FeatureSpec)
    assert isinstance(model.coding, Coding)
    changes = [
        replace(model, D=model.D * np.float32(1.001)),
        replace(model, W=model.W[::-1]),
        replace(model, labels=model.labels[::-1]),
        replace(model, coding=replace(model.coding, lam=4.0)),
        replace(model, spec=replace(model.spec, blur=0.7)),
    ]
    prints = {fingerprint(changed) for changed in [model, *changes]}
    assert len(prints) == len(changes) + 1
    assert fingerprint(replace(model)) == fingerprint(model)
    assert all(len(bytes.fromhex(value)) == 32 for value in prints)
