"""Face recognition for small devices: `Recognizer.load("door.kit").recognize(frame)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.camera.open import open_camera
    from edge.terminal.loop import Terminal
    from edge.vision.recognize import Recognition, Recognizer

__all__ = ["Recognition", "Recognizer", "Terminal", "open_camera"]
_HOMES = {
    "Recognition": "vision.recognize",
    "Recognizer": "vision.recognize",
    "Terminal": "terminal.loop",
    "open_camera": "camera.open",
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import edge` does not load OpenCV."""
    if name not in _HOMES:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    return getattr(import_module(f"edge.{_HOMES[name]}"), name)
