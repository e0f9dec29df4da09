"""An embedding network as features: the vector that a trained CNN computes from a face.

    crop (112,112,3) uint8, BGR  ->  channels in the network's order, (x - mean) * scale  ->  network  ->  unit vector
                                             our own features of the same crop in grey  ->  appended below it (optional)

Network and own features make different errors. trainer.method.experts adds up what both say about a face.

The network is an ONNX file that takes N x 3 x 112 x 112 and returns N x d, with operators that edge.kit.guard lists. Crops are
aligned as such networks expect. A network of an older model may take grey crops (112,112), as three equal
channels. The exporter puts the nodes of the network before the coder, in one graph.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, get_args

import numpy as np

from edge.errors import KitError, KitUnsafeError, ParameterError, UsageError
from edge.kit import guard as onnx_guard
from edge.kit.manifest import ARCFACE_ALIGNMENT, EYES_ALIGNMENT
from edge.vision.onnx_session import load_session
from edge.vision.preprocess import CHUNK, FeatureSpec, check_crops, to_grey, unit_rows
from trainer.parallel import in_threads
from trainer.types import Array

SIDE = 112
KIND = "onnx"
Channels = Literal["grey", "rgb", "bgr"]
CHANNELS, EMBEDDING = "channels", "embedding"  # names of input and output in the prepared graph
PREFIX = "network."  # prefix of all other names in the prepared graph
OLDEST_OPSET = 13
MAX_CACHED = 50_000  # vectors: training uses the same crops many times, and a vector takes a thousand times as long as our own
_NO_OPERATION = ("Dropout", "Identity")  # nodes without effect in inference


@dataclass(frozen=True, kw_only=True)
class Network:
    """Features computed by an embedding network (a Spec)."""

    model: bytes = field(repr=False)
    """The ONNX file as published."""
    mean: float = 0.0
    """Subtracted from each pixel (0 to 255). SFace: 0, insightface: 127.5."""
    scale: float = 1.0
    """Factor after the subtraction. SFace: 1, insightface: 0.0078431 (1/127.5) or 0.0078125 (1/128)."""
    channels: Channels = "rgb"
    """Order of the input channels: rgb (SFace, insightface) or bgr. grey: crops are grey, and all channels equal."""
    own: FeatureSpec | None = None
    """Our own features of the same crop, appended to the network's vector; None for the vector alone."""
    share: float = 0.5
    """Length of the network's part of the stacked vector. Chosen on AR's training images from 0.3, 0.5, 0.7 and 0.85."""

    kind = KIND
    height = width = SIDE

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean) and np.isfinite(self.scale) and self.scale != 0):
            raise ParameterError("mean and scale of a network must be finite, and scale must not be 0")
        if self.channels not in get_args(Channels):
            raise ParameterError(f"channels must be one of {', '.join(get_args(Channels))}, not {self.channels!r}")
        if self.own is not None and (self.own.height, self.own.width) != (SIDE, SIDE):
            raise ParameterError(f"own features beside a network need its crop size, {SIDE}x{SIDE}")
        if not 0 < self.share < 1:
            raise ParameterError(f"the share of a network must be between 0 and 1, not {self.share}")

    @property
    def network(self) -> "Network":
        return self

    @property
    def alignment(self) -> str:
        """Of the crops. Models before 0.3.0 have grey networks and the plain alignment."""
        return EYES_ALIGNMENT if self.colour else ARCFACE_ALIGNMENT

    @property
    def colour(self) -> bool:
        """Whether crops are BGR."""
        return self.channels != "grey"

    @property
    def crop_shape(self) -> tuple[int, ...]:
        """(height, width, 3) of a crop, (height, width) if it is grey."""
        return (SIDE, SIDE, 3) if self.colour else (SIDE, SIDE)

    @cached_property
    def sha256(self) -> str:
        """Checksum of the published file."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def length(self) -> int:
        """Entries of a vector."""
        return len(self.vectors(np.zeros((1, *self.crop_shape), np.uint8))[0])

    def settings(self) -> dict[str, Any]:
        """Return all settings except the file, for headers and manifests. `grey` is left out: older files have no channels."""
        return ({"channels": self.channels} if self.colour else {}) | {
            "kind": KIND,
            "height": SIDE,
            "width": SIDE,
            "mean": self.mean,
            "scale": self.scale,
            "beside": self.own and self.own.settings(),
            "share": self.share,
            "length": self.length,
            "sha256": self.sha256,
        }

    def vectors(self, crops: Array) -> Array:
        """Return (N, length) unit rows of crops (N, *crop_shape). With own features, the row of a blank crop is shorter."""
        check_crops(crops, self.crop_shape)
        if len(crops) == 0:
            return np.zeros((0, self.length), np.float32)
        return stacked(self.embed(crops), crops, self.own, self.share)

    def embed(self, crops: Array) -> Array:
        """Return (N, d), the network's own vectors of crops (N, *crop_shape), not scaled. N is at least 1."""
        run = _runner(self.model)

        def embedding(crop: Array) -> Array:
            channels = (np.float32(self._ordered(crop)) - np.float32(self.mean)) * np.float32(self.scale)
            return run(np.broadcast_to(channels, (1, 3, SIDE, SIDE)))[0]

        return embeddings(crops, embedding, self.known)

    @property
    def known(self) -> dict[bytes, Array]:
        """The network's own vectors of crops that it has seen, by the digest of the crop."""
        return _cache(self.sha256, self.mean, self.scale, self.channels)

    def _ordered(self, crop: Array) -> Array:
        """Return the channels (3, H, W) of a crop in the network's order, or the only one (H, W)."""
        return np.moveaxis(crop[..., ::-1] if self.channels == "rgb" else crop, -1, 0) if self.colour else crop


