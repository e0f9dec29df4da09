"""An embedding network as features: the vector that a trained CNN computes from a face.

    crop (112,112,3) uint8, BGR  ->  channels in the network's order, (x - mean) * scale  ->  network  ->  unit vector
                                             our own features of the same crop in grey  ->  appended below it (optional)

Network and own features make different errors. trainer.method.experts adds up what both say about a face.

The network is an ONNX file that takes N x 3 x 112 x 112 and returns N x d, with operators that edge.kit.guard lists. Crops are
aligned as such networks expect. A network of an older model may take grey crops (112,112), as three equal
channels. The exporter puts the nodes of the network before the coder, in one graph.
"""

import hashlib
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
from trainer.features import prepare
from trainer.parallel import in_threads
from trainer.types import Array

SIDE = 112
KIND = "onnx"
Channels = Literal["grey", "rgb", "bgr"]
CHANNELS, EMBEDDING = "channels", "embedding"  # names of input and output in the prepared graph
PREFIX = "network."  # prefix of all other names in the prepared graph
MAX_CACHED = 50_000  # vectors: training uses the same crops many times, and a vector takes a thousand times as long as our own


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
        return embeddings(crops, self.embedding, self.known)

    def embedding(self, crop: Array) -> Array:
        """Return (d,), the network's own vector of one crop, computed now."""
        channels = (np.float32(self._ordered(crop)) - np.float32(self.mean)) * np.float32(self.scale)
        return _runner(self.model)(np.broadcast_to(channels, (1, 3, SIDE, SIDE)))[0]

    @property
    def known(self) -> dict[bytes, Array]:
        """The network's own vectors of crops that it has seen, by the digest of the crop."""
        return _cache(self.sha256, self.mean, self.scale, self.channels)

    @property
    def known_copies(self) -> dict[bytes, Array]:
        """The same of the altered copies of a crop, (k, d), by the digest of the crop itself."""
        return _cache(self.sha256, self.mean, self.scale, self.channels, copies=True)

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
    run = load_session(prepare.quick(prepared(model)).SerializeToString(deterministic=True), "the network")
    return lambda channels: run.run([EMBEDDING], {CHANNELS: channels})[0]


@lru_cache(maxsize=4)
def _cache(sha256: str, mean: float, scale: float, channels: Channels, copies: bool = False) -> dict[bytes, Array]:
    """Return the vectors of a network, by the digest of the crop: of the crop, or of its copies."""
    return {}


@lru_cache(maxsize=2)
def prepared(model: bytes) -> Any:
    """Return the network as the exported graph includes it (onnx.ModelProto)."""
    operators = onnx_guard.RECOGNIZER_OPERATORS | onnx_guard.NETWORK_OPERATORS
    return prepare.prepared(model, side=SIDE, names=(CHANNELS, EMBEDDING), prefix=PREFIX, operators=operators)
