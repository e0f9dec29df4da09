"""A person's photos on disk: captured (edge/enrol/session.py), compared with those of other people, and written.

Nothing is written before all photos are taken. Then all of them are written, or none.
"""

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera
from edge.camera.photo import SUFFIXES, read_photo
from edge.enrol.session import ADVICE, MIN_PHOTOS, PHOTOS, SIMILARITY, CaptureSession, Identify
from edge.errors import DetectorMissingError, GalleryError, KitError, KitUnsafeError, TooFewPhotosError, UsageError
from edge.files import opened_folder, remove_abandoned, write_atomically
from edge.kit import guard as onnx_guard
from edge.kit.format import Kit
from edge.kit.manifest import NO_ALIGNMENT
from edge.privileges import rights_over
from edge.text import printable, same_spelling
from edge.vision.detect import MIN_FACE, FaceDetector, YuNetDetector, photo_min_face
from edge.vision.preprocess import SIZE, align, features
from edge.vision.recognize import Recognizer

MAX_NAME = 100
MAX_DETECTOR_BYTES = 16 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, eq=False)
class Enrolment:
    """A person whose photos were written."""

    files: tuple[Path, ...]
    session: CaptureSession

    def facts(self) -> dict[str, Any]:
        """The result for JSON."""
        return {
            "name": self.session.name,
            "photos": [str(file) for file in self.files],
            "poses": [photo.pose for photo in self.session.photos],
            "frames": self.session.frames,
            "rejected": dict(self.session.rejected.most_common()),
            "alike": dict(self.session.alike.most_common()),
        }

    def messages(self) -> list[str]:
        """The result in sentences."""
        poses = ", ".join(photo.pose for photo in self.session.photos)
        return [
            f"{len(self.files)} photos of {self.session.name} are in {self.files[0].parent}: {poses}.",
            *(
                f"warning: in {frames} frames the face looked like {printable(other)}. Check that it is not the same person."
                for other, frames in self.session.alike.most_common()
            ),
        ]


def enrol(
    name: str,
    camera: Camera,
    detector: FaceDetector,
    output: Path,
    *,
    when: datetime,
    photos: int = PHOTOS,
    min_photos: int = MIN_PHOTOS,
    identify: Identify | None = None,
    allow_alike: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Enrolment:
    """Photograph a person and write the photos to output/name. `when` names the files.

    With fewer than `min_photos`, nothing is written. Unless `allow_alike` is true, a person who looks like another one is
    rejected: `identify` gives the label of a face by a kit, and the photos of other people in `output` are compared.
    """
    name = check_name(name)
    folder = output / name
    _refuse_link(folder)
    existing = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):  # checked before the session starts
        raise UsageError(f"No photos can be written to {folder}.", "Choose another folder with --output.")
    with rights_over(output):
        rows = _read_features(output, detector, only=name if allow_alike else None)
    session = CaptureSession(
        detector=detector,
        wanted=photos,
        name=name,
        identify=None if allow_alike else identify,
        own_photos=rows.pop(name, []),
        other_people=rows,
        say=say,
    )
    session.run(camera)
    if len(session.photos) < min_photos:
        reasons = [reason for reason, _ in session.rejected.most_common()]
        counts = ", ".join(f"{reason} {session.rejected[reason]}" for reason in reasons)
        raise TooFewPhotosError(
            f"Only {len(session.photos)} of {min_photos} photos could be taken from {session.frames} frames. Rejected frames: "
            f"{counts or 'none'}.",
            next((ADVICE[reason] for reason in reasons if reason in ADVICE), "Show the face for longer, from several sides."),
        )
    with rights_over(output):
        return Enrolment(files=write(folder, [photo.image for photo in session.photos], when), session=session)


def check_name(name: str) -> str:
    """Return the name in NFC spelling. UsageError if it is not safe as a folder name and on a terminal."""
    name = same_spelling(name)
    # The joiners U+200C and U+200D are not printable, but some languages need them in names.
    is_printable = re.sub("[\u200c\u200d]", "", name).isprintable()
    is_short = len(name) <= MAX_NAME and len(name.encode("utf-8", "replace")) <= 255
    if not (is_printable and is_short and re.fullmatch(r"(?![.\s])[^/\\]+(?<!\s)", name)):
        raise UsageError(
            f"The name is not valid: it has 1 to {MAX_NAME} printable characters and no slash, does not start with a dot, and "
            "has no space at its start or end.",
            "Use the person's name or number, such as anna.",
        )
    return name


