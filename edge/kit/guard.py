"""Check an ONNX graph before the runtime loads it. Works on the bytes, without the onnx package.

A graph of a kit is a flat list of standard operators with its weights inside the file. All else that the format allows is
rejected: unlisted operators, other operator sets, functions, subgraphs, sparse and external tensors, and every field that
is not listed below. The check visits each occurrence of a field, because a parser merges repeated fields. The operators of
integers also have rules for their constants.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from edge.errors import KitUnsafeError

RECOGNIZER_OPERATORS = frozenset([
    "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "Div", "Gather", "Gemm", "Greater", "MatMul", "MatMulInteger",
    "Max", "Mean", "Mul", "Pad", "QuantizeLinear", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Reshape",
    "Slice", "Sqrt", "Sub", "TopK", "Transpose",
])  # fmt: skip
# More operators for a network (SFace, MobileFaceNet, the ResNets of ArcFace) in front of the recognizer.
NETWORK_OPERATORS = frozenset(["BatchNormalization", "Flatten", "GlobalAveragePool", "MaxPool", "PRelu", "Sigmoid"])
LIVENESS_OPERATORS = frozenset([
    "Add", "BatchNormalization", "Cast", "Conv", "Flatten", "Gather", "Gemm", "GlobalAveragePool", "MatMul", "MaxPool", "Mean",
    "Mul", "PRelu", "Relu", "Reshape", "Sigmoid", "Softmax", "Sub", "Transpose",
])  # fmt: skip
DETECTOR_OPERATORS = frozenset(["Add", "Conv", "MaxPool", "Relu", "Reshape", "Resize", "Sigmoid", "Transpose"])
MAX_OPSET = 17
MAX_IR_VERSION = 8
MAX_ROWS = 1 << 16  # of integer weights: 65536 * 255 * 128 < 2**31, so no sum overflows
MAX_COLUMNS = 1 << 20

# Types of tensors in ONNX.
_FLOAT_TYPE, _UINT8, _INT8, _INT64 = 1, 2, 3, 7
_BYTES_OF = {_FLOAT_TYPE: 4, _UINT8: 1, _INT8: 1, _INT64: 8}
# operator -> (type, number of dimensions) of each input after the first. All of them are constants; there are no attributes.
_CONSTANT_INPUTS = {
    "MatMulInteger": ((_INT8, 2), (_UINT8, 0)),  # weights; zero point of the first input
    "QuantizeLinear": ((_FLOAT_TYPE, 0), (_UINT8, 0)),  # scale, zero point
    "Slice": ((_INT64, 1),) * 4,  # starts, ends, axes, steps
}

# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBER, _FLOAT, _TEXT = (_VARINT,), (_FIXED32,), (_BYTES,)
_NUMBERS, _FLOATS = (_VARINT, _BYTES), (_FIXED32, _BYTES)  # repeated numbers come one by one or packed

# message -> allowed wire types -> numbers of the fields that may have them.
_FIELDS: dict[str, dict[tuple[int, ...], tuple[int, ...]]] = {
    "model": {_NUMBER: (1, 5), _TEXT: (2, 3, 4, 6, 7, 8, 14)},  # 2 to 6 and 14: producer, versions, domain, doc, metadata
    "operator set": {_TEXT: (1,), _NUMBER: (2,)},
    "graph": {_TEXT: (1, 2, 5, 10, 11, 12, 13)},  # 2 and 10 to 13: name, doc, inputs, outputs, value_info
    "node": {_TEXT: (1, 2, 3, 4, 5, 6, 7)},  # 1, 2, 3 and 6: inputs, outputs, name, doc
    "attribute": {_TEXT: (1, 4, 5, 9, 13), _FLOAT: (2,), _NUMBER: (3, 20), _FLOATS: (7,), _NUMBERS: (8,)},
    "tensor": {_NUMBERS: (1, 5, 7), _NUMBER: (2,), _FLOATS: (4,), _TEXT: (8, 9, 12)},
}
# message -> field -> the message inside, or the rule to check.
_RULES: dict[str, dict[int, str]] = {
    "model": {1: "ir_version", 7: "graph", 8: "operator set"},
    "operator set": {1: "domain", 2: "opset"},
    "graph": {1: "node", 5: "tensor"},
    "node": {4: "operator", 5: "attribute", 7: "domain"},
    "attribute": {5: "tensor"},
    "tensor": {},
}
# Fields that a normal exporter may write: their errors say more than a number.
_REJECTED_FIELDS = {
    ("tensor", 13): "stores data outside the file",
    ("tensor", 14): "stores data outside the file",
    ("attribute", 6): "contains a subgraph",
    ("attribute", 11): "contains a subgraph",
    ("model", 20): "contains training information",
    ("model", 25): "defines functions",
    ("graph", 15): "contains sparse tensors",
}


def check(data: bytes, operators: frozenset[str], name: str) -> None:
    """Raise KitUnsafeError if the ONNX file `data`, called `name` in messages, has an unexpected field or operator."""
    if data[4:8] == b"ORTM":  # the runtime would read the file in its own format
        raise _unsafe(name, "is not in the ONNX format")
    try:
        seen = _check_message(memoryview(data), "model", operators, name)
        _check_constant_inputs(memoryview(data), name)
    except (IndexError, ValueError):
        raise _unsafe(name, "is not a valid ONNX file") from None
    if not seen >= {"ir_version", "operator set", "graph", "node"}:
        raise _unsafe(name, "is incomplete")


def _check_message(data: memoryview, message: str, operators: frozenset[str], name: str) -> set[str]:
    """Check a message and the messages inside it. Return the rules of all fields that occur."""
    seen = set()
    for number, wire_type, value in _fields(data):
        if (message, number) in _REJECTED_FIELDS:
            raise _unsafe(name, _REJECTED_FIELDS[message, number])
        if not any(number in numbers and wire_type in types for types, numbers in _FIELDS[message].items()):
            raise _unsafe(name, f"has an unexpected field ({message} {number})")
        rule = _RULES[message].get(number, "")
        seen.add(rule)
        if isinstance(value, int):
            if (rule == "opset" and value > MAX_OPSET) or (rule == "ir_version" and value > MAX_IR_VERSION):
                raise _unsafe(name, f"needs {rule} {value}")
        elif rule in _FIELDS:
            seen |= _check_message(value, rule, operators, name)
        elif rule == "operator" and (operator := str(value, "utf-8")) not in operators:
            raise _unsafe(name, f"uses the operator {operator[:40]!r}, which is not listed")
        elif rule == "domain" and bytes(value) not in (b"", b"ai.onnx"):
            raise _unsafe(name, "uses operators that are not standard")
    return seen


@dataclass(frozen=True)
class _Tensor:
    """A constant of a graph, without its values."""

    type: int
    dims: tuple[int, ...]
    length: int
    """Bytes of its values; -1 if they are not stored once, as raw bytes."""


def _check_constant_inputs(data: memoryview, name: str) -> None:
    """Raise KitUnsafeError if an operator of _CONSTANT_INPUTS has other inputs, outputs or attributes."""
    constants: dict[bytes, list[_Tensor]] = defaultdict(list)
    variables: set[bytes] = set()
    nodes: list[dict[int, list[bytes]]] = []
    for graph in _messages(data, 7):
        for number, _, value in _fields(graph):
            if isinstance(value, int):
                continue
            if number == 1:
                node = _texts(value, 1, 2, 4, 5)
                variables.update(node[2])
                nodes.append(node)
            elif number == 5:
                for own_name, tensor in _tensors(value):
                    constants[own_name].append(tensor)
            elif number == 11:  # an input of the graph replaces a constant of the same name
                variables.update(_texts(value, 1)[1])
    for node in nodes:
        for operator in {str(value, "utf-8") for value in node[4]} & _CONSTANT_INPUTS.keys():
            inputs = node[1][1:]
            expected = _CONSTANT_INPUTS[operator]
            shape = len(node[4]), len(inputs), len(node[2]), len(node[5])
            if shape != (1, len(expected), 1, 0):
                raise _unsafe(name, f"has a node {operator} with other inputs, outputs or attributes than a kit needs")
            for own_name, (type_, rank) in zip(inputs, expected, strict=True):
                found = constants.get(own_name, [])
                if len(found) != 1 or own_name in variables:
                    raise _unsafe(name, f"has a node {operator} whose weights or settings are not constant")
                if not _is_valid(found[0], type_, rank):
                    raise _unsafe(name, f"has a node {operator} with weights or settings of a wrong type or shape")


def _is_valid(tensor: _Tensor, type_: int, rank: int) -> bool:
    limits = (MAX_ROWS, MAX_COLUMNS)
    return (
        (tensor.type, len(tensor.dims)) == (type_, rank)
        and all(1 <= length <= limit for length, limit in zip(tensor.dims, limits, strict=False))
        and tensor.length == prod(tensor.dims) * _BYTES_OF[type_]
    )


def _tensors(data: memoryview) -> Iterator[tuple[bytes, _Tensor]]:
    """Yield a constant once for each of its names: a parser uses the last one."""
    types: list[int] = []
    dims: list[int] = []
    names: list[bytes] = []
    lengths: list[int] = []
    for number, _, value in _fields(data):
        if isinstance(value, int):
            dims += [value] * (number == 1)
            types += [value] * (number == 2)
            lengths += [-1] * (number in (5, 7))
        elif number == 1:
            position = 0
            while position < len(value):
                length, position = _varint(value, position, max_bytes=10)
                dims.append(length)
        elif number == 8:
            names.append(bytes(value))
        elif number in (4, 5, 7, 9):  # values in other fields than the raw bytes are not for integer operators
            lengths.append(len(value) if number == 9 else -1)
    tensor = _Tensor(types[0] if len(types) == 1 else 0, tuple(dims), lengths[0] if len(lengths) == 1 else -1)
    return ((own_name, tensor) for own_name in names)


def _messages(data: memoryview, number: int) -> Iterator[memoryview]:
    """Yield the messages in a field."""
    return (value for found, _, value in _fields(data) if found == number and not isinstance(value, int))


def _texts(data: memoryview, *numbers: int) -> dict[int, list[bytes]]:
    """Return the contents of some fields of a message."""
    found: dict[int, list[bytes]] = {number: [] for number in numbers}
    for number, _, value in _fields(data):
        if number in found and not isinstance(value, int):
            found[number].append(bytes(value))
    return found


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """Yield (field number, wire type, value) of a message. Values of fixed width are raw bytes: no rule reads them."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position, max_bytes=5)
        number, wire_type = tag >> 3, tag & 7
        if number == 0 or tag >= 1 << 32:
            raise ValueError
        if wire_type == _VARINT:
            value, position = _varint(data, position, max_bytes=10)
            yield number, wire_type, value
            continue
        if wire_type == _BYTES:
            length, position = _varint(data, position, max_bytes=5)
        else:
            length = {_FIXED32: 4, _FIXED64: 8}.get(wire_type, len(data) + 1)  # groups are rejected
        if position + length > len(data):
            raise ValueError
        yield number, wire_type, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int, *, max_bytes: int) -> tuple[int, int]:
    """Return a number of 7 bits per byte, and the position after it."""
    value = 0
    for i in range(max_bytes):
        byte = data[position + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, position + i + 1
    raise ValueError


def _unsafe(name: str, problem: str) -> KitUnsafeError:
    return KitUnsafeError(f"{name} {problem}. It is not run.", "Use a kit that `edge-export build` wrote.")
