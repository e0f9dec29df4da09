"""Parameters of `trainer fit`: named sets, and their TOML files. Options and --config override single values."""

import json
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from edge.errors import UsageError
from edge.files import read_bytes
from edge.vision.preprocess import KINDS

Preset = Literal["network", "tiny", "minimal", "paper"]
DEFAULT: Preset = "network"
ONE_SHARD = 200
"""More people are trained in shards (trainer.shards), because training one dictionary grows with the cube of their number."""
ETA = 3e-3
"""Ridge of the classifier (eta) in LCLRRDL, if neither a preset nor a user sets it."""
ETAS = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""The values of eta that tuning tries."""
NETWORK_ETAS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The same for the vectors of a network."""

# Parameters that differ from the defaults of LCLRRDL.
PRESETS: dict[str, dict[str, Any]] = {
    # For ordinary photographs: a network, LCLRRDL on its vector and on our own features, and the cosine, added up. eta and
    # the rest were chosen on the development halves of LFW and COMASK20 (docs/research/photographs.md).
    "network": {"features": "sface+both", "coding": "l21", "eta": 1.0, "experts": True, "covered": True},
    # Without a network, for controlled light: our own features, with parts of the face.
    "tiny": {"features": "both", "parts": (4, 2), "coding": "l21", "eta": 1e-3},
    # The whole face only: half the work on the device.
    "minimal": {"features": "both", "coding": "l21", "eta": 1e-2},
    # The method as published.
    "paper": {"features": "pixels", "eta": 1e-3, "schedule": "paper", "classifier_codes": "training", "doubt": False},
}


def default_preset(features: str | None) -> Preset:
    """Return the preset for these features, if the user names none."""
    return "tiny" if features in KINDS else DEFAULT


def to_toml(parameters: dict[str, Any], comment: str) -> str:
    """Return the text of a file that `trainer fit --config` reads."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
    return "\n".join(lines) + "\n"


def toml_key(name: str) -> str:
    """Return a name as a key of TOML, in quotes if it needs them."""
    return name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name)


def read_toml(path: Path, written_by: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML ({error}).", f"Write it with `{written_by}`.") from None


def from_toml(path: str | Path, known: Iterable[str]) -> dict[str, Any]:
    """Read parameters from a TOML file. A name that is not in `known` is an error."""
    parameters = read_toml(Path(path), "trainer tune -o")
    unknown = sorted(set(parameters) - set(known))
    if unknown:
        raise UsageError(f"{path} sets unknown parameters: {', '.join(unknown)}.", f"Known are {', '.join(sorted(known))}.")
    return parameters
