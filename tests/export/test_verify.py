"""Parity: a kit that computes something else than the trainer is found out."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from edge.errors import GalleryError, KitError, ParityError, SelfTestError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.vision.preprocess import FeatureSpec
from export import graph
from export.graph import PRECISIONS, Factors, Precision
from export.verify import verify
from tests.fixtures import kits as doors
from trainer.data.gallery import Gallery


def kit(coding: str = "l21", precision: Precision = "fp32") -> Kit:
    return kits.parse(doors.kit(coding, precision))


def faces() -> Gallery:
    images, names = doors.held_out()
    return Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))


@pytest.mark.parametrize("coding", ["l1", "l21"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_honest_kit_passes(coding: str, precision: Precision) -> None:
    model = doors.model("pixels", coding, 4)
    found = {parity.crops: parity for parity in verify(kit(coding, precision), faces(), model)}
    assert all(parity.holds and parity.score_difference < 1e-4 for parity in found.values())
    assert found["given"].number == len(faces().images)
    assert found["training"].accuracy == 1
    assert ("training, unfolded" in found) == (precision == "fp32")


def test_another_number_of_iterations_is_found_out() -> None:
    honest = kit("l1")
    lying = replace(honest, manifest=replace(honest.manifest, coding={**honest.manifest.coding, "iterations": 3}))
    with pytest.raises(ParityError, match="differs from NumPy"):
        verify(lying, faces())


def test_another_coding_is_found_out_without_faces() -> None:
    honest, model = kit(), doors.model("pixels", "l21", 4)
    other = graph.build(Factors.of(model), model.spec, replace(model.coding, lam=1.0))
    with pytest.raises(ParityError):
        verify(replace(honest, recognizer=other))


def test_another_model_is_found_out() -> None:
    with pytest.raises(ParityError, match="not built from this model"):
        verify(kit("l21"), model=doors.model("pixels", "l1", 4))


def test_weights_that_are_not_the_model_s_are_found_out() -> None:
    """The graph is true to its own weights, and they are not those of the model that the manifest names."""
    honest, model = kit(), doors.model("pixels", "l21", 4)
    factors = Factors.of(model)
    other = graph.build(replace(factors, B=factors.B[::-1].copy()), model.spec, model.coding)
    changed = replace(honest, recognizer=other)
    with pytest.raises(SelfTestError):
        verify(changed, faces())
    with pytest.raises(ParityError, match="unfolded"):
        verify(changed, model=model)


def test_faces_of_another_size_are_refused() -> None:
    with pytest.raises(GalleryError, match="24x20"):
        verify(kit(), replace(faces(), images=np.zeros((len(faces().images), 8, 8), np.uint8)))


def test_a_manifest_that_numpy_cannot_follow_is_refused() -> None:
    honest = kit()
    for changed in ({"kind": "wavelets"}, {"more": 1}):
        broken = replace(honest.manifest, features={**honest.manifest.features, **changed})
        with pytest.raises(KitError, match="do not fit together"):
            verify(replace(honest, manifest=broken))


def test_the_fingerprint_covers_what_is_computed() -> None:
    from export.pack import fingerprint

    model = doors.model("pixels", "l21", 4)
    assert isinstance(model.spec, FeatureSpec)
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
    assert all(len(bytes.fromhex(value)) == hashlib.sha256().digest_size for value in prints)
