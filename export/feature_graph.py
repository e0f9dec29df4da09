"""Features as nodes: crops in, feature vectors (N,d) out.

The arithmetic is that of edge.vision.preprocess.features and trainer.features.network. The comment above some nodes is the
NumPy line that they compute.
"""

import numpy as np
from onnx import numpy_helper

from edge.vision.preprocess import GREY_WEIGHTS, FeatureSpec, direction_vectors
from export.nodes import Graph, Precision
from trainer.features.network import CHANNELS, EMBEDDING, Network, prepared


def network_nodes(g: Graph, spec: Network, precision: Precision) -> str:
    """Return x (N,d): trainer.features.network.Network.vectors."""
    # channels = (ordered - mean) * scale; a grey one three times
    ordered, name = "images", CHANNELS if spec.colour else "grey"
    if spec.channels == "rgb":
        ordered = g("Gather", ["images", g.constant("rgb", np.array([2, 1, 0], np.int64))], "ordered", axis=1)
    centred = g("Sub", [ordered, g.scalar("mean", spec.mean)], "centred")
    g("Mul", [centred, g.scalar("channel_scale", spec.scale)], name)
    if not spec.colour:
        g("Concat", [name] * 3, CHANNELS, axis=1)
    model = prepared(spec.model)
    g.opset = max(g.opset, model.opset_import[0].version)
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        g.weight(tensor.name, value, precision if value.ndim > 1 and value.dtype == np.float32 else "fp32")
    g.nodes += model.graph.node
    # unit_rows(embedding)
    if spec.own is None:
        return g("Mul", [EMBEDDING, g.unit_scale(EMBEDDING)[0]], "x")
    # hstack([share * unit_rows(embedding), sqrt(1 - share**2) * ours])
    unit = g("Mul", [EMBEDDING, g.unit_scale(EMBEDDING)[0]], "unit_embedding")
    images = "images"
    if spec.colour:
        # to_grey(crops)
        weighted = g("Mul", [images, g.constant("grey_weights", GREY_WEIGHTS.reshape(1, 3, 1, 1))], "weighted_channels")
        channel_axis = g.constant("channel_axis", np.array([1], np.int64))
        images = g("ReduceSum", [weighted, channel_axis], "grey_images", keepdims=1)
    parts = [
        g("Mul", [part, g.scalar(f"{part}_share", share)], f"{part}_in_x")
        for part, share in ((unit, spec.share), (feature_nodes(g, spec.own, images, "ours"), np.sqrt(1 - spec.share**2)))
    ]
    return g("Concat", parts, "x", axis=1)


def feature_nodes(g: Graph, spec: FeatureSpec, images: str = "images", name: str = "x") -> str:
    """Return (N,d), named `name`: edge.vision.preprocess.features of the images (N,1,H,W)."""
    parts = []
    if spec.kind != "gradient":
        parts.append(_cells(g, images, 1, spec.cell, spec, "pixels"))
    if spec.kind != "pixels":
        directions = _directions(g, images, spec)
        parts.append(_cells(g, directions, len(direction_vectors()), spec.gradient_cell, spec, "gradient"))
    scales, present = zip(*(g.unit_scale(part) for part in parts), strict=True)
    if len(parts) == 1:
        return g("Mul", [parts[0], scales[0]], name)
    # unit_rows(hstack(unit parts)): the length is the square root of the number of parts that are not blank
    number = g("Max", [g("Add", present, "parts_present"), g.scalar("one", 1.0)], "parts_or_one")
    length = g("Sqrt", [number], "parts_length")
    scaled = [
        g("Mul", [part, g("Div", [scale, length], f"{part}_scale_in_x")], f"{part}_in_x")
        for part, scale in zip(parts, scales, strict=True)
    ]
    return g("Concat", scaled, name, axis=1)


def _directions(g: Graph, images: str, spec: FeatureSpec) -> str:
    """Return gradient directions (N,directions,H,W)."""
    along, across = spec.slope_kernels
    radius = len(along) // 2
    # padded = pad(images, radius, mode="edge")
    pads = g.constant("pads", np.array([0, 0, radius, radius, 0, 0, radius, radius], np.int64))
    padded = g("Pad", [images, pads], "padded", mode="edge")
    # slope_x = filter(filter(padded, along, 2), across, 1);  slope_y = filter(filter(padded, across, 2), along, 1)
    rows = g.constant("row_kernels", np.stack([along, across])[:, None, None, :])
    columns = g.constant("column_kernels", np.stack([across, along])[:, None, :, None])
    slope = g("Conv", [g("Conv", [padded, rows], "slope_rows"), columns], "slope", group=2)
    # length = sqrt(slope_x**2 + slope_y**2 + flat**2);  slope /= length
    squared = g("Add", [g.sum_squares(slope, "slope_squared"), g.scalar("flat_squared", spec.flat**2)], "slope_length_squared")
    length = g("Sqrt", [squared], "slope_length")
    unit = g("Div", [slope, length], "unit_slope")
    # maximum(x * slope_x + y * slope_y, 0) ** 2 for x, y in direction_vectors()
    kernels = g.constant("direction_vectors", direction_vectors()[:, :, None, None])
    positive = g("Relu", [g("Conv", [unit, kernels], "projections")], "positive")
    return g("Mul", [positive, positive], "directions")


def _cells(g: Graph, channels: str, count: int, cell: int, spec: FeatureSpec, name: str) -> str:
    """Return means over square cells, flattened."""
    if cell > 1:
        channels = g("AveragePool", [channels], f"{name}_cells", kernel_shape=[cell, cell], strides=[cell, cell])
    length = count * (spec.height // cell) * (spec.width // cell)
    return g("Reshape", [channels, g.constant(f"{name}_shape", np.array([-1, length], np.int64))], name)
