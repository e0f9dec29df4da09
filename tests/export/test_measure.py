"""The exporter's choices follow from what it measured, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edge.errors import GalleryError, ParameterError, PrecisionLossError, UsageError
from edge.kit.format import parse
from export import build as building
from export import graph, nodes
from export import measure as calibrate
from export.graph import Factors
from export.measure import ACCURACY_SHIFT, AGREEMENT, SURE, Faces
from tests.fixtures import kits as doors
from trainer.data.gallery import Gallery
from trainer.thresholds import StrangerCalibration

CODINGS = ("l1", "l21")


def held_out() -> Gallery:
    images, names = doors.held_out()
    return Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))


@pytest.mark.parametrize("coding", CODINGS)
def test_the_smallest_number_that_serves_is_chosen(coding: str) -> None:
    model = doors.model("both", coding)
    faces = calibrate.hardened(model)
    choice = calibrate.choose(model, Factors.of(model), faces)

    def serves(row: calibrate.Row) -> bool:
        shift = abs(row.accuracy - choice.converged_accuracy)
        return row.agreement >= AGREEMENT and row.sure >= SURE and shift < ACCURACY_SHIFT

    chosen = choice.coding.iterations
    assert choice.row.iterations == chosen
    assert all(map(serves, choice.rows[chosen - 1 :]))
    assert chosen == 1 or not serves(choice.rows[chosen - 2])
    assert choice.faces == len(faces.crops)


@pytest.mark.parametrize("coding", CODINGS)
def test_the_table_is_that_of_the_graph(coding: str) -> None:
    """What NumPy counted while choosing, the exported graph shows too."""
    model = doors.model("both", coding)
    faces = calibrate.hardened(model)
    choice = calibrate.choose(model, Factors.of(model), faces, iterations=3)
    assert choice.coding.iterations == 3
    built = graph.build(Factors.of(model), model.spec, choice.coding)
    assert calibrate.accuracy(built, faces) == pytest.approx(choice.row.accuracy, abs=1.5 / len(faces.crops))


@pytest.mark.parametrize("coding", CODINGS)
def test_faces_that_are_sure_keep_the_trainers_label(coding: str) -> None:
    """`sure` counts no face whose label the trainer's coder would change."""
    model = doors.model("pixels", coding)
    faces = calibrate.hardened(model)
    trainers = model.scores(faces.crops).argmax(axis=1)
    for row in calibrate.choose(model, Factors.of(model), faces).rows:
        built = graph.build(Factors.of(model), model.spec, replace(model.coding, iterations=row.iterations))
        labels = calibrate._outputs(built, faces.crops, "label")
        assert row.sure <= np.mean(labels == trainers) + 1e-9
    assert row.sure == 1


def test_where_no_number_will_do_the_trainers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l1")
    monkeypatch.setattr(calibrate, "AGREEMENT", 1.1)
    assert calibrate.choose(model, Factors.of(model), calibrate.hardened(model, limit=32)).coding == model.coding


@pytest.mark.parametrize("wanted", [0.96, 1.0])
def test_calibration_faces_are_as_hard_as_wanted(wanted: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "HARD_ENOUGH", wanted)
    model = doors.model("pixels", "l21")
    faces = calibrate.hardened(model)
    assert len(faces.crops) == 4 * len(model.crops)
    right = np.mean(model.scores(faces.crops).argmax(axis=1) == faces.people)
    assert abs(right - wanted) < 0.02
    again = calibrate.hardened(model)
    np.testing.assert_array_equal(faces.crops, again.crops)
    assert len(calibrate.hardened(model, limit=10).crops) == 10


def test_held_out_faces_must_fit() -> None:
    model = doors.model("both", "l1")
    faces = calibrate.held_out(model, held_out())
    assert (np.array(model.labels)[faces.people] == held_out().labels).all()
    strangers = replace(held_out(), labels=np.array(["x"] * len(held_out().labels)))
    with pytest.raises(GalleryError, match="nobody whom the model knows"):
        calibrate.held_out(model, strangers)
    with pytest.raises(GalleryError, match="24x20"):
        calibrate.held_out(model, replace(held_out(), images=held_out().images[:, :10]))


