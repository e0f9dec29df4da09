"""A person's photos in a gallery: taken at the terminal (edge/enrol/session.py), compared with those of others, and written.

Nothing is written before all photos are there, and then all of them are or none.
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
from edge.enrol.session import ADVICE, LIKENESS, Captured, CaptureSettings, Known, Photo, capture
from edge.errors import DetectorMissingError, GalleryError, KitError, KitUnsafeError, TooFewPhotosError, UsageError
from edge.files import write_atomically
from edge.kit import guard as onnx_guard
from edge.kit.format import Kit
from edge.kit.manifest import NO_ALIGNMENT
from edge.text import printable, same_spelling
from edge.vision import detect
from edge.vision.detect import Face, FaceDetector, photo_min_face
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
        """For JSON."""
        return {
            "name": self.name,
            "photos": [str(file) for file in self.files],
            "poses": [photo.pose for photo in self.captured.photos],
            "frames": self.captured.frames,
            "refused": dict(self.captured.refused),
            "alike": dict(self.captured.alike),
        }

    def account(self) -> list[str]:
        """In sentences, for people."""
        sentences = [
            f"{len(self.files)} photos of {self.name} are in {self.files[0].parent}: {', '.join(self.facts()['poses'])}."
        ]
        for other, looks in self.captured.alike.items():
            sentences.append(
                f"warning: in {looks} of the looks the face was like {printable(other)}'s. Is it the same person?"
            )
        return sentences


def enrol(
    name: str,
    camera: Camera,
    finder: FaceDetector,
    output: Path,
    *,
    when: datetime,
    settings: CaptureSettings | None = None,
    known: Known | None = None,
    allow_alike: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Enrolment:
    """Photograph a person and write the photos to output/name. `when` names the files.

    Refused is who looks like somebody else, to the kit behind `known` or beside the photos in `output`, unless `allow_alike`.
    """
    name, settings = checked_name(name), settings or CaptureSettings()
    folder = output / name
    _refuse_unwritable(folder)
    existing, others = _enrolled(output, name, finder, with_others=not allow_alike)
    captured = capture(
        camera,
        finder,
        settings,
        name=name,
        known=None if allow_alike else known,
        existing=existing,
        others=others,
        say=say,
    )
    if len(captured.photos) < settings.min_photos:
        raise _too_few(captured, settings.min_photos)
    return Enrolment(name=name, files=write(folder, captured.photos, when), captured=captured)


def _too_few(captured: Captured, needed: int) -> TooFewPhotosError:
    reasons = ", ".join(f"{reason} {number}" for reason, number in captured.refused.items())
    got = len(captured.photos)
    worst = next((reason for reason in captured.refused if reason in ADVICE), "")
    return TooFewPhotosError(
        f"Only {got} of the {needed} photos that are needed could be taken; of {captured.frames} frames were refused: "
        f"{reasons or 'none'}.",
        ADVICE.get(worst, "Show the face for longer, from several sides."),
    )


# Who is there, and what with.


def checked_name(name: str) -> str:
    """A name that is safe as the name of a folder and on a terminal, in the one spelling (NFC) that the trainer uses."""
    name = same_spelling(name)
    faults = {
        "is empty": not name.strip(),
        f"is longer than {MAX_NAME} characters": len(name) > MAX_NAME or len(name.encode("utf-8", "replace")) > 255,
        "begins with a dot": name.startswith("."),
        "begins or ends with a space": name != name.strip(),
        "holds a slash": "/" in name or "\\" in name,
        # The joiners U+200C and U+200D are invisible, too, but part of how names are written.
        "holds a control character": not name.replace("\u200c", "").replace("\u200d", "").isprintable(),
    }
    wrong = next((fault for fault, holds in faults.items() if holds), None)
    if wrong is not None:
        raise UsageError(f"The name {wrong}.", "Use the person's name or number, such as anna.")
    return name


def known_by(recognizer: Recognizer) -> Known | None:
    """Whom a kit takes a face for; None for a kit that knows cropped photos only."""
    if recognizer.kit.manifest.alignment == NO_ALIGNMENT:
        return None

    def known(grey: NDArray[np.uint8], face: Face) -> str | None:
        return recognizer.recognize_crops(recognizer.crop(grey, face)[None])[0].label

    return known


def find_with(file: Path | None, kit: Kit | None, *, min_face: int = detect.MIN_FACE) -> FaceDetector:
    """What finds the faces: the detector in `file`, else that of the kit, else what OpenCV has."""
    write_one = "Write one on the workstation with `edge-export detector -o detector.onnx`."
    if file is None:
        try:
            return detect.load_detector(None if kit is None else kit.detector, min_face=min_face)
        except DetectorMissingError:
            missing = "There is no kit" if kit is None else "The kit has no face detector"
            raise DetectorMissingError(
                f"{missing}, and this OpenCV brings no face detector.", f"Pass --kit FILE or --detector FILE. {write_one}"
            ) from None
    try:
        with open(file, "rb") as opened:
            model = opened.read(MAX_DETECTOR_BYTES + 1)
    except OSError as error:
        raise DetectorMissingError(f"{file} cannot be read ({error.strerror}).", write_one) from None
    try:
        onnx_guard.check(model, onnx_guard.DETECTOR_OPERATORS, str(file))
        return detect.YuNetDetector(model, min_face=min_face)
    except KitUnsafeError as error:
        raise KitUnsafeError(error.message, write_one) from None
    except KitError:
        raise DetectorMissingError(f"{file} is no face detector that this version can run.", write_one) from None


# Photos on disk.


def _enrolled(
    output: Path, name: str, finder: FaceDetector, *, with_others: bool
) -> tuple[NDArray[np.float32], dict[str, NDArray[np.float32]]]:
    """The likenesses of the photos that `name` has, and of those that other people have."""
    rows: dict[str, list[NDArray[np.float32]]] = {}
    for folder in _listed(output) if output.is_dir() else []:
        person = same_spelling(folder.name)
        if folder.name.startswith(".") or not folder.is_dir() or not (with_others or person == name):
            continue
        for file in _listed(folder):
            if file.suffix.lower() in SUFFIXES and not file.name.startswith("."):
                rows.setdefault(person, []).extend(_photo_likeness(file, finder))
    stacked = {person: np.array(some, np.float32).reshape(-1, LIKENESS.length) for person, some in rows.items()}
    return stacked.pop(name, np.zeros((0, LIKENESS.length), np.float32)), stacked


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be opened ({error.strerror}).", "Check its permissions.") from None


def _photo_likeness(file: Path, finder: FaceDetector) -> list[NDArray[np.float32]]:
    try:
        image = read_colour(file)
    except GalleryError as error:
        log.warning("%s", error.message)
        return []
    faces = finder.detect(image, photo_min_face(image))[:1]
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    return [features(align(grey, face.landmarks, SIZE)[None], LIKENESS)[0] for face in faces]


def _refuse_unwritable(folder: Path) -> None:
    """Before anybody poses."""
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise UsageError(f"No photos can be written to {folder}.", "Choose another place with --output.")


def write(folder: Path, photos: tuple[Photo, ...], when: datetime) -> tuple[Path, ...]:
    """Write all of the photos, or none: PNG, so nothing is lost, and for the owner alone. Photos that are there stay."""
    new = [place for place in (folder, folder.parent) if not place.exists()]
    files: list[Path] = []
    number = 0
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for place in new:
            place.chmod(0o700)  # `mode` is not for parents
        for photo in photos:
            number += 1
            while (file := folder / f"{when:%Y%m%d-%H%M%S}-{number:02}.png").exists():
                number += 1
            files.append(file)
            write_atomically(file, cv2.imencode(".png", photo.image)[1].tobytes())
    except BaseException as error:  # also Ctrl-C
        for file in files:
            file.unlink(missing_ok=True)
        for place in new:
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror}).", "Choose another --output.") from None
        raise
    return tuple(files)
