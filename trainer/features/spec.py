"""Features of a crop: the contract that our own features and embedding networks fulfil, and its text form."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from edge.errors import UsageError
from edge.files import read_bytes
from edge.vision.preprocess import KINDS, FeatureSpec
from trainer.downloads import SFACE
from trainer.features.network import KIND, SIDE, Network, checked
from trainer.types import Array, Say, silent


class Spec(Protocol):
    """Settings that compute feature vectors from crops: a FeatureSpec (our own features) or a Network."""

    @property
    def kind(self) -> str: ...
    @property
    def height(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def colour(self) -> bool: ...  # whether crops are BGR
    @property
    def crop_shape(self) -> tuple[int, ...]: ...  # (H, W), or (H, W, 3) in colour
    @property
    def length(self) -> int: ...  # entries of a vector
    @property
    def alignment(self) -> str: ...  # of the crops
    @property
    def own(self) -> FeatureSpec | None: ...  # our own features, at the end of the vector
    @property
    def network(self) -> Network | None: ...
    def settings(self) -> dict[str, Any]: ...  # plain values, for headers and manifests
    def vectors(self, crops: Array) -> Array: ...  # (N, length) unit rows of crops (N, *crop_shape)


def from_settings(settings: Mapping[str, Any], network: bytes | None) -> Spec:
    """Return the spec with these settings. `network` is the file of a network; its checksum must match."""
    if settings["kind"] != KIND:
        return FeatureSpec(**settings)
    if network is None or hashlib.sha256(network).hexdigest() != settings["sha256"]:
        raise ValueError("the network is not the one that the settings name")
    own = settings["beside"] and FeatureSpec(**settings["beside"])
    numbers = {name: settings[name] for name in ("mean", "scale", "share")}
    return Network(model=network, own=own, channels=settings.get("channels", "grey"), **numbers)


def parse_network(features: str, say: Say = silent) -> Network | None:
    """Return the network that --features names, or None if it names our own features (pixels, gradient, both).

    A network is `sface` or `onnx:FILE[,mean=M][,scale=S]`. With `+both` our own features are added to its vector.
    """
    if features in KINDS:
        return None
    name, plus, kind = features.rpartition("+")
    if plus and kind in KINDS:
        network = parse_network(name, say)
        if network is None:
            raise UsageError(f"Unknown features {features}.", "Write sface+both or onnx:FILE+both.")
        return replace(network, own=FeatureSpec.for_crop(SIDE, SIDE, kind))
    if features == "sface":
        return checked(SFACE.read(say))
    match = re.fullmatch(rf"{KIND}:(.+?)((?:,\w+=[^,]*)*)", features)
    if match is None:
        raise UsageError(f"Unknown features {features}.", f"Choose {', '.join(KINDS)}, sface, onnx:FILE or sface+both.")
    try:
        numbers: dict[str, Any] = {
            key: float(value) for key, _, value in (part.partition("=") for part in match[2].split(",")[1:])
        }
    except ValueError:
        numbers = {"": 0.0}
    if not numbers.keys() <= {"mean", "scale"} or len(numbers) != match[2].count(","):
        raise UsageError(f"Cannot read --features {features}.", "Write onnx:FILE,mean=127.5,scale=0.0078125.")
    return checked(read_bytes(match[1]), Path(match[1]).name, **numbers)
