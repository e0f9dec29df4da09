"""May this ONNX file be handed to the runtime? Decided on its bytes, without the onnx package.

A graph of a kit is a flat list of standard operators with its weights inside the file. Whatever else the format allows is
refused: operators that are not listed, foreign operator sets, functions, subgraphs, sparse and external tensors, and every
field that is not named below. The walk visits each occurrence of a field, because a parser merges repeated ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from edge.errors import KitUnsafeError

RECOGNIZER_OPERATORS = frozenset(
    [
        "Add",
        "AveragePool",
        "Cast",
        "Clip",
        "Concat",
        "Conv",
        "Div",
        "Gather",
        "Gemm",
        "Greater",
        "MatMul",
        "Max",
        "Mean",
        "Mul",
        "Pad",
        "ReduceL2",
        "ReduceMax",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sqrt",
        "Sub",
        "TopK",
        "Transpose",
    ]
)
# What an embedding model in front of the recogniser may use beside those: SFace, MobileFaceNet, the ResNets of ArcFace.
BACKBONE_OPERATORS = frozenset(["BatchNormalization", "Flatten", "GlobalAveragePool", "MaxPool", "PRelu", "Sigmoid"])
DETECTOR_OPERATORS = frozenset(["Add", "Conv", "MaxPool", "Relu", "Reshape", "Resize", "Sigmoid", "Transpose"])
MAX_OPSET = 17
MAX_IR_VERSION = 8

# Wire types of protobuf.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_NUMBER, _TEXT = (_VARINT,), (_BYTES,)
_NUMBERS, _FLOATS = (_VARINT, _BYTES), (_FIXED32, _BYTES)  # repeated ones come one by one or packed

# message -> field number -> the wire types it may have, and the message it holds or the rule it must obey.
_SCHEMA: dict[str, dict[int, tuple[tuple[int, ...], str]]] = {
    "model": {
        1: (_NUMBER, "ir_version"),
        **dict.fromkeys((2, 3, 4, 6), (_TEXT, "")),  # producer, its version, domain, doc
        5: (_NUMBER, ""),
        7: (_TEXT, "graph"),
        8: (_TEXT, "operator set"),
        14: (_TEXT, ""),  # metadata
    },
    "operator set": {1: (_TEXT, "domain"), 2: (_NUMBER, "opset")},
    "graph": {
        1: (_TEXT, "node"),
        5: (_TEXT, "tensor"),
        **dict.fromkeys((2, 10, 11, 12, 13), (_TEXT, "")),  # name, doc, inputs, outputs, value_info
    },
    "node": {
        **dict.fromkeys((1, 2, 3, 6), (_TEXT, "")),  # inputs, outputs, name, doc
        4: (_TEXT, "operator"),
        5: (_TEXT, "attribute"),
        7: (_TEXT, "domain"),
    },
    "attribute": {
        **dict.fromkeys((1, 4, 9, 13), (_TEXT, "")),  # name, string, strings, doc
        2: ((_FIXED32,), ""),
        3: (_NUMBER, ""),
        5: (_TEXT, "tensor"),
        7: (_FLOATS, ""),
        8: (_NUMBERS, ""),
        20: (_NUMBER, ""),
    },
    "tensor": {
        1: (_NUMBERS, ""),
        2: (_NUMBER, ""),
        4: (_FLOATS, ""),
        5: (_NUMBERS, ""),
        7: (_NUMBERS, ""),
        **dict.fromkeys((8, 9, 12), (_TEXT, "")),  # name, raw data, doc
    },
}
# Fields that an honest exporter might write, so that the refusal says more than a number.
_REFUSED = {
    ("tensor", 13): "keeps data outside the file",
    ("tensor", 14): "keeps data outside the file",
    ("attribute", 6): "holds a subgraph",
    ("attribute", 11): "holds a subgraph",
    ("model", 20): "holds training information",
    ("model", 25): "defines functions",
    ("graph", 15): "holds sparse tensors",
}


def check(data: bytes, operators: frozenset[str], name: str) -> None:
    """Refuse `data`, the ONNX file called `name`, unless every field in it is expected and every operator listed."""
    if data[4:8] == b"ORTM":  # the runtime would take it for its own format, whatever else it is
        raise _unsafe(name, "is not in the ONNX format")
    try:
        seen = _walk(memoryview(data), "model", operators, name)
    except (IndexError, ValueError, UnicodeDecodeError):
        raise _unsafe(name, "is not a readable ONNX file") from None
    if not seen >= {"ir_version", "operator set", "graph", "node"}:
        raise _unsafe(name, "lacks a part of its graph")


def _walk(data: memoryview, message: str, operators: frozenset[str], name: str) -> set[str]:
    seen = set()
    for number, wire, value in _fields(data):
        if (message, number) in _REFUSED:
            raise _unsafe(name, _REFUSED[message, number])
        wires, rule = _SCHEMA[message].get(number, ((), ""))
        if wire not in wires:
            raise _unsafe(name, f"has an unexpected field ({message} {number})")
        seen.add(rule)
        if isinstance(value, int):
            if (rule == "opset" and value > MAX_OPSET) or (rule == "ir_version" and value > MAX_IR_VERSION):
                raise _unsafe(name, f"needs {rule} {value}")
        elif rule in _SCHEMA:
            seen |= _walk(value, rule, operators, name)
        elif rule == "operator" and (operator := str(value, "utf-8")) not in operators:
            raise _unsafe(name, f"uses the operator {operator[:40]!r}, which is not listed")
        elif rule == "domain" and bytes(value) not in (b"", b"ai.onnx"):
            raise _unsafe(name, "uses operators that are not standard")
    return seen


def _fields(data: memoryview) -> Iterator[tuple[int, int, int | memoryview]]:
    """(field number, wire type, value) of a message; numbers of fixed width are passed over, as no rule looks at them."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at, longest=5)
        number, wire = tag >> 3, tag & 7
        if number == 0 or tag >= 1 << 32:
            raise ValueError
        if wire == _VARINT:
            value, at = _varint(data, at, longest=10)
            yield number, wire, value
            continue
        if wire == _BYTES:
            length, at = _varint(data, at, longest=5)
        else:
            length = {_FIXED32: 4, _FIXED64: 8}.get(wire, len(data) + 1)  # groups: refused
        if at + length > len(data):
            raise ValueError
        yield number, wire, data[at : at + length]
        at += length


def _varint(data: memoryview, at: int, *, longest: int) -> tuple[int, int]:
    value = 0
    for i in range(longest):
        byte = data[at + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    raise ValueError


def _unsafe(name: str, what: str) -> KitUnsafeError:
    return KitUnsafeError(f"{name} {what}, and is not run.", "Use a kit that `edge-export build` wrote.")
