"""A graph as a picture: one box per node, in layers, line under line like text."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

from edge.errors import UsageError

COLUMNS = 24  # layers in a line
COLOURS = {"MatMul": "#f4a582", "Gemm": "#f4a582", "Conv": "#92c5de", "AveragePool": "#92c5de", "Pad": "#92c5de"}


def draw(graph: bytes, path: Path) -> None:
    """Draw an ONNX graph into a .png or .svg."""
    if path.suffix not in (".png", ".svg"):
        raise UsageError(f"{path.name} is neither .png nor .svg.", "Choose one of these.")
    from matplotlib.figure import Figure

    nodes = list(onnx.load_model_from_string(graph).graph.node)
    maker = {output: i for i, node in enumerate(nodes) for output in node.output}
    places = _places(nodes, maker)
    width, height = (max(place[axis] for place in places) + 1 for axis in (0, 1))
    figure = Figure(figsize=(1.25 * width, 0.5 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set_xlim(-0.6, width - 0.4)
    axes.set_ylim(height - 0.4, -0.6)
    for i, node in enumerate(nodes):
        x, y = places[i]
        for source in {maker[name] for name in node.input if name in maker}:
            a, b = places[source]
            axes.plot([a, x], [b, y], color="#999999", linewidth=0.6, zorder=1)
        box = {"boxstyle": "round,pad=0.25", "facecolor": COLOURS.get(node.op_type, "#eeeeee"), "linewidth": 0.5}
        axes.text(x, y, f"{node.op_type}\n{node.name}", ha="center", va="center", fontsize=5, bbox=box, zorder=2)
    try:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}).", "Choose another place.") from None


def _places(nodes: list[Any], maker: dict[str, int]) -> list[tuple[float, float]]:
    """(x, y) of each node: x is its layer, one past the last of its inputs; long graphs break into lines of COLUMNS layers."""
    layers: list[int] = []
    for node in nodes:  # in an order in which inputs come first
        layers.append(max((layers[maker[name]] + 1 for name in node.input if name in maker), default=0))
    fill: dict[int, int] = defaultdict(int)
    rows = []
    for layer in layers:
        rows.append(fill[layer])
        fill[layer] += 1
    lines = max(layers) // COLUMNS + 1
    heights = [max(fill[layer] for layer in fill if layer // COLUMNS == line) for line in range(lines)]
    tops = [sum(heights[:line]) + line for line in range(lines)]
    return [(layer % COLUMNS, tops[layer // COLUMNS] + row) for layer, row in zip(layers, rows, strict=True)]
