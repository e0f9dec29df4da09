"""The liveness model of a kit: published networks as one graph.

crops_k (N,s,s,3) uint8, BGR  ->  channels in the network's order, (x - mean) * scale  ->  network  ->  softmax
live (N,) = mean over the networks of the probability of the class "live"
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_tensor_value_info as make_info

from edge.errors import KitError, UsageError
from edge.files import read_bytes
from edge.kit import guard
from edge.kit.manifest import LIVE_THRESHOLDS, MAX_LIVENESS_BYTES, MAX_LIVENESS_NETWORKS, Liveness
from edge.vision.presentation import LivenessModel, crop_name
from export.nodes import IR_VERSION, OPSET, Graph
from trainer.features.prepare import prepared
from trainer.types import Array

THRESHOLD = 0.5
# Width and height of the frame, in boxes of the face. Replayed videos that were cut to 1.8 boxes of width passed in up to 20 %
# of their frames, with 2.1 in none; live ones that were cut to 1.1 boxes of height failed in up to 23 %, with 1.3 in none.
CONTEXT = (2.2, 1.3)
APACHE = (Path(__file__).parent / "apache_license.txt").read_text(encoding="utf-8")
_EXAMPLE = "onnx:FILE,zoom=2.7,side=80,order=bgr,live=1"


@dataclass(frozen=True, kw_only=True)
class LivenessNetwork:
    """A network that tells live faces from pictures."""

    name: str
    zoom: float
    """How many times the box of the face its crop shows."""
    side: int = 80
    """Side of its crop, in pixels."""
    order: Literal["bgr", "rgb"] = "bgr"
    """Order of its input channels."""
    mean: float = 0.0
    """Subtracted from each pixel (0 to 255)."""
    scale: float = 1.0
    """Factor after the subtraction."""
    live: int = 1
    """The class of live faces among its outputs."""
    license: str = ""
    """Name and licence, for kits that contain it."""
    sha256: str = ""
    """Of the published file."""
    model: bytes = field(default=b"", repr=False)
    """The published file (ONNX): N x 3 x side x side in, N x classes out, before softmax."""


KNOWN: dict[str, dict[str, Any]] = {
    entry["sha256"]: entry for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()
}


@dataclass(frozen=True, kw_only=True)
class LivenessPart:
    """What a kit stores of a liveness model."""

    graph: bytes
    spec: Liveness
    license: str


def parse(text: str, folder: Path | None = None) -> list[LivenessNetwork]:
    """Return the networks that `--liveness onnx:FILE[,FILE]` names. A FILE that is in `folder` is taken from there.

    Known files need no more. Others need `zoom`, and may have side, order, mean, scale and live after their name.
    """
    kind, _, rest = text.partition(":")
    words = rest.split(",")
    if kind != "onnx" or not words[0] or "=" in words[0]:
        raise UsageError(f"Cannot read --liveness {text}.", f"Write onnx:FILE, onnx:FILE,FILE or {_EXAMPLE}.")
    files: list[tuple[str, dict[str, str]]] = []
    for word in words:
        name, is_option, value = word.partition("=")
        if is_option:
            files[-1][1][name] = value
        else:
            files.append((word, {}))
    if len(files) > MAX_LIVENESS_NETWORKS:
        raise UsageError(f"--liveness names {len(files)} files.", f"Name at most {MAX_LIVENESS_NETWORKS}.")
    return [_network(_found(file, folder), given) for file, given in files]


def _found(file: str, folder: Path | None) -> Path:
    own = None if folder is None else folder / file
    return own if own is not None and own.is_file() else Path(file)


def _network(file: Path, given: Mapping[str, str]) -> LivenessNetwork:
    """Return the network in a file, with what is known about it and what is given."""
    data = read_bytes(file, MAX_LIVENESS_BYTES + 1)
    digest = hashlib.sha256(data).hexdigest()
    values: dict[str, Any] = dict(KNOWN.get(digest, {}))
    try:
        for name, text in given.items():
            if name in ("side", "live") and re.fullmatch("[0-9]{1,4}", text):
                values[name] = int(text)
            elif name in ("zoom", "mean", "scale") and np.isfinite(float(text)):
                values[name] = float(text)
            elif name == "order" and text in ("bgr", "rgb"):
                values[name] = text
            else:
                raise ValueError
        if "zoom" not in values:
            hint = f"Give what its makers say about its input, for example {_EXAMPLE}."
            raise UsageError(f"{file} is not a known liveness model.", hint)
        if not (1 <= values["zoom"] <= 8 and 16 <= values.get("side", 80) <= 512 and values.get("scale", 1.0) != 0):
            raise ValueError
    except ValueError:
        raise UsageError(f"Cannot read --liveness for {file}.", f"Write {_EXAMPLE}.") from None
    unknown = f"{file.name} (SHA-256 {digest}), under the terms of its makers"
    found = {"name": file.stem, "license": unknown} | values | {"sha256": digest, "model": data}
    return LivenessNetwork(**found)


def build(networks: Sequence[LivenessNetwork], threshold: float = THRESHOLD) -> LivenessPart:
    """Return the graph of these networks, after a test run."""
    low, high = LIVE_THRESHOLDS
    if not low <= threshold <= high:
        raise UsageError(f"The liveness threshold must be between {low:g} and {high:g}, not {threshold:g}.")
    g = Graph()
    scores = [_nodes(g, network, number) for number, network in enumerate(networks)]
    g("Mean", scores, "live")
    graph = helper.make_graph(
        g.nodes,
        "liveness",
        [make_info(crop_name(i), TensorProto.UINT8, ["N", own.side, own.side, 3]) for i, own in enumerate(networks)],
        [make_info("live", TensorProto.FLOAT, ["N"])],
        [numpy_helper.from_array(value, name) for name, value in g.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)], producer_name="lclrr-edge")
    model.ir_version = IR_VERSION
    data = bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(data, full_check=True)
    guard.check(data, guard.LIVENESS_OPERATORS, "The liveness model")
    spec = Liveness(
        threshold=float(threshold),
        context=CONTEXT,
        crops=tuple((network.side, float(network.zoom)) for network in networks),
        names=tuple(network.name for network in networks),
    )
    _try(data, spec)
    parts = "\n".join(network.license for network in networks)
    return LivenessPart(
        graph=data, spec=spec, license=f"liveness.onnx contains:\n{parts}\n\n{APACHE if 'Apache' in parts else ''}"
    )


def _nodes(g: Graph, network: LivenessNetwork, number: int) -> str:
    """Add one network, and return the name of its scores (N,)."""
    prefix = f"network_{number + 1}."
    names = f"{prefix}channels", f"{prefix}logits"
    try:
        model = prepared(network.model, side=network.side, names=names, prefix=prefix, operators=guard.LIVENESS_OPERATORS)
    except (KitError, UsageError) as error:
        raise UsageError(f"{network.name} cannot be used as a liveness model: {error.message}", error.hint) from None
    g.prefix = prefix
    # channels = (crops[..., order].transpose(0, 3, 1, 2) - mean) * scale
    images = g("Cast", [crop_name(number)], "float", to=TensorProto.FLOAT)
    images = g("Transpose", [images], "images", perm=[0, 3, 1, 2])
    if network.order == "rgb":
        images = g("Gather", [images, g.constant("rgb", np.array([2, 1, 0], np.int64))], "ordered", axis=1)
    g("Mul", [g("Sub", [images, g.scalar("mean", network.mean)], "centred"), g.scalar("scale", network.scale)], "channels")
    g.prefix = ""
    g.opset = max(g.opset, model.opset_import[0].version, OPSET)
    g.constants |= {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    g.nodes += model.graph.node
    # softmax(logits)[:, live]
    share = g("Softmax", [names[1]], f"{prefix}share", axis=1)
    return g("Gather", [share, g.constant(f"{prefix}live", np.array(network.live, np.int64))], f"{prefix}score", axis=1)


def _try(graph: bytes, spec: Liveness) -> None:
    """Run the graph on noise: its score must be a number from 0 to 1."""
    rng = np.random.default_rng(0)
    crops: list[Array] = [rng.integers(0, 256, (side, side, 3), np.uint8) for side, _ in spec.crops]
    try:
        score = LivenessModel(graph, spec).outputs(crops)
    except KitError:
        raise
    except Exception as error:  # the runtime's errors have no common base
        reason = str(error).splitlines()[0][:200]
        raise UsageError(f"The liveness model fails on a face ({reason}).", f"Write {_EXAMPLE}.") from None
    if not 0 <= score <= 1:
        raise UsageError("The liveness model gives no probability.", "Use a network with one output for each class.")
