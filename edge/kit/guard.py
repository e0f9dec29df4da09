"""Check an ONNX graph before the runtime loads it. Works on the bytes, without the onnx package.

A graph of a kit is a flat list of standard operators with its weights inside the file. All else that the format allows is
rejected: unlisted operators, other operator sets, functions, subgraphs, sparse and external tensors, and every field that
is not listed below. The check visits each occurrence of a field, because a parser merges repeated fields.
"""

from collections.abc import Iterator

from edge.errors import KitUnsafeError

RECOGNIZER_OPERATORS = frozenset([
    "Add", "AveragePool", "Cast", "Clip", "Concat", "Conv", "Div", "Gather", "Gemm", "Greater", "MatMul", "Max", "Mean", "Mul",
    "Pad", "ReduceL2", "ReduceMax", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Sqrt", "Sub", "TopK", "Transpose",
])  # fmt: skip
# More operators for a network (SFace, MobileFaceNet, the ResNets of ArcFace) in front of the recognizer.
NETWORK_OPERATORS = frozenset(["BatchNormalization", "Flatten", "GlobalAveragePool", "MaxPool", "PRelu", "Sigmoid"])
DETECTOR_OPERATORS = frozenset(["Add", "Conv", "MaxPool", "Relu", "Reshape", "Resize", "Sigmoid", "Transpose"])
MAX_OPSET = 17
MAX_IR_VERSION = 8

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
