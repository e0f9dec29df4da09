"""A small embedding model, made on the spot: what SFace is, at a thousandth of its size. It was never trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIDE, LENGTH = 112, 48


def embedding_model(
    *,
    side: int = SIDE,
    inputs: Sequence[str] = ("data",),
    outputs: Sequence[str] = ("fc1",),
    operator: str = "PRelu",
    batch: int | str = 1,
    shape: Sequence[int] = (),
    opset: int = 11,
    weights_as_inputs: bool = True,
) -> bytes:
    """Convolution, batch normalisation, PRelu, dropout, a fully connected layer; for one face, as SFace is published.

    `operator` takes the place of PRelu, and `shape` that of the vector's own.
    """
    rng = np.random.default_rng(0)
    cells = side // 8
    kernels = rng.standard_normal((8, 3, 8, 8))
    weights = {
        "kernels": kernels - kernels.mean(axis=(1, 2, 3), keepdims=True),  # blind to what is even
        "gamma": rng.uniform(0.5, 1, 8),
        "beta": rng.standard_normal(8),
        "mean": rng.standard_normal(8),
        "var": rng.uniform(100, 2000, 8),
        "slope": rng.uniform(0, 0.5, (8, 1, 1)),
        "matrix": rng.standard_normal((LENGTH, 8 * cells * cells)) / 16,
    }
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    value = numpy_helper.from_array(np.array(shape or [batch if isinstance(batch, int) else -1, LENGTH], np.int64))
    nodes = [
        helper.make_node("Conv", ["data", "kernels"], ["conv"], strides=[8, 8]),
        helper.make_node("BatchNormalization", ["conv", "gamma", "beta", "mean", "var"], ["normal"]),
        helper.make_node(operator, ["normal", "slope"] if operator == "PRelu" else ["normal"], ["bent"]),
        helper.make_node("Dropout" if opset < 12 else "Identity", ["bent"], ["dropped"]),
        helper.make_node("Flatten", ["dropped"], ["flat"]),
        helper.make_node("Gemm", ["flat", "matrix"], ["vector" if shape else "fc1"], transB=1),
    ]
    if shape:
        nodes += [
            helper.make_node("Constant", [], ["shape"], value=value),
            helper.make_node("Reshape", ["vector", "shape"], ["fc1"]),
        ]
    sides: dict[str, Any] = {"data": [batch, 3, side, side]}

    def described(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, sides.get(name))

    listed = [described(name) for name in inputs]
    if weights_as_inputs:  # as old exporters do
        listed += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in tensors]
    graph = helper.make_graph(nodes, "embedding", listed, [described(name) for name in outputs], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 6
    return bytes(model.SerializeToString())
