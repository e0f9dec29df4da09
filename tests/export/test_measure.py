"""The exporter's choices follow only from its measurements."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from edge.errors import GalleryError, PrecisionLossError, UsageError
from edge.kit import format as kit_format
from edge.kit.format import parse
from edge.kit.manifest import ABSOLUTE, RELATIVE
from edge.vision.onnx_session import load_session
from edge.vision.recognize import OUTPUTS
from export import graph, integer, measure, nodes, run
from export.build import build_kit
from export.graph import Factors
from export.measure import ACCURACY_SHIFT, AGREEMENT, SURE, Faces
from tests.fixtures import kits as doors
from tests.fixtures.embedding import network_crops, network_model
from trainer.data.gallery import Gallery
from trainer.thresholds import StrangerCalibration
from trainer.types import Array

pytestmark = pytest.mark.slow

CODINGS = ("l1", "l21")


def held_out() -> Gallery:
    images, names = doors.held_out()
    return Gallery(images=images, labels=names, sources=tuple(map(str, range(len(images)))))


@pytest.mark.parametrize("coding", CODINGS)
def test_smallest_good_number_of_iterations_is_chosen(coding: str) -> None:
    model = doors.model("both", coding)
    faces = measure.hardened(model)
    choice = measure.choose_iterations(model, Factors.of(model), faces)

    def is_good(row: measure.Row) -> bool:
        shift = abs(row.accuracy - choice.converged_accuracy)
        return row.agreement >= AGREEMENT and row.sure >= SURE and shift < ACCURACY_SHIFT

    chosen = choice.coding.iterations
    assert choice.row.iterations == chosen
    assert all(map(is_good, choice.rows[chosen - 1 :]))
    assert chosen == 1 or not is_good(choice.rows[chosen - 2])


@pytest.mark.parametrize("coding", CODINGS)
def test_table_of_iterations_describes_the_graphs(coding: str) -> None:
    """`accuracy` is that of the graph, and `sure` counts no face whose label the trainer's coder would change."""
    model = doors.model("pixels", coding)
    faces = measure.hardened(model)
    trainers = model.scores(faces.crops).argmax(axis=1)
    choice = measure.choose_iterations(model, Factors.of(model), faces)
    for row in (choice.rows[0], choice.rows[2], choice.rows[-1]):
        built = graph.build(choice.factors.with_iterations(row.iterations), model.spec)
        labels = measure.run_graph(built, faces.crops)["label"]
        assert np.mean(labels == faces.people) == pytest.approx(row.accuracy, abs=1.5 / len(faces.crops))
        assert row.sure <= np.mean(labels == trainers) + 1e-9
    assert row.sure == 1
    assert measure.choose_iterations(model, Factors.of(model), faces, iterations=3).coding.iterations == 3


def test_trainers_iterations_are_used_if_no_number_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l1")
    monkeypatch.setattr(measure, "AGREEMENT", 1.1)
    choice = measure.choose_iterations(model, Factors.of(model), measure.hardened(model, limit=32))
    assert choice.coding == model.coding


@pytest.mark.parametrize("accuracy", [0.96, 1.0])
def test_calibration_faces_are_as_hard_as_required(accuracy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "HARD_ENOUGH", accuracy)
    model = doors.model("pixels", "l21")
    faces = measure.hardened(model)
    assert len(faces.crops) == 4 * len(model.crops)
    assert abs(np.mean(model.scores(faces.crops).argmax(axis=1) == faces.people) - accuracy) < 0.02
    np.testing.assert_array_equal(faces.crops, measure.hardened(model).crops)
    assert len(measure.hardened(model, limit=10).crops) == 10


def test_held_out_faces_must_match_the_model() -> None:
    model = doors.model("both", "l1")
    faces = measure.held_out(model, held_out())
    assert (np.array(model.labels)[faces.people] == held_out().labels).all()
    strangers = replace(held_out(), labels=np.array(["x"] * len(held_out().labels)))
    with pytest.raises(GalleryError, match="no person of the model"):
        measure.held_out(model, strangers)
    with pytest.raises(GalleryError, match="24x20"):
        measure.held_out(model, replace(held_out(), images=held_out().images[:, :10]))


def test_loss_of_precision_is_measured_and_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l21")
    with monkeypatch.context() as patched:
        patched.setattr(integer, "LEVELS", 0.4)  # a very bad int8: all weights are rounded to 0
        with pytest.raises(PrecisionLossError, match="int8 costs"):
            build_kit(model, precision="int8", data=held_out())
    monkeypatch.setattr(measure, "LOSS", -1.0)  # no precision is good enough
    with pytest.raises(PrecisionLossError):
        build_kit(model, precision="int8")
    built = build_kit(model, precision="int8", data=held_out(), allow_loss=True)
    assert abs(built.accuracies["fp32"] - built.accuracies["int8"]) <= 0.05
    assert parse(built.kit).manifest.precision == "int8"


