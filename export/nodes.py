"""Writes an ONNX graph: nodes and constants by name.

Weights may be stored in fewer bits. The runtime widens them once, when it loads the graph: the arithmetic stays float32.
(Only int8 with the coding l21 also multiplies integers: export.integer.)
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_tensor_value_info as make_info

from edge.vision.confidence import BLANK
from edge.vision.recognize import OUTPUTS
from trainer.features.spec import Spec
from trainer.types import Array

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
OPSET = 13  # every onnxruntime that pyproject.toml allows can read it
IR_VERSION = 7
TINY, EPS = (float(value) for value in (np.finfo(np.float32).tiny, np.finfo(np.float32).eps))


class Graph:
    """Nodes and constants in the order of writing. A call adds a node and returns the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.opset = OPSET
        self.prefix = ""  # of the names that are written; names that are read are looked up with it first
        self.written: set[str] = set()

    def __call__(self, operator: str, inputs: Sequence[str], output: str | list[str], **attributes: Any) -> str:
        outputs = [self.prefix + name for name in ([output] if isinstance(output, str) else output)]
        found = [self.prefix + name if self.prefix + name in self.written else name for name in inputs]
        self.nodes.append(helper.make_node(operator, found, outputs, name=outputs[0], **attributes))
        self.written.update(outputs)
        return outputs[0]

    def constant(self, name: str, value: Array) -> str:
        name = self.prefix + name
        self.constants[name] = np.ascontiguousarray(value) if value.ndim else value
        self.written.add(name)
        return name

    def scalar(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def weight(self, name: str, value: Array, precision: Precision) -> None:
        """Add a matrix or kernels, stored in this precision and widened at load time. int8 has one scale per row."""
        if precision == "fp32":
            self.constant(name, value)
        elif precision == "fp16":
            self("Cast", [self.constant(f"{name}_fp16", value.astype(np.float16))], name, to=TensorProto.FLOAT)
        else:
            others = tuple(range(1, value.ndim))
            scale = np.maximum(np.abs(value).max(axis=others, keepdims=True) / 127, TINY).astype(np.float32)
            levels = self.constant(f"{name}_int8", np.rint(value / scale).astype(np.int8))
            wide = self("Cast", [levels], f"{name}_levels", to=TensorProto.FLOAT)
            self("Mul", [wide, self.constant(f"{name}_scale", scale)], name)

    def sum_squares(self, rows: str, name: str) -> str:
        """Return (N,1). In onnxruntime ReduceSum is a hundred times as accurate as ReduceSumSquare, and not slower."""
        axis = self.constant("axis_1", np.array([1], np.int64))
        return self("ReduceSum", [self("Mul", [rows, rows], f"{rows}_squares"), axis], name, keepdims=1)

    def unit_scale(self, rows: str) -> tuple[str, str]:
        """Return the factors that scale rows to unit length (0 for a blank row), and 1 for each row that is not blank."""
        blank = self.scalar("blank", BLANK)
        # present = length > BLANK;  scale = present / maximum(length, BLANK)
        length = self("Sqrt", [self.sum_squares(rows, f"{rows}_squared")], f"{rows}_length")
        present = self("Cast", [self("Greater", [length, blank], f"{rows}_above")], f"{rows}_present", to=TensorProto.FLOAT)
        return self("Div", [present, self("Max", [length, blank], f"{rows}_divisor")], f"{rows}_scale"), present

    def model(self, spec: Spec, people: int) -> bytes:
        """Return the checked and serialised graph."""
        kinds = dict.fromkeys(OUTPUTS, TensorProto.FLOAT) | {"label": TensorProto.INT64}
        graph = helper.make_graph(
            self.nodes,
            "recognizer",
            [make_info("crops", TensorProto.UINT8, ["N", *spec.crop_shape])],
            [make_info(name, kind, ["N", people] if name == "scores" else ["N"]) for name, kind in kinds.items()],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], producer_name="lclrr-edge")
        model.ir_version = IR_VERSION
        data = bytes(model.SerializeToString(deterministic=True))
        onnx.checker.check_model(data, full_check=True)  # it would serialise the model again
        return data


def stored_constants(graph: bytes) -> dict[str, Array]:
    """Return the constants of a graph by name, with its weights widened as the runtime does."""
    found = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_model_from_string(graph).graph.initializer}
    for name, value in list(found.items()):
        if name.endswith("_fp16"):
            found[name.removesuffix("_fp16")] = value.astype(np.float32)
        elif name.endswith("_int8"):
            weight = name.removesuffix("_int8")
            found[weight] = value.astype(np.float32) * found[f"{weight}_scale"]
    return found
