"""Turn a trained model into a kit: `build_kit(Model.load("door.npz")).kit` are the bytes of the file."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from export.build import BuiltKit, build_graph, build_kit
    from export.verify import Parity, verify_kit

__all__ = ["BuiltKit", "Parity", "build_graph", "build_kit", "verify_kit"]
_MODULES = {"BuiltKit": "build", "Parity": "verify", "build_graph": "build", "build_kit": "build", "verify_kit": "verify"}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import export` loads no other package."""
    if name not in _MODULES:
        raise AttributeError(f"module 'export' has no attribute {name!r}")
    return getattr(import_module(f"export.{_MODULES[name]}"), name)
