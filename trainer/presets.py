"""Named sets of parameters for `trainer fit`. An option or a --config file overrides single values."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # Robust to what covers a face: the default.
    "door": {
        "features": "both",
        "coding": "l1",
        "atoms_per_class": 5,
        "lam": 25.0,
        "alpha": 0.5,
        "gamma": 0.05,
        "eta": 1e-2,
        "locality": "exp",
        "schedule": "fast",
        "classifier_codes": "coder",
    },
}
# Nearly as accurate, and some twenty times quicker on the device.
PRESETS["light"] = PRESETS["door"] | {"coding": "l21"}
# The method as published.
PRESETS["paper"] = PRESETS["door"] | {
    "features": "pixels",
    "eta": 1e-3,
    "schedule": "paper",
    "classifier_codes": "training",
}
DEFAULT = "door"
