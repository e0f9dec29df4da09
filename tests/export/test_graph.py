"""The graph computes the same as the trainer, for every kind of feature, coding and precision, on faces and on noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

from edge.kit import guard as onnx_guard
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import FeatureSpec
from edge.vision.recognize import OUTPUTS
from export import graph
from export.graph import CONTRAST, Factors
from export.integer_graph import IntegerFactors
from export.nodes import OPSET, PRECISIONS, Precision
from tests.fixtures import kits as doors
from trainer.method.parts import Grid
from trainer.model import PlainModel
from trainer.types import Array

pytestmark = pytest.mark.slow

CODINGS = ("l1", "l21")
FEATURES = [("pixels", "l21"), ("gradient", "l1"), ("both", "l1"), ("both", "l21")]


def run(built: bytes, crops: Array) -> dict[str, Array]:
    return dict(zip(OUTPUTS, load_session(built, "graph", prepack=False).run(OUTPUTS, {"crops": crops}), strict=True))


@cache
def built_graph(kind: str, coding: str, precision: Precision = "fp32", parts: Grid | None = None) -> bytes:
    return build(doors.model(kind, coding, parts=parts), precision)


def build(model: PlainModel, precision: Precision = "fp32") -> bytes:
    return graph.build(Factors.of(model), model.spec, precision)


def stored_scores(model: PlainModel, built: bytes, crops: Array) -> Array:
    """Return (N, C), what NumPy computes with the weights of a graph."""
    return graph.stored_in(built, model.coding).results(model.spec.vectors(crops).T)[0].T


def faces_and_noise() -> Array:
    return np.concatenate([doors.held_out()[0], doors.strange_crops()])


@pytest.mark.parametrize(("kind", "coding"), FEATURES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_graph_equals_numpy_in_every_precision(kind: str, coding: str, precision: Precision) -> None:
    model, crops = doors.model(kind, coding), faces_and_noise()
    built = built_graph(kind, coding, precision)
    found = run(built, crops)
    stored = stored_scores(model, built, crops)
    np.testing.assert_allclose(found["scores"], stored, atol=1e-4, rtol=0)
    if precision == "fp32":  # the model is an independent reference: its dictionary is not folded
        expected = model.scores(crops)
        np.testing.assert_allclose(found["scores"], expected, atol=1e-4, rtol=0)
        chosen = expected[np.arange(len(crops)), found["label"]]  # on a blank crop two labels may be equal
        np.testing.assert_allclose(chosen, expected.max(axis=1), atol=1e-6, rtol=0)
        names = np.array(model.labels)[found["label"][: len(doors.held_out()[0])]]
        assert np.mean(names == doors.held_out()[1]) > 0.9
    assert all(np.isfinite(values).all() for values in found.values())
    blank = np.ptp(crops.reshape(len(crops), -1), axis=1) <= CONTRAST
    assert blank.sum() == 4
    assert not found["confidence"][blank].any()
    assert not found["margin"][blank].any()
    assert not found["scores"][len(doors.held_out()[0])].any()  # black: no feature at all
    assert (found["confidence"][~blank] > 0).all()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_stored_weights_are_close_to_the_true_ones(precision: Precision) -> None:
    model = doors.model()
    true, stored = Factors.of(model), graph.stored_in(built_graph("both", "l1", precision), model.coding)
    step = {"fp32": 0, "fp16": 2**-11, "int8": 1 / 254}[precision]
    for name in ("U", "B"):
        largest = np.abs(getattr(true, name)).max(axis=1, keepdims=True)
        assert (np.abs(getattr(stored, name) - getattr(true, name)) <= 1.01 * step * largest + 1e-7).all()


@pytest.mark.parametrize(
    ("kind", "coding", "parts", "precision"),
    [
        *(("both", "l1", (2, 1), precision) for precision in PRECISIONS),
        ("gradient", "l21", (1, 2), "fp32"),
        ("both", "l21", (3, 2), "int8"),
    ],
)
def test_graph_with_parts_equals_numpy(kind: str, coding: str, parts: Grid, precision: Precision) -> None:
    model, crops = doors.model(kind, coding, parts=parts), faces_and_noise()
    built = built_graph(kind, coding, precision, parts)
    scores = run(built, crops)["scores"]
    stored = graph.stored_in(built, model.coding)
    assert isinstance(stored, Factors | IntegerFactors)
    blocks = stored.blocks[1:] if isinstance(stored, IntegerFactors) else stored.parts
    assert len(blocks) == parts[0] * parts[1]
    np.testing.assert_allclose(scores, stored_scores(model, built, crops), atol=1e-4, rtol=0)
    if precision == "fp32":
        np.testing.assert_allclose(scores, model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize("iterations", [1, 2, 3, 8])
def test_graph_equals_numpy_for_any_schedule(iterations: int) -> None:
    crops = faces_and_noise()
    schedules: dict[str, list[dict[str, Any]]] = {"l1": [{}, {"mu0": 20.0, "rho": 1.1, "relaxation": 1.8}], "l21": [{}]}
    for coding, changes in schedules.items():
        model = doors.model("both", coding)
        for change in changes:
            changed: Any = replace(model.coding, iterations=iterations, **change)
            model = replace(model, coding=changed)
            np.testing.assert_allclose(run(build(model), crops)["scores"], model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize(("cell", "gradient_cell", "blur"), [(1, 1, 0.0), (3, 4, 0.5), (5, 7, 1.2)])
def test_graph_equals_numpy_for_any_cell_and_blur(cell: int, gradient_cell: int, blur: float) -> None:
    """Cells that do not divide the crop, and other kernels. Random weights: only the features are tested."""
    base = doors.model("both", "l21")
    assert isinstance(base.spec, FeatureSpec)
    spec = replace(base.spec, cell=cell, gradient_cell=gradient_cell, blur=blur)
    rng = np.random.default_rng(0)
    D = rng.standard_normal((spec.length, 6)).astype(np.float32)
    model = replace(base, spec=spec, D=D, W=rng.standard_normal((4, 6)).astype(np.float32))
    crops = faces_and_noise()
    np.testing.assert_allclose(run(build(model), crops)["scores"], model.scores(crops), atol=1e-4, rtol=0)


@pytest.mark.parametrize("coding", CODINGS)
def test_face_does_not_depend_on_its_batch(coding: str) -> None:
    crops = np.concatenate([doors.held_out()[0][:5], doors.strange_crops()])
    loaded = load_session(built_graph("both", coding), "graph", prepack=False)
    together = loaded.run(OUTPUTS, {"crops": crops})
    for i in range(len(crops)):
        for alone, values in zip(loaded.run(OUTPUTS, {"crops": crops[i : i + 1]}), together, strict=True):
            np.testing.assert_allclose(alone[0], values[i], atol=5e-5, rtol=0)


def test_other_outputs_follow_from_scores_and_codes() -> None:
    model, crops = doors.model("both", "l1"), doors.held_out()[0]
    found = run(built_graph("both", "l1"), crops)
    x = model.spec.vectors(crops).T
    z = model.coder.code(x)
    ordered = np.sort(found["scores"], axis=1)
    norm = np.linalg.norm(found["scores"], axis=1)
    np.testing.assert_allclose(found["confidence"], ordered[:, -1] / norm, atol=1e-5)
    np.testing.assert_allclose(found["margin"], (ordered[:, -1] - ordered[:, -2]) / norm, atol=1e-5)
    np.testing.assert_allclose(found["code_norm"], np.linalg.norm(z, axis=0), atol=1e-5)
    np.testing.assert_allclose(found["residual"], np.linalg.norm(x - model.D @ z, axis=0), atol=2e-4)


def nodes(built: bytes) -> list[Any]:
    return list(onnx.load_model_from_string(built).graph.node)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graph_file_is_plain_and_old_enough(precision: Precision) -> None:
    for coding in CODINGS:
        built = built_graph("both", coding, precision)
        onnx_guard.check(built, onnx_guard.RECOGNIZER_OPERATORS, "graph")
        proto = onnx.load_model_from_string(built)
        assert [(o.domain, o.version) for o in proto.opset_import] == [("", OPSET)]
        assert OPSET <= 17
        assert not any(tensor.external_data for tensor in proto.graph.initializer)
        (crops,) = proto.graph.input
        assert [d.dim_param or d.dim_value for d in crops.type.tensor_type.shape.dim] == ["N", *doors.SIZE]
        assert [output.name for output in proto.graph.output] == list(OUTPUTS)


def test_dictionary_is_read_as_rarely_as_possible() -> None:
    """Once for l21; for l1 once, and twice in each iteration except the last. (Uu is constant and folded at load time.)"""
    for coding in CODINGS:
        reads = 1 if coding == "l21" else 2 * doors.model("both", coding).coding.iterations - 1
        readers = [n.name for n in nodes(built_graph("both", coding)) if "U" in n.input and n.op_type in ("MatMul", "Gemm")]
        assert len(readers) == reads + 1
        assert "Uu" in readers


def test_all_allowed_operators_are_needed() -> None:
    """A longer list would allow more than it has to. Transpose is in kits of LLC that version 0.1 built."""
    graphs = [built_graph("both", coding, precision, (2, 1)) for coding in CODINGS for precision in PRECISIONS]
    used = {node.op_type for built in graphs for node in nodes(built)}
    assert used | {"Transpose"} == onnx_guard.RECOGNIZER_OPERATORS


def test_tensors_have_the_names_of_the_symbols() -> None:
    names = {output for node in nodes(built_graph("both", "l1")) for output in node.output}
    assert {"x", "c", "w", "w_7", "J_7", "F_7", "q_7", "g_7", "y2_7"} <= names


@pytest.mark.parametrize("precision", PRECISIONS)
def test_same_model_gives_the_same_bytes(precision: Precision) -> None:
    again = replace(doors.model("both", "l1"))  # without its cached coder
    assert built_graph("both", "l1", precision) == build(again, precision)


def test_fewer_bits_make_a_smaller_file() -> None:
    weights = sum(getattr(Factors.of(doors.model("both", "l21")), name).size for name in ("U", "B"))
    fp32, fp16, int8 = (len(built_graph("both", "l21", precision)) for precision in PRECISIONS)
    assert fp32 - fp16 > 1.9 * weights
    assert fp32 - int8 > 2 * weights  # each column has scales, and this small model has short columns and a long u
