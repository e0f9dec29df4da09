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
from trainer.features.known import KNOWN_NETWORKS
from trainer.features.network import KIND, SIDE, Network, checked
from trainer.types import Array, Say, silent

_EXAMPLE = "onnx:FILE,order=bgr,mean=127.5,scale=0.0078125"


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

    A network is `sface` or `onnx:FILE[,order=rgb|bgr][,mean=M][,scale=S]`. What is not given comes from the table of known
    networks. With `+both` our own features are added to its vector.
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
        return _network_of(SFACE.read(say), "SFace", {}, say)
    match = re.fullmatch(rf"{KIND}:(.+?)((?:,\w+=[^,]*)*)", features)
    if match is None:
        raise UsageError(f"Unknown features {features}.", f"Choose {', '.join(KINDS)}, sface, onnx:FILE or sface+both.")
    try:
        given = _given_input(match[2].split(",")[1:])
    except ValueError:
        raise UsageError(f"Cannot read --features {features}.", f"Write {_EXAMPLE}.") from None
    return _network_of(read_bytes(match[1]), Path(match[1]).name, given, say)


def _given_input(words: list[str]) -> dict[str, Any]:
    """Return the fields of Network that words like `order=bgr` and `mean=127.5` set."""
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name == "order" and value in ("rgb", "bgr"):
            given["channels"] = value
        elif name in ("mean", "scale"):
            given[name] = float(value)
    if len(given) != len(words):
        raise ValueError("unknown or repeated words")
    return given


def _network_of(data: bytes, name: str, given: dict[str, Any], say: Say) -> Network:
    """Return the network in a file, and report what is assumed about it and a licence that forbids commercial use."""
    known = KNOWN_NETWORKS.get(hashlib.sha256(data).hexdigest())
    usual = {} if known is None else {"channels": known.channels, "mean": known.mean, "scale": known.scale}
    network = checked(data, name, **(usual | given))
    if known is None and len(given) < 3:
        assumed = f"order={network.channels}, mean={network.mean:g}, scale={network.scale:g}"
        say(f"{name} is not a known network: {assumed} is assumed. Other values: --features {_EXAMPLE}.")
    if known is not None and not known.commercial:
        say(f"Warning: a kit with these features contains {known.license}.")
    return network
