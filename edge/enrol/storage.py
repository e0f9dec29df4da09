"""A person's photos on disk: captured (edge/enrol/session.py), compared with those of other people, and written.

Nothing is written before all photos are taken. Then all of them are written, or none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera
from edge.camera.photo import SUFFIXES, read_colour
from edge.enrol.session import ADVICE, SIMILARITY, Captured, CaptureSettings, Identify, Photo, capture
from edge.errors import DetectorMissingError, GalleryError, KitError, KitUnsafeError, TooFewPhotosError, UsageError
from edge.files import write_atomically
from edge.kit import guard as onnx_guard
from edge.kit.format import Kit
from edge.kit.manifest import NO_ALIGNMENT
from edge.text import printable, same_spelling
from edge.vision.detect import MIN_FACE, Face, FaceDetector, YuNetDetector, load_detector, photo_min_face
from edge.vision.preprocess import SIZE, align, features
from edge.vision.recognize import Recognizer

MAX_NAME = 100
MAX_DETECTOR_BYTES = 16 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Enrolment:
    """A person whose photos were written."""

    name: str
    files: tuple[Path, ...]
    captured: Captured

    def facts(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "name": self.name,
            "photos": [str(file) for file in self.files],
            "poses": [photo.pose for photo in self.captured.photos],
            "frames": self.captured.frames,
            "rejected": dict(self.captured.rejected),
            "alike": dict(self.captured.alike),
        }

    def messages(self) -> list[str]:
        """The result in sentences."""
        poses = ", ".join(photo.pose for photo in self.captured.photos)
        return [
            f"{len(self.files)} photos of {self.name} are in {self.files[0].parent}: {poses}.",
            *(
                f"warning: in {frames} frames the face looked like {printable(other)}. Check that it is not the same person."
                for other, frames in self.captured.alike.items()
            ),
        ]


def enrol(
    name: str,
    camera: Camera,
    detector: FaceDetector,
    output: Path,
    *,
    when: datetime,
    settings: CaptureSettings | None = None,
    identify: Identify | None = None,
    allow_alike: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Enrolment:
    """Photograph a person and write the photos to output/name. `when` names the files.

    Unless `allow_alike` is true, a person who looks like another one is rejected: `identify` gives the label of a face by a
    kit, and the photos of other people in `output` are compared.
    """
    name, settings = check_name(name), settings or CaptureSettings()
    folder = output / name
    _check_writable(folder)
    own_photos, other_people = _read_features(output, name, detector, with_others=not allow_alike)
    captured = capture(
        camera,
        detector,
        settings,
        name=name,
        identify=None if allow_alike else identify,
        own_photos=own_photos,
        other_people=other_people,
        say=say,
    )
    if len(captured.photos) < settings.min_photos:
        raise _too_few_photos(captured, settings.min_photos)
    return Enrolment(name=name, files=write(folder, captured.photos, when), captured=captured)


def _too_few_photos(captured: Captured, needed: int) -> TooFewPhotosError:
    reasons = ", ".join(f"{reason} {number}" for reason, number in captured.rejected.items())
    most_frequent = next((reason for reason in captured.rejected if reason in ADVICE), "")
    return TooFewPhotosError(
        f"Only {len(captured.photos)} of {needed} photos could be taken from {captured.frames} frames. Rejected frames: "
        f"{reasons or 'none'}.",
        ADVICE.get(most_frequent, "Show the face for longer, from several sides."),
    )


def check_name(name: str) -> str:
    """Return the name in NFC spelling. UsageError if it is not safe as a folder name and on a terminal."""
    name = same_spelling(name)
    faults = {
        "is empty": not name.strip(),
        f"is longer than {MAX_NAME} characters": len(name) > MAX_NAME or len(name.encode("utf-8", "replace")) > 255,
        "starts with a dot": name.startswith("."),
        "starts or ends with a space": name != name.strip(),
        "contains a slash": "/" in name or "\\" in name,
        # The joiners U+200C and U+200D are not printable, but some languages need them in names.
        "contains a control character": not name.replace("\u200c", "").replace("\u200d", "").isprintable(),
    }
    fault = next((fault for fault, holds in faults.items() if holds), None)
    if fault is not None:
        raise UsageError(f"The name {fault}.", "Use the person's name or number, such as anna.")
    return name


def identify_with(recognizer: Recognizer) -> Identify | None:
    """Return a function that recognises a face with a kit, or None if the kit was trained on cropped photos."""
    if recognizer.kit.manifest.alignment == NO_ALIGNMENT:
        return None

    def identify(grey: NDArray[np.uint8], face: Face) -> str | None:
        return recognizer.recognize_crops(recognizer.crop(grey, face)[None])[0].label

    return identify


def choose_detector(file: Path | None, kit: Kit | None, *, min_face: int = MIN_FACE) -> FaceDetector:
    """Load the detector in `file`, else that of the kit, else that of OpenCV."""
    write_one = "Write one on the workstation with `edge-export detector -o detector.onnx`."
    if file is None:
        try:
            return load_detector(None if kit is None else kit.detector, min_face=min_face)
        except DetectorMissingError:
            missing = "There is no kit" if kit is None else "The kit has no face detector"
            raise DetectorMissingError(
                f"{missing}, and this OpenCV has no face detector.", f"Pass --kit FILE or --detector FILE. {write_one}"
            ) from None
    try:
        with open(file, "rb") as opened:
            model = opened.read(MAX_DETECTOR_BYTES + 1)
    except OSError as error:
        raise DetectorMissingError(f"{file} cannot be read ({error.strerror}).", write_one) from None
    try:
        onnx_guard.check(model, onnx_guard.DETECTOR_OPERATORS, str(file))
        return YuNetDetector(model, min_face=min_face)
    except KitUnsafeError as error:
        raise KitUnsafeError(error.message, write_one) from None
    except KitError:
        raise DetectorMissingError(f"{file} is not a face detector that this version can run.", write_one) from None


def _read_features(
    output: Path, name: str, detector: FaceDetector, *, with_others: bool
) -> tuple[list[NDArray[np.float32]], dict[str, NDArray[np.float32]]]:
    """Return the features of the photos that `name` has, and those of other people (n, d) by label."""
    rows: dict[str, list[NDArray[np.float32]]] = {}
    for folder in _list_folder(output) if output.is_dir() else []:
        person = same_spelling(folder.name)
        if folder.name.startswith(".") or not folder.is_dir() or not (with_others or person == name):
            continue
        for file in _list_folder(folder):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith("."):
                rows.setdefault(person, []).extend(_photo_features(file, detector))
    stacked = {person: np.array(some, np.float32).reshape(-1, SIMILARITY.length) for person, some in rows.items()}
    return list(stacked.pop(name, ())), stacked


def _list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be opened ({error.strerror}).", "Check its permissions.") from None


def _photo_features(file: Path, detector: FaceDetector) -> list[NDArray[np.float32]]:
    try:
        image = read_colour(file)
    except GalleryError as error:
        log.warning("%s", error.message)
        return []
    faces = detector.detect(image, photo_min_face(image))[:1]
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    return [features(align(grey, face.landmarks, SIZE)[None], SIMILARITY)[0] for face in faces]


def _check_writable(folder: Path) -> None:
    """UsageError if photos cannot be written. Checked before the session starts."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"No photos can be written to {folder}.", "Choose another folder with --output.")


def write(folder: Path, photos: tuple[Photo, ...], when: datetime) -> tuple[Path, ...]:
    """Write all photos or none, as PNG files (lossless) that only the owner can read. Existing photos stay."""
    new_folders = [place for place in (folder, folder.parent) if not place.exists()]
    files: list[Path] = []
    number = 0
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in new_folders:
            place.chmod(0o700)  # `mode` does not apply to parents
        for photo in photos:
            number += 1
            while (file := folder / f"{when:%Y%m%d-%H%M%S}-{number:02}.png").exists():
                number += 1
            files.append(file)
            write_atomically(file, cv2.imencode(".png", photo.image)[1].tobytes())
    except BaseException as error:  # also Ctrl-C
        for file in files:
            file.unlink(missing_ok=True)
        for place in new_folders:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror}).", "Choose another --output.") from None
        raise
    return tuple(files)