def embeddings(crops: Array, embedding: Callable[[Array], Array], known: dict[bytes, Array]) -> Array:
    """Return embedding(crop) of each crop (N, d). What is in `known`, by the digest of the crop, is not computed again."""
    keys = [hashlib.sha256(crop.tobytes()).digest() for crop in crops]
    if len(known) + len(keys) > MAX_CACHED:
        known.clear()
    new = {key: crop for key, crop in zip(keys, crops, strict=True) if key not in known}
    known.update(zip(new, in_threads(embedding, new.values()), strict=True))
    return np.stack([known[key] for key in keys])


def stacked(embedding: Array, crops: Array, own: FeatureSpec | None, share: float) -> Array:
    """Return the vectors (N, d) of a network at unit length, with our own features of the same crops, in grey, appended."""
    if own is None:
        return unit_rows(embedding)
    ours = np.concatenate([own.vectors(to_grey(crops[i : i + CHUNK])) for i in range(0, len(crops), CHUNK)])
    return np.hstack([np.float32(share) * unit_rows(embedding), np.float32(np.sqrt(1 - share**2)) * ours])


def checked(
    data: bytes, name: str = "The model", *, mean: float = 0.0, scale: float = 1.0, channels: Channels = "rgb"
) -> Network:
    """Return the network after a test run: it loads, and its vector of a face does not depend on other faces."""
    network = Network(model=data, mean=mean, scale=scale, channels=channels)
    faces = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE)).astype(np.float32)

    def unusable(reason: str, hint: str) -> UsageError:
        return UsageError(f"{name} cannot be used as features: {reason}", hint)

    try:
        run = _runner(data)
        alone, together = [run(face[None])[0] for face in faces], run(faces)
    except (KitError, KitUnsafeError, UsageError) as error:
        raise unusable(error.message, error.hint) from None
    except Exception as error:  # the runtime's errors have no common base
        reason = str(error).splitlines()[0][:200]
        raise unusable(f"it fails on two faces at once ({reason}).", "Export it with a free first dimension.") from None
    if together.ndim != 2 or len(together) != 2 or min(together.shape) < 2 or not np.isfinite(together).all():
        raise unusable(
            f"for two faces it returns shape {together.shape}, not two vectors.",
            "Use a model whose only output is the embedding, N x d.",
        )
    if not np.allclose(unit_rows(together), unit_rows(np.stack(alone)), atol=1e-4):
        raise unusable("its vector of a face depends on the other faces of the batch.", "Export it for inference.")
    return network


@lru_cache(maxsize=2)
def _runner(model: bytes) -> Callable[[Array], Array]:
    """Return a function: channels (N, 3, 112, 112) float32 -> embedding (N, d). Not in Network, which is pickled."""
    run = load_session(prepared(model).SerializeToString(deterministic=True), "the network")
    return lambda channels: run.run([EMBEDDING], {CHANNELS: channels})[0]


@lru_cache(maxsize=2)
def _cache(sha256: str, mean: float, scale: float, channels: Channels) -> dict[bytes, Array]:
    """Return the vectors of a network, by the digest of the crop."""
    return {}


@lru_cache(maxsize=2)
def prepared(model: bytes) -> Any:
    """Return the network as the exported graph includes it (onnx.ModelProto).

    It has a free batch size, opset 13 to 17, constants as initializers, nothing unused, and names with our prefix.
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
    fits = len(shapes) == 1 and re.fullmatch(rf"\w+x(3|free)x({SIDE}|free)x({SIDE}|free)", shapes[0])
    if not fits or len(graph.output) != 1:
        raise UsageError(
            f"its input is {' and '.join(shapes)}, and it has {len(graph.output)} output(s).",
            f"Use a model with one input, Nx3x{SIDE}x{SIDE}, and one vector as output.",
        )
    names = {inputs[0].name: CHANNELS, graph.output[0].name: EMBEDDING, "": ""}

    def renamed(listed: Any) -> list[str]:
        return [names.setdefault(name, f"{PREFIX}{len(names)}") for name in listed]

    nodes = [
        onnx.NodeProto(
            op_type=node.op_type,
            domain=node.domain,
            name=f"{PREFIX}node.{number}",
            input=renamed(node.input),
            output=renamed(node.output),
            attribute=node.attribute,
        )
        for number, node in enumerate(graph.node)
    ]
    used = {name for node in graph.node for name in node.input}
    initializers = [tensor for name, tensor in weights.items() if name in used]
    for tensor in initializers:
        tensor.name = names[tensor.name]
    built_graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(CHANNELS, TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, None)],
        initializers,
    )
    built_model = helper.make_model(built_graph, opset_imports=[helper.make_opsetid("", opset)])
    built_model.ir_version = onnx_guard.MAX_IR_VERSION
    operators = onnx_guard.RECOGNIZER_OPERATORS | onnx_guard.NETWORK_OPERATORS
    onnx_guard.check(built_model.SerializeToString(deterministic=True), operators, "it")
    return built_model


def _simplify(graph: Any) -> None:
    """Remove nodes without effect, and turn constants into initializers."""
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
    for output in graph.output:
        output.name = same.get(output.name, output.name)
    del graph.value_info[:]  # it describes a batch of one face, and names that no longer exist
