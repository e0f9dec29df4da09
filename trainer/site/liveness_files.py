"""The liveness models of a site: liveness/*.onnx, the published files that a kit can contain."""

import re
from pathlib import Path

from edge.errors import EdgeError, UsageError
from edge.files import write_file
from edge.kit import guard
from edge.kit.manifest import MAX_LIVENESS_BYTES
from trainer.features.prepare import prepared
from trainer.site import trail
from trainer.site.folder import Site

FOLDER = "liveness"
MAX_FILES = 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,94}\.onnx")
"""Without a comma or =, which separate files and settings in `--liveness`."""
SETTINGS = re.compile(r"(?:[a-z]{1,10}=[a-z0-9.-]{1,20}(?:,|$)){0,6}(?<!,)")
"""What the makers of an unknown model say about its input, such as zoom=2.7,side=80."""
SIDE = 80  # of the crop, if the file leaves it free


def folder(site: Site) -> Path:
    return site.path / FOLDER


def names(site: Site) -> list[str]:
    """Return the file names of the liveness models of a site."""
    return sorted(path.name for path in folder(site).glob("*.onnx") if NAME.fullmatch(path.name) and path.is_file())


def add(site: Site, name: str, data: bytes, *, who: str) -> str:
    """Store a liveness model, and return its file name. A file that is no network for faces is refused."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", Path(name).name)
    if not NAME.fullmatch(name):
        raise UsageError(f"{name[:100]} is not a name of an ONNX file.", "Choose a file whose name ends in .onnx.")
    if len(data) > MAX_LIVENESS_BYTES:
        raise UsageError(f"The file is larger than {MAX_LIVENESS_BYTES >> 20} MB.", "Choose a smaller liveness model.")
    present = names(site)
    if len(present) >= MAX_FILES and name not in present:
        raise UsageError(f"A site has at most {MAX_FILES} liveness models.", f"Delete files in {folder(site)} first.")
    _check(name, data)
    folder(site).mkdir(mode=0o700, exist_ok=True)
    write_file(folder(site) / name, data)
    with site.database() as database:
        trail.record(database, who, "add liveness model", name)
    return name


def _check(name: str, data: bytes) -> None:
    """Raise UsageError unless this is a network that a kit may contain, with one picture as input."""
    try:
        prepared(data, side=_side(data), names=("picture", "scores"), prefix="", operators=guard.LIVENESS_OPERATORS)
    except EdgeError as error:
        raise UsageError(f"{name} cannot be used as a liveness model: {error.message}", error.hint) from None


def _side(data: bytes) -> int:
    """Return the width of the picture that the network expects."""
    import onnx  # slow to load

    try:
        graph = onnx.load_from_string(data).graph
        weights = {tensor.name for tensor in graph.initializer}
        shapes = [value.type.tensor_type.shape.dim for value in graph.input if value.name not in weights]
        sides = [shape[3].dim_value for shape in shapes if len(shape) == 4]
    except Exception:  # protobuf's own
        raise UsageError("it is not a readable ONNX file.", "Choose the file that its makers published.") from None
    return sides[0] if sides and sides[0] > 0 else SIDE