def test_no_blank_or_noise_image_passes_the_thresholds() -> None:
    model = doors.model("both", "l1")
    built = graph.build(Factors.of(model), model.spec)
    limits, passed = measure.thresholds(built, measure.hardened(model))
    assert limits.provisional
    assert passed["faces_passed"] > 0.3
    assert passed["non_faces_passed"] == 0


def test_non_faces_for_colour_kits_are_grey_and_coloured() -> None:
    grey, colour = measure.non_faces((24, 20), number=4), measure.non_faces((24, 20, 3), number=4)
    assert colour.shape == (*grey.shape, 3)
    np.testing.assert_array_equal(colour[..., 0], grey)
    has_colour = (colour != colour[..., :1]).any(axis=(1, 2, 3))
    assert has_colour.tolist() == [False, True] * 16


def test_residual_limit_falls_before_the_confidence_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """One covered face has as large a residual as noise with a high confidence: the face is rejected, the others pass."""
    noise = len(measure.non_faces((20, 16)))
    outputs = {
        10: {"scores": np.zeros((10, 4)), "confidence": np.full(10, 0.9), "residual": np.array([0.2] * 9 + [0.6])},
        noise: {"confidence": np.full(noise, 0.95), "residual": np.full(noise, 0.5)},
    }
    monkeypatch.setattr(measure, "run_graph", lambda graph, crops: outputs[len(crops)])
    faces = Faces(crops=np.zeros((10, 20, 16), np.uint8), people=np.zeros(10, int))
    measured = StrangerCalibration(confidence=0.8, target=0.01, passed=0, trials=300)
    limits, found = measure.thresholds(b"", faces, measured)
    assert limits.confidence == 0.8
    assert 0.2 < limits.residual < 0.5
    assert found["faces_passed"] == pytest.approx(0.9)


def test_thresholds_are_those_that_a_device_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A very lax calibration, of a coder that leaves more than the whole face unexplained."""
    noise = len(measure.non_faces((20, 16)))
    outputs = {
        10: {"scores": np.zeros((10, 4)), "confidence": np.full(10, 0.9), "residual": np.full(10, 2.5)},
        noise: {"confidence": np.zeros(noise), "residual": np.full(noise, 3.0)},
    }
    monkeypatch.setattr(measure, "run_graph", lambda graph, crops: outputs[len(crops)])
    faces = Faces(crops=np.zeros((10, 20, 16), np.uint8), people=np.zeros(10, int))
    lax = StrangerCalibration(confidence=0.001, target=0.9, passed=270, trials=300)
    limits, _ = measure.thresholds(b"", faces, lax)
    assert (limits.confidence, limits.residual) == (0.25, 2.0)
    assert limits.problem(RELATIVE, 4) == ""


def test_no_face_passes_if_noise_cannot_be_distinguished() -> None:
    """Then the kit is useless, but not dangerous."""
    model = doors.model("pixels", "l21")
    factors = Factors.of(model)
    always = np.abs(factors.B).max() * np.sign(factors.U.sum(axis=0))  # the first person, for every face
    flat = replace(factors, B=np.outer([1, 0, 0, 0], always).astype(np.float32))
    built = graph.build(flat, model.spec)
    noise = Faces(crops=measure.non_faces(doors.SIZE, number=20), people=np.zeros(160, int))
    limits, passed = measure.thresholds(built, noise)
    assert limits.confidence > 1
    assert passed["faces_passed"] == 0


def test_batch_coding_has_no_device_form() -> None:
    model = doors.model("both", "l1")
    with pytest.raises(UsageError, match="one face at a time"):
        build_kit(replace(model, coding=replace(model.coding, kind="batch")))


@pytest.mark.parametrize("precision", nodes.PRECISIONS)
def test_a_network_that_runs_apart_gives_the_outputs_of_the_whole_graph(precision: nodes.Precision) -> None:
    model, crops = network_model(), network_crops()[0][:6]
    built = graph.build(Factors.of(model), model.spec, precision)
    whole = load_session(built, "the graph").run(OUTPUTS, {"crops": crops})
    for order in (slice(None), slice(None, None, -1)):  # the second time from memory
        for name, values in measure.run_graph(built, crops[order]).items():
            np.testing.assert_allclose(values, whole[OUTPUTS.index(name)][order], atol=1e-5)
    assert len(graph.head(built)) + len(graph.front(built)) < 1.5 * len(built)


def test_vectors_of_the_trainer_are_used_again() -> None:
    model, crops = network_model(), network_crops()[0][:6]
    network = model.spec.network
    assert network is not None
    built = graph.build(Factors.of(model), model.spec)
    before = measure.run_graph(built, crops)
    network.vectors(crops)
    run._network.cache_clear()
    run.remember(built, network)
    number = len(run._network(built)[1])
    assert number >= len(crops)
    for name, values in measure.run_graph(built, crops).items():
        np.testing.assert_allclose(values, before[name], atol=1e-5)
    assert len(run._network(built)[1]) == number, "nothing was computed again"


def test_experts_have_no_residual_limit_and_a_provisional_threshold_above_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dictionary of a network represents noise as well as faces, and noise scores far lower than strangers."""
    answers = iter([({"confidence": 0.9}, 4), ({"confidence": 0.2}, 8)])

    def outputs(graph: bytes, crops: Array) -> dict[str, Array]:
        values, number = next(answers)
        found = {"confidence": np.full(number, values["confidence"]), "residual": np.full(number, 3e-4)}
        return found | {"scores": np.zeros((number, 2))}

    monkeypatch.setattr(measure, "run_graph", outputs)
    faces = measure.Faces(crops=np.zeros((4, 8, 8), np.uint8), people=np.zeros(4, int))
    limits, passed = measure.thresholds(b"", faces, None, ABSOLUTE)
    assert (limits.confidence, limits.residual) == (measure.PROVISIONAL_ABSOLUTE, measure.ANY_RESIDUAL)
    assert (passed["faces_passed"], passed["non_faces_passed"]) == (1.0, 0.0)


