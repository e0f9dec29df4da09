"""Turn a trained model into a kit: `build_kit(Model.load("door.npz")).kit` are the bytes of the file."""

from export.build import BuiltKit, build_graph, build_kit
from export.verify import Parity, verify_kit

__all__ = ["BuiltKit", "Parity", "build_graph", "build_kit", "verify_kit"]
