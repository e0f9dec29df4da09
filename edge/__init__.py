"""Face recognition for small devices: `Recognizer.load("door.kit").recognize(frame)`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.camera.base import Camera, Frame
    from edge.camera.sources import open_camera
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
    "edge.camera.base": ("Camera", "Frame"),
    "edge.camera.sources": ("open_camera",),
    "edge.decision.doorlist": ("DoorList",),
    "edge.decision.visit": ("VisitRules",),
    "edge.errors": ("EdgeError",),
    "edge.events.event": ("Event",),
    "edge.events.sink": ("OutputClosed", "Sink", "SinkHealth"),
    "edge.events.view": ("Mark", "View", "Viewer"),
    "edge.events.worker": ("Worker",),
    "edge.terminal.loop": ("Terminal",),
    "edge.vision.recognize": ("Recognition", "Recognizer"),
}


def __getattr__(name: str) -> Any:
    """Load a public name on first use, so that `import edge` does not load OpenCV."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'edge' has no attribute {name!r}")
