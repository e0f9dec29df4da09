"""Face recognition for small devices: `Recognizer.load("door.kit").recognize(frame)`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.camera.base import Camera, Frame
    from edge.camera.open import open_camera
    from edge.decision.doorlist import DoorList
    from edge.decision.visit import VisitRules
    from edge.errors import EdgeError
    from edge.events.event import Event
    from edge.events.sink import OutputClosed, Sink, SinkHealth
    from edge.events.view import Mark, View, Viewer
    from edge.events.worker import Worker
    from edge.terminal.loop import Terminal
    from edge.vision.recognize import Recognition, Recognizer

__all__ = [
    "Camera",
    "DoorList",
    "EdgeError",
    "Event",
    "Frame",
    "Mark",
    "OutputClosed",
    "Recognition",
    "Recognizer",
    "Sink",
    "SinkHealth",
    "Terminal",
    "View",
    "Viewer",
    "VisitRules",
    "Worker",
    "open_camera",
]
_MODULES = {
    "Camera": "camera.base",
    "DoorList": "decision.doorlist",
    "EdgeError": "errors",
    "Event": "events.event",
    "Frame": "camera.base",
    "Mark": "events.view",
    "OutputClosed": "events.sink",
    "Recognition": "vision.recognize",
    "Recognizer": "vision.recognize",
    "Sink": "events.sink",
    "SinkHealth": "events.sink",
    "Terminal": "terminal.loop",
    "View": "events.view",
    "Viewer": "events.view",
    "VisitRules": "decision.visit",
    "Worker": "events.worker",
    "open_camera": "camera.open",
}


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that `import edge` does not load OpenCV."""
    if name not in _MODULES:
        raise AttributeError(f"module 'edge' has no attribute {name!r}")
    return getattr(import_module(f"edge.{_MODULES[name]}"), name)