def test_at_most_so_many_faces_are_used_of_as_many_people_as_possible() -> None:
    people = np.random.default_rng(0).permutation(np.repeat(np.arange(300), 5))
    some = measure.evenly(people, 600)
    assert len(np.unique(some)) == len(some) == 600
    assert (np.bincount(people[some], minlength=300) == 2).all()
    assert len(np.unique(people[measure.evenly(people, 250)])) == 250
    np.testing.assert_array_equal(measure.evenly(people, 1500), np.arange(1500))


def test_choice_does_not_depend_on_the_faces_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l21", parts=(2, 1))
    faces, factors = measure.hardened(model), Factors.of(model)
    together = measure.choose_iterations(model, factors, faces)
    monkeypatch.setattr(measure, "SCORES_AT_ONCE", 1)
    assert measure.choose_iterations(model, factors, faces).rows == together.rows


def test_settled_coder_is_the_converged_one() -> None:
    model = doors.model("both", "l21", parts=(2, 1))
    factors = Factors.of(model)
    X = model.spec.vectors(doors.held_out()[0]).T
    expected = replace(factors, coding=factors.coding.converged()).scores(X)
    np.testing.assert_allclose(factors.converged_scores(X), expected, atol=1e-4)


def test_precision_that_does_not_fit_does_not_stop_another(monkeypatch: pytest.MonkeyPatch) -> None:
    model = doors.model("both", "l21", parts=(2, 1))
    factors = Factors.of(model).with_iterations(3)
    sizes = {name: len(graph.build(factors, model.spec, name)) for name in nodes.PRECISIONS}
    assert sizes["int8"] + 10_000 < sizes["fp16"] < sizes["fp32"]
    monkeypatch.setattr(kit_format, "MAX_BYTES", sizes["fp16"] - 1)
    with pytest.raises(UsageError, match="a kit holds at most"):
        build_kit(model, iterations=3)
    built = build_kit(model, precision="int8", iterations=3, allow_loss=True)
    assert built.accuracies.keys() == {"fp32", "int8"}
    assert built.graph_bytes.keys() == {"fp32", "fp16", "int8"}


def test_few_graphs_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each precision, and two for the times: one iteration and all."""
    model, counted = doors.model("both", "l21"), mock.Mock(wraps=graph.build)
    monkeypatch.setattr(graph, "build", counted)
    built = build_kit(model)
    assert counted.call_count <= 5
    assert built.timings.keys() == {1, built.choice.coding.iterations, len(built.choice.rows)}


def test_build_without_comparisons_gives_the_same_kit() -> None:
    model = doors.model("both", "l21")
    compared, short = build_kit(model), build_kit(model, compared=False)
    assert short.kit == compared.kit
    assert short.timings.keys() == {short.choice.coding.iterations}