def identify_with(recognizer: Recognizer) -> Identify | None:
    """Return a function that recognises a face with a kit, or None if the kit was trained on cropped photos."""
    if recognizer.kit.manifest.alignment == NO_ALIGNMENT:
        return None
    return lambda photo, face: recognizer.recognize_crops(recognizer.crop(photo, face)[None])[0].label


def choose_detector(file: Path | None, kit: Kit | None, *, min_face: int = MIN_FACE) -> FaceDetector:
    """Load the detector in `file`, else that of the kit."""
    write_one = "Write one on the workstation with `edge-export detector -o detector.onnx`."
    if file is None:
        if kit is None or kit.detector is None:
            missing = "There is no kit" if kit is None else "The kit has no face detector"
            hint = f"Build a kit with --detector yunet and pass --kit FILE, or pass --detector FILE. {write_one}"
            raise DetectorMissingError(f"{missing}, and --detector is not given.", hint)
        return YuNetDetector(kit.detector, min_face=min_face)
    try:
        with open(file, "rb") as opened:
            model = opened.read(MAX_DETECTOR_BYTES + 1)
        onnx_guard.check(model, onnx_guard.DETECTOR_OPERATORS, str(file))
        return YuNetDetector(model, min_face=min_face)
    except OSError as error:
        raise DetectorMissingError(f"{file} cannot be read ({error.strerror}).", write_one) from None
    except KitUnsafeError as error:
        raise KitUnsafeError(error.message, write_one) from None
    except KitError:
        raise DetectorMissingError(f"{file} is not a face detector that this version can run.", write_one) from None


def _read_features(output: Path, detector: FaceDetector, *, only: str | None) -> dict[str, list[NDArray[np.float32]]]:
    """Return the features of all photos in `output`, or only those of one person, by label."""
    rows: dict[str, list[NDArray[np.float32]]] = {}
    try:
        folders = sorted(folder for folder in output.iterdir() if folder.is_dir()) if output.is_dir() else []
        people = [folder for folder in folders if only in (None, same_spelling(folder.name))]
        files = [file for folder in people for file in sorted(folder.iterdir()) if file.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be opened ({error.strerror}).", "Check its permissions.") from None
    for file in files:
        if file.name.startswith(".") or file.parent.name.startswith("."):
            continue
        try:
            image = read_photo(file, colour=True)
        except GalleryError as error:
            log.warning("%s", error.message)
            continue
        grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        for face in detector.detect(image, photo_min_face(image))[:1]:
            vector = features(align(grey, face.landmarks, SIZE)[None], SIMILARITY)[0]
            rows.setdefault(same_spelling(file.parent.name), []).append(vector)
    return rows


def write(folder: Path, images: Sequence[NDArray[np.uint8]], when: datetime) -> tuple[Path, ...]:
    """Write all images or none, as PNG files (lossless) that only the owner can read. Existing photos stay.

    The folder of all people may be a symbolic link that the user made. The folder of the person may not: photos of a face
    would be written to an unknown place.
    """
    new_folders = [place for place in (folder, folder.parent) if not place.exists()]
    names = (f"{when:%Y%m%d-%H%M%S}-{number:02}.png" for number in itertools.count(1))
    files: list[str] = []
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened_folder(folder.parent) as people:
            with suppress(FileExistsError):
                os.mkdir(folder.name, 0o700, dir_fd=people)
            _refuse_link(folder)
            with opened_folder(folder.name, inside=people) as own:
                _write_images(own, names, images, files)
    except BaseException as error:  # also Ctrl-C
        for place in new_folders:
            if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
                place.rmdir()
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror}).", "Choose another --output.") from None
        raise
    return tuple(folder / name for name in files)


def _write_images(folder: int, names: Iterator[str], images: Sequence[NDArray[np.uint8]], files: list[str]) -> None:
    """Write images under names that are free to a folder given by its descriptor, and list them in `files`."""
    remove_abandoned(folder)
    existing = set(os.listdir(folder))
    try:
        for image in images:
            files.append(next(name for name in names if name not in existing))
            write_atomically(files[-1], cv2.imencode(".png", image)[1].tobytes(), folder=folder)
    except BaseException:
        for name in files:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
        raise


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise UsageError(f"{folder} is a symbolic link.", "Replace it by a folder, or choose another --output.")
