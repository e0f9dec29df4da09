"""Published networks: their input and licence, by the checksum of the file."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from trainer.features.network import Channels


@dataclass(frozen=True, kw_only=True)
class KnownNetwork:
    """What is known about a published file. `channels`, `mean` and `scale` are those of Network."""

    sha256: str
    channels: Channels
    mean: float
    scale: float
    license: str
    """Its name and licence, for kits that contain it."""
    commercial: bool
    """Whether the licence allows commercial use."""


KNOWN_NETWORKS: dict[str, KnownNetwork] = {
    entry["sha256"]: KnownNetwork(**entry)
    for entry in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")).values()
}
