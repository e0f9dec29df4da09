"""The guard rejects every graph that uses more of the ONNX format than a kit needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edge.errors import KitUnsafeError, UsageError
from edge.kit import guard as onnx_guard
from edge.kit.guard import DETECTOR_OPERATORS, RECOGNIZER_OPERATORS
from trainer.data import detector

FLOATS = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in ("x", "y")]


def model(*nodes: Any, opset: int = 13, ir_version: int = 7) -> Any:
    weights = numpy_helper.from_array(np.ones((3, 3), np.float32), "W")
    nodes = nodes or (helper.make_node("MatMul", ["x", "W"], ["y"]),)
    proto = helper.make_model(
        helper.make_graph(list(nodes), "g", FLOATS[:1], FLOATS[1:], [weights]), opset_imports=[helper.make_opsetid("", opset)]
    )
    proto.ir_version = ir_version
    return proto


def check(proto: Any) -> None:
    onnx_guard.check(proto if isinstance(proto, bytes) else proto.SerializeToString(), RECOGNIZER_OPERATORS, "recognizer.onnx")


def test_plain_graph_passes() -> None:
    check(model())
    newest = model(opset=17, ir_version=8)
    newest.producer_name, newest.producer_version, newest.domain = "exporter", "1", "org.example"
    newest.model_version, newest.doc_string = 3, "about"
    newest.metadata_props.add(key="author", value="anna")
    newest.graph.doc_string = "about"
    check(newest)


ALLOWED: dict[str, tuple[Any, str]] = {
    "model": (onnx.ModelProto, "ir_version producer_name producer_version domain model_version doc_string graph opset_import "
              "metadata_props"),
    "operator set": (onnx.OperatorSetIdProto, "domain version"),
    "graph": (onnx.GraphProto, "node name initializer doc_string input output value_info"),
    "node": (onnx.NodeProto, "input output name op_type attribute doc_string domain"),
    "attribute": (onnx.AttributeProto, "name f i s t floats ints strings doc_string type"),
    "tensor": (onnx.TensorProto, "dims data_type float_data int32_data int64_data name raw_data doc_string"),
}  # fmt: skip


@pytest.mark.parametrize("message", ALLOWED)
def test_allowed_fields_are_those_of_the_format(message: str) -> None:
    proto, names = ALLOWED[message]
    expected = {}
    for name in names.split():
        field = proto.DESCRIPTOR.fields_by_name[name]
        is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES, field.TYPE_MESSAGE)
        single = 2 if is_text else 5 if field.type == field.TYPE_FLOAT else 0
        is_list = isinstance(getattr(proto(), name), Sequence) and not isinstance(getattr(proto(), name), str | bytes)
        expected[field.number] = {single, 2} if is_list or is_text else {single}
    listed = onnx_guard._FIELDS[message]
    assert {number: set(types) for types, numbers in listed.items() for number in numbers} == expected


def test_yunet_passes() -> None:
    try:
        data = detector.yunet()
    except UsageError as error:
        pytest.skip(str(error))
    onnx_guard.check(data, DETECTOR_OPERATORS, "detector.onnx")


def external(proto: Any) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def external_without_location(proto: Any) -> None:
    proto.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")


def external_in_attribute(proto: Any) -> None:
    tensor = numpy_helper.from_array(np.ones(3, np.float32), "t")
    external_tensor = TensorProto()
    external_tensor.CopyFrom(tensor)
    external_tensor.data_location = TensorProto.EXTERNAL
    proto.graph.node[0].attribute.append(helper.make_attribute("value", external_tensor))


def unlisted(proto: Any) -> None:
    proto.graph.node.append(helper.make_node("Loop", ["x"], ["z"]))


def other_domain(proto: Any) -> None:
    proto.graph.node[0].domain = "com.microsoft"


def other_operator_set(proto: Any) -> None:
    proto.opset_import.append(helper.make_opsetid("com.example", 1))


def subgraph(proto: Any) -> None:
    inner = helper.make_graph([helper.make_node("Loop", [], [])], "inner", [], [])
    proto.graph.node[0].attribute.append(helper.make_attribute("body", inner))


def subgraphs(proto: Any) -> None:
    inner = helper.make_graph([], "inner", [], [])
    proto.graph.node[0].attribute.append(helper.make_attribute("bodies", [inner]))


def function(proto: Any) -> None:
    body = [helper.make_node("Loop", ["a"], ["b"])]
    proto.functions.append(helper.make_function("", "MatMul", ["a"], ["b"], body, [helper.make_opsetid("", 13)]))


def sparse(proto: Any) -> None:
    proto.graph.sparse_initializer.add()


def training(proto: Any) -> None:
    proto.training_info.add()


def text(proto: Any) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.array(["a"], dtype=object), "strings"))


def overloaded(proto: Any) -> None:
    proto.graph.node[0].overload = "other"


CHANGES = [
    (external, "outside the file"),
    (external_without_location, "outside the file"),
    (external_in_attribute, "outside the file"),
    (unlisted, "'Loop'"),
    (other_domain, "not standard"),
    (other_operator_set, "not standard"),
    (subgraph, "subgraph"),
    (subgraphs, "subgraph"),
    (function, "functions"),
    (sparse, "sparse"),
    (training, "training"),
    (text, "unexpected field"),
    (overloaded, "unexpected field"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_unsafe_graph_is_rejected(change: Callable[[Any], None], message: str) -> None:
    proto = model()
    change(proto)
    with pytest.raises(KitUnsafeError, match=message):
        check(proto)


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_unsafe_fields_of_a_merged_file_are_rejected(change: Callable[[Any], None], message: str) -> None:
    """A protobuf parser reads two concatenated files as one model."""
    proto = model()
    change(proto)
    with pytest.raises(KitUnsafeError, match=message):
        check(model().SerializeToString() + proto.SerializeToString())


def test_newer_opset_and_ir_version_are_rejected() -> None:
    with pytest.raises(KitUnsafeError, match="opset 18"):
        check(model(opset=18))
    with pytest.raises(KitUnsafeError, match="ir_version 9"):
        check(model(ir_version=9))


def test_format_of_the_runtime_is_rejected() -> None:
    """onnxruntime reads bytes 4 to 8. It would load this valid ONNX model in its own format."""
    proto = model()
    name = b"\x12\x08\x00\x00ORTM\x00\x00"  # the field producer_name may come first
    data = name + proto.SerializeToString()
    assert data[4:8] == b"ORTM"
    onnx.load_model_from_string(data)
    with pytest.raises(KitUnsafeError, match="not in the ONNX format"):
        check(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x08\x07", b"\x00", b"\xff" * 40, b"\x0b\x0c", b"PK\x03\x04", b"\x3a\xff\xff\xff\xff\x0f"]
)
def test_file_that_is_not_a_graph_is_rejected(data: bytes) -> None:
    with pytest.raises(KitUnsafeError):
        check(data)


def test_field_number_over_32_bits_is_rejected() -> None:
    """A parser that truncates tags to 32 bits would read this as the field `functions`."""
    tag = (1 << 35) | (25 << 3) | 2
    varint = bytes((tag >> (7 * i)) & 0x7F | (0x80 if i < 5 else 0) for i in range(6))
    with pytest.raises(KitUnsafeError):
        check(model().SerializeToString() + varint + b"\x00")
    long_name = b"\x12\x88\x80\x80\x80\x80\x00exporter"  # producer_name, with a length of 6 bytes
    long_tag = b"\x92\x80\x80\x80\x80\x00\x08exporter"
    for field in (long_name, long_tag, b"\x00\x00"):
        with pytest.raises(KitUnsafeError, match="not a valid ONNX file"):
            check(model().SerializeToString() + field)
    check(model().SerializeToString() + b"\x12\x88\x80\x80\x80\x00exporter")


def test_truncated_graph_is_rejected_or_valid() -> None:
    data = model().SerializeToString()
    for length in range(len(data)):
        try:
            check(data[:length])
        except KitUnsafeError:
            continue
        onnx.load_model_from_string(data[:length])  # a graph that passes can be read


@settings(max_examples=300)
@given(st.integers(0, 10**6), st.integers(1, 255), st.sampled_from([change for change, _ in CHANGES]))
def test_damaged_graph_raises_only_the_known_error(at: int, flip: int, change: Callable[[Any], None]) -> None:
    proto = model()
    change(proto)
    data = bytearray(proto.SerializeToString())
    data[at % len(data)] ^= flip
    try:
        check(bytes(data))
    except KitUnsafeError:
        return


# --- Operators with constant inputs ---

Change = Callable[[Any], None]


def integer_model() -> Any:
    """A graph with each operator of integers, as the exporter writes them."""
    constants: dict[str, Any] = {
        "W": np.ones((3, 3), np.int8),
        "zero": np.array(64, np.uint8),
        "unit": np.array(0.5, np.float32),
        "start": np.array([0, 0], np.int64),
        "end": np.array([2, 3], np.int64),
        "axes": np.array([0, 1], np.int64),
        "step": np.array([1, 1], np.int64),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "unit", "zero"], ["q"]),
        helper.make_node("Slice", ["q", "start", "end", "axes", "step"], ["part"]),
        helper.make_node("MatMulInteger", ["part", "W", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", FLOATS[:1], FLOATS[1:], stored), opset_imports=[helper.make_opsetid("", 13)]
    )
    proto.ir_version = 7
    return proto


def test_operators_of_integers_pass() -> None:
    proto = integer_model()
    onnx.checker.check_model(proto, full_check=True)
    check(proto)


def constant(proto: Any, name: str) -> Any:
    return next(tensor for tensor in proto.graph.initializer if tensor.name == name)


def node(proto: Any, operator: str) -> Any:
    return next(node for node in proto.graph.node if node.op_type == operator)


def stored_as(name: str, value: Any) -> Change:
    return lambda proto: constant(proto, name).CopyFrom(numpy_helper.from_array(value, name))


def dims(*lengths: int) -> Change:
    def change(proto: Any) -> None:
        constant(proto, "W").ClearField("dims")
        constant(proto, "W").dims.extend(lengths)

    return change


def with_input(operator: str, at: int, name: str) -> Change:
    def change(proto: Any) -> None:
        node(proto, operator).input[at] = name

    return change


def more_inputs(operator: str, *names: str) -> Change:
    return lambda proto: node(proto, operator).input.extend(names)


def fewer_inputs(operator: str) -> Change:
    return lambda proto: node(proto, operator).input.pop()


def attribute(operator: str) -> Change:
    return lambda proto: node(proto, operator).attribute.append(helper.make_attribute("axis", 0))


def second_output(operator: str) -> Change:
    return lambda proto: node(proto, operator).output.append("more")


def also_an_input(name: str) -> Change:
    return lambda proto: proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT8, [3, 3]))


def also_an_output(name: str) -> Change:
    return lambda proto: proto.graph.node.insert(0, helper.make_node("Reshape", ["x", "axes"], [name]))


def twice(name: str) -> Change:
    return lambda proto: proto.graph.initializer.append(constant(proto, name))


def values_in_another_field(proto: Any) -> None:
    tensor = constant(proto, "W")
    tensor.ClearField("raw_data")
    tensor.int32_data.extend([1] * 9)


def values_in_two_fields(proto: Any) -> None:
    constant(proto, "W").int32_data.extend([1] * 9)


WRONG: list[tuple[str, Change]] = [
    ("shape", dims(3, 4)),
    ("shape", dims(9)),
    ("shape", dims(3, 3, 1)),
    ("shape", dims()),
    ("shape", dims(0, 3)),
    ("shape", dims(2**62, 2**62)),
    ("shape", dims(1 << 17, 1)),
    ("shape", stored_as("W", np.ones((1 << 17, 1), np.int8))),
    ("shape", stored_as("W", np.ones((3, 3), np.uint8))),
    ("shape", stored_as("W", np.ones((3, 3), np.float32))),
    ("shape", stored_as("W", np.ones((3, 3), np.int16))),
    ("shape", stored_as("zero", np.array([64], np.uint8))),
    ("shape", stored_as("zero", np.array(0, np.int8))),
    ("shape", stored_as("unit", np.array([0.5], np.float32))),
    ("shape", stored_as("end", np.array([[2, 3]], np.int64))),
    ("shape", stored_as("end", np.array([2, 3], np.int32))),
    ("shape", values_in_another_field),
    ("shape", values_in_two_fields),
    ("not constant", with_input("MatMulInteger", 1, "q")),
    ("not constant", with_input("MatMulInteger", 1, "x")),
    ("not constant", with_input("MatMulInteger", 1, "nowhere")),
    ("not constant", with_input("MatMulInteger", 2, "")),
    ("not constant", with_input("QuantizeLinear", 1, "x")),
    ("not constant", with_input("Slice", 2, "q")),
    ("not constant", also_an_input("W")),
    ("not constant", also_an_output("W")),
    ("not constant", twice("W")),
    ("other inputs", more_inputs("MatMulInteger", "zero")),
    ("other inputs", fewer_inputs("MatMulInteger")),
    ("other inputs", fewer_inputs("QuantizeLinear")),
    ("other inputs", fewer_inputs("Slice")),
    *(("other inputs", make(operator)) for make in (attribute, second_output) for operator in onnx_guard._CONSTANT_INPUTS),
]


@pytest.mark.parametrize(("message", "change"), WRONG)
def test_operator_of_integers_with_other_inputs_is_rejected(message: str, change: Change) -> None:
    proto = integer_model()
    change(proto)
    with pytest.raises(KitUnsafeError, match=message):
        check(proto)


def test_second_name_of_an_operator_does_not_hide_the_first() -> None:
    """A parser uses the last op_type of a node."""
    proto = integer_model()
    node(proto, "MatMulInteger").attribute.append(helper.make_attribute("axis", 0))
    plain = node(proto, "MatMulInteger").SerializeToString()
    proto.graph.node.remove(node(proto, "MatMulInteger"))
    first = b"\x22\x03Add"  # the field op_type
    field = first + plain
    assert onnx.NodeProto.FromString(field).op_type == "MatMulInteger"
    graph = b"\x0a" + bytes([len(field)]) + field
    with pytest.raises(KitUnsafeError, match="other inputs"):  # two files are read as one graph
        check(proto.SerializeToString() + b"\x3a" + bytes([len(graph)]) + graph)


def test_check_reads_no_weights() -> None:
    """A file of 64 MB must not take longer than a small one: the number of fields that are visited is the same."""
    small, large = integer_model(), integer_model()
    constant(large, "W").CopyFrom(numpy_helper.from_array(np.ones((1 << 12, 1 << 12), np.int8), "W"))
    visited = []
    for proto in (small, large):
        with mock.patch.object(onnx_guard, "_varint", wraps=onnx_guard._varint) as counted:
            check(proto)
        visited.append(counted.call_count)
    assert visited[0] == visited[1]
