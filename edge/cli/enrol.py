"""`edge capture` photographs a person for training."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from edge import paths
from edge.camera.open import open_camera
from edge.cli import common as console
from edge.cli import options
from edge.enrol import storage
from edge.enrol.session import GAP_SECONDS, MIN_PHOTOS, PHOTOS
from edge.errors import KitError
from edge.vision.detect import MIN_FACE


def capture(
    name: Annotated[str, typer.Argument(help="Name of the person in front of the camera.")],
    camera: Annotated[str, options.CAMERA] = "0",
    output: Annotated[Path, typer.Option(help="Folder for the photos, with one folder per person.")] = Path("photos"),
    photos: Annotated[int, typer.Option(min=1, max=1000, help="How many photos to take.")] = PHOTOS,
    min_photos: Annotated[
        int, typer.Option("--min", min=1, help="Write nothing if there are fewer good photos.")
    ] = MIN_PHOTOS,
    kit: Annotated[
        Path | None, typer.Option(help="A kit, to find people who are enrolled already (default: the usual kit, if any).")
    ] = None,
    public_key: options.PublicKeyOption = None,
    detector: Annotated[Path | None, typer.Option(help="A face detector (.onnx), needed if there is no kit yet.")] = None,
    allow_alike: Annotated[
        bool, typer.Option("--allow-alike", help="Enrol a person who looks like another enrolled person.")
    ] = False,
    min_face: Annotated[int, options.MIN_FACE_WIDTH] = MIN_FACE,
) -> None:
    """Photograph a person for training. Keeps only good photos that differ. Prints one JSON object."""
    name = storage.check_name(name)
    recognizer = options.load_recognizer(kit, public_key) if _has_kit(kit) else None
    face_detector = storage.choose_detector(detector, None if recognizer is None else recognizer.kit, min_face=min_face)
    identify = None if recognizer is None else storage.identify_with(recognizer)
    with open_camera(camera, images_per_second=1 / GAP_SECONDS) as source:
        enrolment = storage.enrol(
            name,
            source,
            face_detector,
            output,
            when=datetime.now(),
            photos=photos,
            min_photos=min(min_photos, photos),
            identify=identify,
            allow_alike=allow_alike,
            say=console.say,
        )
    console.print_json(enrolment.facts())
    for message in enrolment.messages():
        console.say(message)


def _has_kit(given: Path | None) -> bool:
    try:
        paths.find_kit(given)
    except KitError:
        return False
    return True