def test_loss_of_precision_is_measured_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l21")
    with monkeypatch.context() as patched:
        # Weights in one bit: what int8 would be if it were bad.
        patched.setattr(nodes.Graph, "weight", one_bit)
        with pytest.raises(PrecisionLossError, match="int8 costs"):
            building.build(model, precision="int8", data=held_out())
    built = building.build(model, precision="int8", data=held_out())
    assert abs(built.accuracies["fp32"] - built.accuracies["int8"]) <= 0.05
    assert parse(built.kit).manifest.precision == "int8"


def one_bit(self: nodes.Graph, name: str, value: np.ndarray, precision: str) -> None:
    self.constant(name, value if precision == "fp32" else np.sign(value) * np.abs(value).mean())


def test_a_loss_may_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "LOSS", -1.0)  # nothing is good enough
    model = doors.model("both", "l21")
    with pytest.raises(PrecisionLossError):
        building.build(model, precision="fp16")
    building.build(model, precision="fp16", allow_loss=True)


def test_nothing_that_is_no_face_passes_the_thresholds() -> None:
    model = doors.model("both", "l1")
    built = graph.build(Factors.of(model), model.spec, model.coding)
    limits, passed = calibrate.thresholds(built, calibrate.hardened(model))
    assert limits.provisional
    assert passed["faces_passed"] > 0.3
    assert passed["non_faces_passed"] == 0


def test_what_leaves_much_unexplained_is_refused_rather_than_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few covered faces leave as much unexplained as noise that is surer than anybody."""
    noise = len(calibrate.non_faces((20, 16)))
    outputs = {
        10: (np.full(10, 0.9), np.array([0.2] * 9 + [0.6])),  # confidence and residual of ten faces...
        noise: (np.full(noise, 0.95), np.full(noise, 0.5)),  # ...and of what is none
    }
    monkeypatch.setattr(calibrate, "_outputs", lambda graph, crops, *names: outputs[len(crops)])
    faces = Faces(crops=np.zeros((10, 20, 16), np.uint8), people=np.zeros(10, int))
    measured = StrangerCalibration(confidence=0.8, target=0.01, passed=0, trials=300)
    limits, found = calibrate.thresholds(b"", faces, measured)
    assert limits.confidence == 0.8
    assert 0.2 < limits.residual < 0.5
    assert found["faces_passed"] == pytest.approx(0.9)


def test_where_noise_cannot_be_told_nobody_is_let_in() -> None:
    """A threshold that noise passes is none: with one that nothing passes the kit is useless, but not dangerous."""
    model = doors.model("pixels", "l21")
    factors = Factors.of(model)
    always = np.abs(factors.B).max() * np.sign(factors.U.sum(axis=0))  # whoever comes, it is the first
    flat = replace(factors, B=np.outer([1, 0, 0, 0], always).astype(np.float32))
    built = graph.build(flat, model.spec, model.coding)
    everything = Faces(crops=calibrate.non_faces(doors.SIZE, number=20), people=np.zeros(160, int))
    limits, passed = calibrate.thresholds(built, everything)
    assert limits.confidence > 1
    assert passed["faces_passed"] == 0


@pytest.mark.parametrize("coding", CODINGS)
def test_the_same_model_gives_the_same_kit(coding: str) -> None:
    model = doors.model("both", coding)
    assert building.build(model).kit == building.build(replace(model)).kit


def test_batch_coding_is_not_for_a_device() -> None:
    model = doors.model("both", "l1")
    with pytest.raises(UsageError, match="one face at a time"):
        building.build(replace(model, coding=replace(model.coding, kind="batch")))


def test_relaxation_has_bounds() -> None:
    coding = doors.model("both", "l1").coding
    for value in (0.5, 2.0):
        with pytest.raises(ParameterError):
            replace(coding, relaxation=value)
