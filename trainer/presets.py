"""Parameters of `trainer fit`: named sets, and their TOML files. Options and --config override single values."""

import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from edge.errors import UsageError
from edge.files import read_bytes
from edge.vision.preprocess import KINDS

Preset = Literal["tiny", "minimal", "sface", "paper"]
DEFAULT: Preset = "tiny"
ETA = 3e-3
"""Ridge of the classifier (eta) in LCLRRDL, if neither a preset nor a user sets it."""
ETAS = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""The values of eta that tuning tries."""

# Parameters that differ from the defaults of LCLRRDL.
PRESETS: dict[str, dict[str, Any]] = {
    # Our own features, with parts of the face: robust to covered faces and to strangers.
    "tiny": {"features": "both", "parts": (4, 2), "coding": "l21", "eta": 1e-3},
    # The whole face only: half the work on the device.
    "minimal": {"features": "both", "coding": "l21", "eta": 1e-2},
    # A network and our own features: the most accurate, and at least ten times slower. eta was chosen on AR's training images;
    # a network alone (--features sface) needs 0.1.
    "sface": {"features": "sface+both", "coding": "l21", "eta": 3e-2},
    # The method as published.
    "paper": {"features": "pixels", "eta": 1e-3, "schedule": "paper", "classifier_codes": "training", "doubt": False},
}


def default_preset(features: str | None) -> Preset:
    """Return the preset for these features, if the user names none."""
    return DEFAULT if features is None or features in KINDS else "sface"


def to_toml(parameters: dict[str, Any], comment: str) -> str:
    """Return the text of a file that `trainer fit --config` reads."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
    return "\n".join(lines) + "\n"


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
