"""Named sets of parameters for `trainer fit`. An option or a --config file overrides single values."""

from __future__ import annotations

from typing import Any

from edge.vision.preprocess import KINDS

PRESETS: dict[str, dict[str, Any]] = {
    # Robust to what covers a face, and to strangers: the default.
    "door": {
        "features": "both",
        "parts": (4, 2),
        "coding": "l21",
        "code_lam": None,
        "atoms_per_class": 5,
        "lam": 25.0,
        "alpha": 0.5,
        "gamma": 0.05,
        "eta": 1e-3,
        "locality": "exp",
        "schedule": "fast",
        "classifier_codes": "coder",
        "copies": 0,
        "doubt": True,
    },
}
# The whole face only: half of the work on the device.
PRESETS["light"] = PRESETS["door"] | {"parts": None, "eta": 1e-2}
# An embedding model and our own features together: the most accurate, and ten times slower or more. eta: chosen on AR's
# training images; a model alone, --features sface, wants 0.1.
PRESETS["sface"] = PRESETS["light"] | {"features": "sface+both", "eta": 3e-2}
# The method as published.
PRESETS["paper"] = PRESETS["light"] | {
    "features": "pixels",
    "coding": "l1",
    "eta": 1e-3,
    "schedule": "paper",
    "classifier_codes": "training",
    "doubt": False,
}
DEFAULT = "door"


def usual(features: str | None) -> str:
    """The preset for these features, where none is named."""
    return DEFAULT if features is None or features in KINDS else "sface"
