"""Prepares a published network (ONNX) so that a graph of a kit can include its nodes."""

import re
from typing import Any

import numpy as np

from edge.errors import UsageError
from edge.kit import guard as onnx_guard

OLDEST_OPSET = 13
_NO_OPERATION = ("Dropout", "Identity")  # nodes without effect in inference


def prepared(model: bytes, *, side: int, names: tuple[str, str], prefix: str, operators: frozenset[str]) -> Any:
    """Return the network (onnx.ModelProto) with one input N x 3 x side x side and one output, which get these `names`.

    It has a free batch size, opset 13 to 17, constants as initializers, nothing unused, only listed `operators`, and all other
    names begin with `prefix`.
    """
    import onnx  # slow to load
    from onnx import TensorProto, helper, version_converter

    try:
        whole = onnx.load_from_string(model)
        opset = next(entry.version for entry in whole.opset_import if entry.domain in ("", "ai.onnx"))
        _simplify(whole.graph)
        if opset < OLDEST_OPSET:
            whole, opset = version_converter.convert_version(whole, OLDEST_OPSET), OLDEST_OPSET
    except Exception:  # protobuf's and the converter's own
        raise UsageError("it is not a readable ONNX file.", "Export it with opset 13 to 17.") from None
    graph = whole.graph
    if opset > onnx_guard.MAX_OPSET:
        raise UsageError(f"it has opset {opset}.", f"Export it with opset {OLDEST_OPSET} to {onnx_guard.MAX_OPSET}.")
    weights = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]  # old exporters list weights as inputs, too
    shapes = ["x".join(str(side.dim_value or "free") for side in value.type.tensor_type.shape.dim) for value in inputs]
    fits = len(shapes) == 1 and re.fullmatch(rf"\w+x(3|free)x({side}|free)x({side}|free)", shapes[0])
    if not fits or len(graph.output) != 1:
        raise UsageError(
            f"its input is {' and '.join(shapes)}, and it has {len(graph.output)} output(s).",
            f"Use a model with one input, Nx3x{side}x{side}, and one vector as output.",
        )
    known = {inputs[0].name: names[0], graph.output[0].name: names[1], "": ""}

    def renamed(listed: Any) -> list[str]:
        return [known.setdefault(name, f"{prefix}{len(known)}") for name in listed]

    nodes = [
        onnx.NodeProto(
            op_type=node.op_type,
            domain=node.domain,
            name=f"{prefix}node.{number}",
            input=renamed(node.input),
            output=renamed(node.output),
            attribute=node.attribute,
        )
        for number, node in enumerate(graph.node)
    ]
    used = {name for node in graph.node for name in node.input}
    initializers = [tensor for name, tensor in weights.items() if name in used]
    for tensor in initializers:
        tensor.name = known[tensor.name]
    built_graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(names[0], TensorProto.FLOAT, ["N", 3, side, side])],
        [helper.make_tensor_value_info(names[1], TensorProto.FLOAT, None)],
        initializers,
    )
    built_model = helper.make_model(built_graph, opset_imports=[helper.make_opsetid("", opset)])
    built_model.ir_version = onnx_guard.MAX_IR_VERSION
    onnx_guard.check(built_model.SerializeToString(deterministic=True), operators, "it")
    return built_model


def quick(network: Any) -> Any:
    """Return a copy of a network (onnx.ModelProto) with the same results, bit by bit, that onnxruntime computes faster.

    PRelu takes more than half of the time of SFace: onnxruntime 1.2x has no vector instructions for it, but has for the four
    operators that do the same. For the trainer only: the time on other processors was not measured, so kits keep PRelu.
    """
    from onnx import ModelProto, NodeProto, numpy_helper

    copy, nodes = ModelProto(), []
    copy.CopyFrom(network)
    zero = "quick.zero"
    for node in copy.graph.node:
        if node.op_type != "PRelu":
            nodes.append(node)
            continue
        (x, slope), (y,) = node.input, node.output
        above, below, scaled = (f"{y}.{name}" for name in ("above", "below", "scaled"))
        # y = max(x, 0) + slope min(x, 0)
        nodes.append(NodeProto(op_type="Relu", input=[x], output=[above]))
        nodes.append(NodeProto(op_type="Min", input=[x, zero], output=[below]))
        nodes.append(NodeProto(op_type="Mul", input=[below, slope], output=[scaled]))
        nodes.append(NodeProto(op_type="Add", input=[above, scaled], output=[y]))
    if len(nodes) == len(copy.graph.node):
        return copy
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    copy.graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), zero))
    return copy


def _simplify(graph: Any) -> None:
    """Remove nodes without effect, turn constants into initializers, and a reshape to a computed shape into Flatten.

    A computed shape is how some exporters write "all but the first dimension in one row".
    """
    same: dict[str, str] = {}
    for node in list(graph.node):
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type in _NO_OPERATION:
            same[node.output[0]] = node.input[0]
            graph.node.remove(node)
        elif node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            graph.node.remove(node)
    constants = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] not in constants:
            node.op_type = "Flatten"
            del node.input[1:], node.attribute[:]
    for output in graph.output:
        output.name = same.get(output.name, output.name)
    used = {value.name for value in graph.output}
    for node in reversed(list(graph.node)):
        if used.isdisjoint(node.output):
            graph.node.remove(node)
        else:
            used.update(node.input)
    del graph.value_info[:]  # it describes a batch of one face, and names that no longer exist
