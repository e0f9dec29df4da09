"""Arguments and options that several `edge` commands share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from edge import paths
from edge.files import read_bytes
from edge.vision.recognize import Recognizer

_KIT_HELP = f"The kit (default: {paths.KIT_VARIABLE}, {', '.join(map(str, paths.KIT_SEARCH))})."
_SETTINGS_HELP = f"Settings file (default: {paths.SETTINGS_VARIABLE}, {paths.SETTINGS})."

KitArgument = Annotated[Path | None, typer.Argument(metavar="[KIT]", help=_KIT_HELP)]
KitOption = Annotated[Path | None, typer.Option("--kit", help=_KIT_HELP)]
SettingsArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help=_SETTINGS_HELP)]
SettingsOption = Annotated[Path | None, typer.Option(metavar="FILE", help=_SETTINGS_HELP)]
CAMERA = typer.Option(
    metavar="[SOURCE]",
    help="0, /dev/video0, picamera2:0, rtsp://..., http://..., a video file or a folder of images. Without a value: 0.",
)
PublicKeyOption = Annotated[Path | None, typer.Option(help="Accept only a kit that is signed with this key (PEM).")]
MIN_FACE_WIDTH = typer.Option(min=10, help="Smallest face to look for: its width in pixels.")
THREADS = typer.Option(min=1, help="Threads for detection and recognition.")
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def load_recognizer(kit: Path | None, public_key: Path | None, **settings: Any) -> Recognizer:
    """Load the kit that the options name, or the first one found."""
    key = None if public_key is None else read_bytes(public_key)
    return Recognizer.load(paths.find_kit(kit), public_key=key, **settings)
