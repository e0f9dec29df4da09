"""The parity check rejects a kit that computes something else than the trainer."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edge.errors import GalleryError, KitError, ParityError, SelfTestError
from edge.kit import format as kits
from edge.kit.format import Kit
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import Recognizer
from export import graph, verify
from export.build import build_kit
from export.graph import Factors
from export.nodes import PRECISIONS, Precision
from export.pack import fingerprint
from export.verify import verify_kit
from tests.fixtures import kits as doors
from tests.fixtures.crowd import SPEC as CROWD
from tests.fixtures.crowd import TINY, crowd
from tests.fixtures.embedding import EXPERTS, network_model
from trainer.data.gallery import Gallery
from trainer.method.coding import Coding
from trainer.model import Model
from trainer.shards import fit as sharded
from trainer.shards.model import ShardedModel
from trainer.shards.training import shards_of


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


@cache
def many_people() -> ShardedModel:
    return sharded.fit(crowd(40), CROWD, TINY, fpir=0.05, shard_of_person=shards_of(40, size=8))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_kit_of_shards_has_the_scores_of_the_model(precision: Precision, tmp_path: Path) -> None:
    many_people().save(tmp_path / "model.npz")
    model = Model.load(tmp_path / "model.npz")  # its crops are in the file
    built = build_kit(model, precision=precision)
    kit = kits.parse(built.kit)
    found = {parity.crops for parity in verify_kit(kit, model=model)}
    assert ("training, unfolded" in found) == (precision == "fp32")
    others = crowd(40, seed=2).images
    label = np.concatenate([Recognizer(kit).outputs(others[i : i + 8])["label"] for i in range(0, len(others), 8)])
    assert np.mean(label == model.scores(others).argmax(axis=1)) > 0.97


def test_kit_of_shards_of_a_network_has_the_scores_of_the_model() -> None:
    plain = network_model("pixels", experts=True)
    parameters = {"atoms_per_class": 4, "coding": "l21", **EXPERTS}
    model = sharded.fit(plain.gallery(), plain.spec, parameters, shard_of_person=np.arange(5, dtype=np.int32) % 2)
    for precision in PRECISIONS:
        kit = kits.parse(build_kit(model, precision=precision, allow_loss=True).kit)
        scores = Recognizer(kit).outputs(model.crops)["scores"]
        assert np.abs(scores - model.scores(model.crops)).max() < 0.05  # fewer iterations, fewer bits


def test_fingerprint_of_shards_covers_what_computes() -> None:
    model = many_people()
    prints = {fingerprint(model)}
    for at, name in ((0, "U"), (0, "s"), (0, "B"), (1, "rows"), (2, "B")):
        blocks = list(model.blocks)
        blocks[at] = replace(blocks[at], **{name: getattr(blocks[at], name)[::-1].copy()})
        prints.add(fingerprint(replace(model, of_blocks=tuple(blocks))))
    assert len(prints) == 6
    assert fingerprint(replace(model)) in prints


def test_fingerprints_of_plain_models_stay_the_same() -> None:
    """Kits name their model by it: this is the definition of 0.3."""
    model = doors.model("pixels", "l21", 4)
    header = {"spec": model.spec.settings(), "alignment": model.alignment, "labels": model.labels}
    digest = hashlib.sha256(json.dumps(header | {"coding": asdict(model.coding)}, sort_keys=True).encode())
    for array in (model.D, model.W, model.W_parts):
        digest.update(str((array.dtype.str, array.shape)).encode() + array.tobytes())
    assert fingerprint(model) == digest.hexdigest()


def test_at_most_so_many_faces_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "FACES", 5)
    found = verify_kit(kit(), faces(), doors.model("pixels", "l21", 4))
    assert {parity.crops: parity.number for parity in found} | {"random": 0} == {
        "random": 0,
        "given": 5,
        "training": 5,
        "training, unfolded": 5,
    }
