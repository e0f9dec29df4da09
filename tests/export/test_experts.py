"""Models with experts: from the file to the kit, the graph computes the same as the trainer, and an absolute confidence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from edge.errors import KitError, ModelError, ParityError
from edge.kit import format as kits
from edge.kit.manifest import ABSOLUTE, RELATIVE, Thresholds
from edge.vision.confidence import score_confidence, score_length, score_margin
from edge.vision.recognize import Recognizer
from export import graph
from export.build import build_kit
from export.graph import Factors
from export.nodes import PRECISIONS, Precision
from export.pack import bundle, fingerprint
from export.verify import verify_kit
from tests.fixtures.embedding import network_crops, network_model
from trainer.model import Model


@cache
def kit(own: str, precision: Precision = "fp32", *, experts: bool = True) -> kits.Kit:
    trained = network_model(own, experts=experts)
    return kits.parse(
        bundle(
            trained,
            graph.build(Factors.of(trained), trained.spec, precision),
            coding=trained.coding,
            precision=precision,
            thresholds=Thresholds(confidence=0.5, residual=2.0, provisional=True),
            calibration={},
            detector=None,
        )
    )


@pytest.mark.parametrize("own", ["", "both"])
def test_model_file_keeps_the_experts(own: str, tmp_path: Path) -> None:
    trained = network_model(own, experts=True)
    trained.save(tmp_path / "door.npz")
    loaded = Model.load(tmp_path / "door.npz")
    crops = network_crops()[0]
    assert np.array_equal(loaded.scores(crops), trained.scores(crops))
    assert loaded.confidence == ABSOLUTE
    with np.load(tmp_path / "door.npz") as archive:
        contents = dict(archive)
    contents["templates"] = contents["templates"][:, :-1]
    np.savez(tmp_path / "door.npz", **contents)
    with pytest.raises(ModelError, match="do not fit together"):
        Model.load(tmp_path / "door.npz")


@pytest.mark.parametrize(("own", "precision"), [("", "fp32"), *(("both", precision) for precision in PRECISIONS)])
def test_graph_computes_what_the_trainer_computes(own: str, precision: Precision) -> None:
    trained, built = network_model(own, experts=True), kit(own, precision)
    assert all(parity.holds for parity in verify_kit(built, model=trained))
    crops = network_crops()[0][5::8]  # held out
    found = Recognizer(built).outputs(crops)
    limit = {"fp32": 1e-4, "fp16": 5e-3, "int8": 0.05}[precision]
    np.testing.assert_allclose(found["scores"], trained.scores(crops), atol=limit)
    assert len(Factors.of(trained).parts) == (own != "")


def test_confidence_of_the_graph_is_absolute() -> None:
    recognizer = Recognizer(kit("both"))
    assert (recognizer.kit.manifest.confidence, network_model("both").confidence) == (ABSOLUTE, RELATIVE)
    crops = network_crops()[0]
    found = recognizer.outputs(crops)
    np.testing.assert_allclose(found["confidence"], score_confidence(found["scores"], ABSOLUTE), atol=1e-6)
    np.testing.assert_allclose(found["margin"], score_margin(found["scores"], ABSOLUTE), atol=1e-6)
    assert (found["scores"].max(axis=1) > 1).any()
    assert found["confidence"].max() == 1
    blank = recognizer.outputs(np.full((1, *crops.shape[1:]), 90, np.uint8))
    assert not blank["confidence"].any()
    assert not blank["margin"].any()


@pytest.mark.parametrize("experts", [True, False])
def test_recognition_keeps_the_length_of_the_scores(experts: bool) -> None:
    """Direction and length of the scores give the confidence back."""
    trained = network_model("both", experts=experts)
    recognizer = Recognizer(kit("both", experts=experts))
    crops = network_crops()[0][5::8]
    scores = recognizer.outputs(crops)["scores"]
    for one, row in zip(recognizer.recognize_crops(crops), scores, strict=True):
        assert one.scores is not None
        assert np.linalg.norm(one.scores) == pytest.approx(1, abs=1e-5)
        assert one.score_length == pytest.approx(np.linalg.norm(row) if experts else 1, rel=1e-5)
        assert one.score_length == pytest.approx(float(score_length(row, trained.confidence)))
        assert min(max(one.scores) * one.score_length, 1) == pytest.approx(one.confidence, abs=1e-5)
        assert "score_length" not in one.facts()


def test_kit_of_other_templates_is_not_that_of_the_model() -> None:
    trained = network_model("both", experts=True)
    assert trained.templates is not None
    other = replace(trained, templates=trained.templates[::-1].copy())
    assert fingerprint(other) != fingerprint(trained)
    with pytest.raises(ParityError, match="not built from this model"):
        verify_kit(kit("both"), model=other)


@pytest.mark.parametrize("experts", [True, False])
def test_manifest_with_the_other_kind_of_confidence_is_rejected(experts: bool) -> None:
    built = kit("both", experts=experts)
    other = replace(built.manifest, confidence=RELATIVE if experts else ABSOLUTE)
    with pytest.raises(KitError, match="manifest does not match its graph"):
        verify_kit(replace(built, manifest=other))


@pytest.mark.slow
def test_built_kit_passes_the_parity_check() -> None:
    trained = network_model("both", experts=True)
    built = build_kit(trained, precision="int8", allow_loss=True)
    assert kits.parse(built.kit).manifest.confidence == ABSOLUTE
    assert all(parity.holds for parity in verify_kit(kits.parse(built.kit), model=trained))


def test_build_without_comparisons_gives_the_same_kit() -> None:
    model = network_model("both", experts=True)
    compared, short = (build_kit(model, precision="fp16", allow_loss=True, compared=yes) for yes in (True, False))
    assert short.kit == compared.kit
    assert short.precision_timings.keys() == {"fp32", "fp16"}
