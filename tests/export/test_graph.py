"""The graph computes what the trainer computes, for every kind of feature, coding and precision, on faces and on rubbish."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from edge.kit import guard as onnx_guard
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import OUTPUTS
from export import graph
from export.graph import CONTRAST, PRECISIONS, Factors, Precision
from tests.fixtures import kits as doors
from trainer.features.parts import Grid
from trainer.method.coding import Coder
from trainer.model import Model
from trainer.types import Array

KINDS = ("pixels", "gradient", "both")
CODINGS = ("l1", "l21")


def run(built: bytes, crops: Array) -> dict[str, Array]:
    return dict(zip(OUTPUTS, load_session(built, "graph").run(OUTPUTS, {"crops": crops}), strict=True))


def build(model: Model, precision: Precision = "fp32") -> bytes:
    return graph.build(Factors.of(model), model.spec, model.coding, precision)


def with_stored_weights(model: Model, built: bytes) -> Model:
    """The model as its graph stores it: D = U diag(s), W = B, so that Model.scores is a reference in any precision."""
    stored = Factors.stored_in(built)
    return replace(model, D=stored.U * stored.s, W=stored.B, atom_people=np.zeros(len(stored.s), np.int32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coding", CODINGS)
def test_fp32_equals_the_model(kind: str, coding: str) -> None:
    model = doors.model(kind, coding)
    for crops in (doors.held_out()[0], doors.strange_crops(), model.crops):
        found, wanted = run(build(model), crops), model.scores(crops)
        np.testing.assert_allclose(found["scores"], wanted, atol=1e-4, rtol=0)
        chosen = wanted[np.arange(len(crops)), found["label"]]  # on a crop that shows nothing two may be level
        np.testing.assert_allclose(chosen, wanted.max(axis=1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_equals_numpy_with_the_same_weights(kind: str, coding: str, precision: Precision) -> None:
    model = doors.model(kind, coding)
    built = build(model, precision)
    if precision == "int8":  # the stored U is not orthonormal any more, and an SVD would make it so again
        coder = Coder(model.D, model.coding)
        stored = Factors.stored_in(built)
        coder.__dict__["svd"] = (stored.U, stored.s, np.eye(len(stored.s), dtype=np.float32))
        reference = replace(model, W=stored.B)
        reference.__dict__["coder"] = coder
    else:
        reference = with_stored_weights(model, built)
    crops = np.concatenate([doors.held_out()[0], doors.strange_crops()])
    tolerance = {"fp32": 1e-4, "fp16": 1e-3, "int8": 1e-4}[precision]
    np.testing.assert_allclose(run(built, crops)["scores"], reference.scores(crops), atol=tolerance, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stored_weights_are_near_the_true_ones(precision: Precision) -> None:
    model = doors.model()
    true, stored = Factors.of(model), Factors.stored_in(build(model, precision))
    step = {"fp32": 0, "fp16": 2**-11, "int8": 1 / 254}[precision]
    for name in ("U", "B"):
        largest = np.abs(getattr(true, name)).max(axis=1, keepdims=True)
        assert (np.abs(getattr(stored, name) - getattr(true, name)) <= 1.01 * step * largest + 1e-7).all()


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("kind", "parts"), [("both", (3, 2)), ("gradient", (1, 2))])
def test_parts_of_the_face(coding: str, precision: Precision, kind: str, parts: Grid) -> None:
    """Against NumPy with the weights that were stored; and, in full precision, against the model as it was trained."""
    model = doors.model(kind, coding, parts=parts)
    crops = np.concatenate([doors.held_out()[0], doors.strange_crops()])
    built = build(model, precision)
    found = run(built, crops)["scores"]
    stored = Factors.stored_in(built)
    assert len(stored.parts) == parts[0] * parts[1]
    np.testing.assert_allclose(found, stored.scores(model.spec.vectors(crops).T, model.coding).T, atol=1e-4, rtol=0)
    if precision == "fp32":
        np.testing.assert_allclose(found, model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("iterations", [1, 2, 3, 7])
def test_every_number_of_iterations(coding: str, iterations: int) -> None:
    model = doors.model("both", coding)
    model = replace(model, coding=replace(model.coding, iterations=iterations))
    crops = doors.held_out()[0]
    np.testing.assert_allclose(run(build(model), crops)["scores"], model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize("iterations", [1, 2, 3, 8])
def test_over_relaxation(iterations: int) -> None:
    model = doors.model("both", "l1")
    model = replace(model, coding=replace(model.coding, iterations=iterations, mu0=20.0, rho=1.1, relaxation=1.8))
    crops = np.concatenate([doors.held_out()[0], doors.strange_crops()])
    np.testing.assert_allclose(run(build(model), crops)["scores"], model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("cell", "gradient_cell", "blur"), [(1, 1, 0.0), (3, 4, 0.5), (5, 7, 1.2)])
def test_every_cell_and_blur(cell: int, gradient_cell: int, blur: float) -> None:
    """Cells that do not divide the crop, and other kernels: weights at random, as only the features are in question."""
    base = doors.model("both", "l21")
    assert isinstance(base.spec, FeatureSpec)
    spec = replace(base.spec, cell=cell, gradient_cell=gradient_cell, blur=blur)
    rng = np.random.default_rng(0)
    D = rng.standard_normal((spec.length, 6)).astype(np.float32)
    model = replace(base, spec=spec, D=D, W=rng.standard_normal((4, 6)).astype(np.float32))
    crops = np.concatenate([doors.held_out()[0], doors.strange_crops()])
    np.testing.assert_allclose(run(build(model), crops)["scores"], model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_face_does_not_depend_on_its_batch(coding: str) -> None:
    built = build(doors.model("both", coding))
    crops = np.concatenate([doors.held_out()[0][:5], doors.strange_crops()])
    together = run(built, crops)
    for i, crop in enumerate(crops):
        alone = run(built, crop[None])
        for name in OUTPUTS:
            np.testing.assert_allclose(alone[name][0], together[name][i], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_rubbish_gives_numbers_and_blank_no_confidence(kind: str, coding: str, precision: Precision) -> None:
    crops = doors.strange_crops()
    found = run(build(doors.model(kind, coding), precision), crops)
    assert all(np.isfinite(values).all() for values in found.values())
    blank = np.ptp(crops.reshape(len(crops), -1), axis=1) <= CONTRAST
    assert blank.sum() == 4
    assert not found["confidence"][blank].any()
    assert not found["margin"][blank].any()
    assert not found["scores"][0].any()  # black: no feature at all
    assert (found["confidence"][~blank] > 0).all()


def test_the_other_outputs_mean_what_they_say() -> None:
    model = doors.model("both", "l1")
    crops = doors.held_out()[0]
    found = run(build(model), crops)
    x = model.spec.vectors(crops).T
    z = model.coder.code(x)
    ordered = np.sort(found["scores"], axis=1)
    norm = np.linalg.norm(found["scores"], axis=1)
    np.testing.assert_allclose(found["confidence"], ordered[:, -1] / norm, atol=1e-5)
    np.testing.assert_allclose(found["margin"], (ordered[:, -1] - ordered[:, -2]) / norm, atol=1e-5)
    np.testing.assert_allclose(found["code_norm"], np.linalg.norm(z, axis=0), atol=1e-5)
    np.testing.assert_allclose(found["residual"], np.linalg.norm(x - model.D @ z, axis=0), atol=2e-4)


def test_it_recognises() -> None:
    crops, names = doors.held_out()
    for coding in CODINGS:
        model = doors.model("both", coding)
        labels = run(build(model), crops)["label"]
        assert np.mean(np.array(model.labels)[labels] == names) > 0.9


def loaded(built: bytes) -> Any:
    return onnx.load_model_from_string(built)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_file_is_plain_and_old_fashioned(coding: str, precision: Precision) -> None:
    built = build(doors.model("both", coding), precision)
    onnx_guard.check(built, onnx_guard.RECOGNIZER_OPERATORS, "graph")
    proto = loaded(built)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", graph.OPSET)]
    assert graph.OPSET <= 17
    assert not any(tensor.external_data for tensor in proto.graph.initializer)
    (crops,) = proto.graph.input
    assert [d.dim_param or d.dim_value for d in crops.type.tensor_type.shape.dim] == ["N", *doors.SIZE]
    assert [output.name for output in proto.graph.output] == list(OUTPUTS)


def test_how_often_the_dictionary_is_read() -> None:
    """Once for l21; for l1 once, and twice for each iteration but the last. (Uu is constant, and folded when loaded.)"""
    for coding in ("l21", "l1"):
        model = doors.model("both", coding)
        reads = 1 if coding == "l21" else 2 * model.coding.iterations - 1
        nodes = loaded(build(model)).graph.node
        readers = [node.name for node in nodes if "U" in node.input and node.op_type in ("MatMul", "Gemm")]
        assert len(readers) == reads + 1
        assert "Uu" in readers


def test_all_listed_operators_are_needed() -> None:
    """A list that is longer than what the exporter uses would let more through than it has to."""
    used = {
        node.op_type
        for coding in CODINGS
        for precision in PRECISIONS
        for node in loaded(build(doors.model("both", coding, parts=(2, 1)), precision)).graph.node
    }
    assert used | {"Transpose"} == onnx_guard.RECOGNIZER_OPERATORS  # that one is LLC's: see test_baselines


def test_symbols_name_the_tensors() -> None:
    names = {output for node in loaded(build(doors.model("both", "l1"))).graph.node for output in node.output}
    assert {"x", "c", "w", "w_7", "J_7", "F_7", "q_7", "g_7", "y2_7"} <= names


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_same_model_gives_the_same_bytes(precision: Precision) -> None:
    model = doors.model("both", "l1")
    again = replace(model)  # without what is cached in it
    assert build(model, precision) == build(again, precision)


def test_fewer_bits_make_a_smaller_file() -> None:
    weights = sum(getattr(Factors.of(doors.model("both", "l21")), name).size for name in ("U", "B"))
    fp32, fp16, int8 = (len(build(doors.model("both", "l21"), precision)) for precision in PRECISIONS)
    assert fp32 - fp16 > 1.9 * weights
    assert fp16 - int8 > 0.5 * weights  # every row has a scale, and the rows of so small a model are short
