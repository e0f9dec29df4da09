"""Products of integers: exact, independent of the batch, and close to float32."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge.errors import ParityError, SelfTestError
from edge.kit import format as kits
from edge.kit.manifest import Thresholds
from edge.vision.onnx_session import load_session
from edge.vision.recognize import OUTPUTS, Recognizer
from export import graph, integer
from export.graph import Factors
from export.integer import LEVELS, UNITS, ZERO, IntegerMatrix, digits
from export.integer_graph import IntegerFactors
from export.nodes import Graph
from export.pack import bundle
from export.verify import Reference, verify_kit
from tests.fixtures import kits as doors
from tests.fixtures.embedding import network_crops, network_model
from trainer.method.parts import Grid
from trainer.model import Model
from trainer.types import Array


def run_product(matrix: IntegerMatrix, rows: Array) -> Array:
    """Return the products (N,m) that the nodes compute."""
    g = Graph()
    sums = integer.product_nodes(g, integer.digit_nodes(g, "rows", "rows"), (1, rows.shape[1]), [("W", 0, matrix)])
    products = integer.scaled_nodes(g, sums, [matrix], "products")
    made = helper.make_graph(
        g.nodes,
        "g",
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", 1, rows.shape[1]])],
        [helper.make_tensor_value_info(products, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in g.constants.items()],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", g.opset)])
    model.ir_version = 7
    session = load_session(model.SerializeToString(), "product")
    return np.asarray(session.run(None, {"rows": rows[:, None].astype(np.float32)})[0][:, 0])


@pytest.mark.parametrize("sign", [-1, 1])
def test_extreme_inputs_give_exact_sums(sign: int) -> None:
    """All levels and all entries are as large as possible, and as many as in no model."""
    rows = np.array([[1.0], [-1.0], [0.5], [1 - 2**-7], [2**-20], [0.0]]).repeat(5000, axis=1)
    matrix = IntegerMatrix(levels=np.full((5000, 3), sign * LEVELS, np.int8), scale=np.array([1, 2**-7, 4], np.float32))
    exact = (rows.sum(axis=1)[:, None] * sign * LEVELS * matrix.scale.astype(float)).astype(np.float32)
    np.testing.assert_array_equal(run_product(matrix, rows), exact)
    np.testing.assert_array_equal(matrix.product(rows.astype(np.float32)), exact)


def test_no_pair_of_products_leaves_16_bits() -> None:
    """VPMADDUBSW, which onnxruntime uses on processors without VNNI, saturates there."""
    rows = np.concatenate([np.linspace(-1, 1, 200_001), [1 + 1e-6, -1 - 1e-6]]).astype(np.float32)[None]
    largest = int(digits(rows).max())
    levels = IntegerMatrix.of(np.random.default_rng(0).standard_normal((50, 50)).astype(np.float32)).levels
    assert np.abs(levels.astype(int)).max() == LEVELS
    assert 2 * largest * LEVELS < 2**15


def test_digits_give_the_value_back() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (3, 1000)).astype(np.float32)
    value = np.einsum("nik,i->nk", digits(rows).astype(float) - ZERO, UNITS)
    assert np.abs(value - rows).max() <= UNITS[-1] / 2 + 1.2e-7


def test_nodes_equal_numpy_and_are_close_to_float32() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((5, 3000)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    W = rng.standard_normal((3000, 70)).astype(np.float32)
    matrix = IntegerMatrix.of(W)
    np.testing.assert_array_equal(run_product(matrix, rows), matrix.product(rows))
    np.testing.assert_allclose(matrix.product(rows), rows @ W, atol=0.05)
    np.testing.assert_allclose(matrix.product(rows), rows @ (matrix.levels * matrix.scale), atol=1e-4)


@cache
def trained(kind: str) -> Model:
    if kind == "experts":
        return network_model("both", experts=True)
    if kind == "network":
        return network_model("", experts=True)
    parts: dict[str, Grid | None] = {"whole": None, "parts": (3, 2)}
    return doors.model("both", "l21", parts=parts[kind])


def crops_of(kind: str) -> Array:
    if kind in ("experts", "network"):
        return network_crops()[0][:12]
    return np.concatenate([doors.held_out()[0][:8], doors.strange_crops()])


@cache
def built(kind: str) -> bytes:
    return graph.build(Factors.of(trained(kind)), trained(kind).spec, "int8")


KINDS = ("whole", "parts", "experts", "network")


@pytest.mark.parametrize("kind", KINDS)
def test_face_does_not_depend_on_the_other_faces(kind: str) -> None:
    """The faces of the batch have very different values: real ones, noise, black, white."""
    session, crops = load_session(built(kind), "graph"), crops_of(kind)
    together = session.run(OUTPUTS, {"crops": crops})
    for i in range(len(crops)):
        for alone, values in zip(session.run(OUTPUTS, {"crops": crops[i : i + 1]}), together, strict=True):
            np.testing.assert_allclose(alone[0], values[i], atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_residual_and_scores_are_close_to_float32(kind: str) -> None:
    model, crops = trained(kind), crops_of(kind)[:8]
    exact = graph.build(Factors.of(model), model.spec)
    found, expected = (
        dict(zip(OUTPUTS, load_session(data, "graph").run(OUTPUTS, {"crops": crops}), strict=True))
        for data in (built(kind), exact)
    )
    # The vectors of this network are short, and its dictionary represents them almost exactly: what is left is rounding.
    np.testing.assert_allclose(found["residual"], expected["residual"], atol=0.01 if kind in ("whole", "parts") else 0.04)
    np.testing.assert_allclose(found["code_norm"], expected["code_norm"], rtol=0.05)
    scale = np.linalg.norm(expected["scores"], axis=1, keepdims=True)
    np.testing.assert_allclose(found["scores"] / scale, expected["scores"] / scale, atol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_stored_factors_are_those_that_were_written(kind: str) -> None:
    factors = Factors.of(trained(kind))
    written = IntegerFactors.of(factors.coding, trained(kind).blocks, factors.templates)
    read = graph.stored_in(built(kind), factors.coding)
    assert isinstance(read, IntegerFactors)
    pairs = [(one, other) for one, other in zip(read.blocks, written.blocks, strict=True)]
    arrays = [(getattr(one, name), getattr(other, name)) for one, other in pairs for name in ("s", "u", "Uu")]
    arrays += [(one.rows, other.rows) for one, other in pairs if other.rows is not None]
    matrices = [(getattr(one, name), getattr(other, name)) for one, other in pairs for name in ("U", "B")]
    matrices += [(read.templates, written.templates)] if written.templates is not None else []
    arrays += [(getattr(one, name), getattr(other, name)) for one, other in matrices for name in ("levels", "scale")]
    for found, expected in arrays:
        np.testing.assert_array_equal(found, expected)


def test_only_weights_of_one_byte_are_stored_for_products() -> None:
    """All matrices of the dictionary and the classifier are integers, and no float32 copy is beside them."""
    stored = {tensor.name: tensor for tensor in graph.onnx.load_model_from_string(built("parts")).graph.initializer}
    largest = max(tensor.dims[0] * tensor.dims[1] for tensor in stored.values() if tensor.name.endswith("U_levels"))
    for tensor in stored.values():
        if tensor.data_type == TensorProto.FLOAT:
            assert np.prod(tensor.dims) < largest / 4


def test_other_rounding_errors_change_less_than_the_limits() -> None:
    """Features with other rounding errors have other last digits. The scores change by far less than the limits."""
    model, crops = trained("parts"), crops_of("parts")
    factors = graph.stored_in(built("parts"), model.coding)
    X = model.spec.vectors(crops).T
    rng = np.random.default_rng(2)
    scores = factors.results(X)[0]
    for _ in range(5):
        other = (X * (1 + 2e-7 * rng.standard_normal(X.shape))).astype(np.float32)
        assert (digits(other.T) != digits(X.T)).any()
        moved = np.abs(factors.results(other)[0] - scores).max(axis=0) / np.maximum(np.linalg.norm(scores, axis=0), 1e-6)
        assert moved.max() < 2e-4


def kit_of(model: Model, recognizer: bytes) -> kits.Kit:
    return kits.parse(
        bundle(
            model,
            recognizer,
            coding=model.coding,
            precision="int8",
            thresholds=Thresholds(confidence=0.5, residual=2.0, provisional=True),
            calibration={},
            detector=None,
        )
    )


def test_kit_of_integers_passes_and_other_weights_or_coding_fail() -> None:
    model = trained("parts")
    kit = kit_of(model, built("parts"))
    assert isinstance(Reference(kit).factors, IntegerFactors)
    assert all(parity.holds for parity in verify_kit(kit, model=model))
    factors = Factors.of(model)
    other = graph.build(replace(factors, B=factors.B[::-1].copy()), model.spec, "int8")
    with pytest.raises(SelfTestError):
        verify_kit(replace(kit, recognizer=other))
    scaled = graph.build(replace(factors, coding=replace(factors.coding, lam=1.0)), model.spec, "int8")
    with pytest.raises(ParityError):
        verify_kit(replace(kit, recognizer=scaled))


def test_int8_kit_of_an_older_version_still_passes() -> None:
    """It has int8 weights that are widened when the graph is loaded, and products of float32."""
    model = trained("parts")
    factors = Factors.of(model)

    class Older(Factors):
        def write(self, g: Graph, x: str, precision: graph.Precision) -> int:
            return self.write_widened(g, x, precision)

    older = Older(**vars(factors))
    data = graph.build(older, model.spec, "int8")
    assert "MatMulInteger" not in {node.op_type for node in graph.onnx.load_model_from_string(data).graph.node}
    kit = kit_of(model, data)
    assert isinstance(Reference(kit).factors, Factors)
    assert all(parity.holds for parity in verify_kit(kit, model=model))
    assert Recognizer(kit).recognize_crops(crops_of("parts")[:2])


def test_l1_keeps_products_of_float32() -> None:
    model = doors.model("both", "l1")
    data = graph.build(Factors.of(model), model.spec, "int8")
    assert "MatMulInteger" not in {node.op_type for node in graph.onnx.load_model_from_string(data).graph.node}
    assert isinstance(graph.stored_in(data, replace(model.coding)), Factors)
