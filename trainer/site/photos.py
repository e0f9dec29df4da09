"""The check of one photo: would a training use it, which face, and is it good enough to be advised?

What a training rejects is decided by the code of the training (trainer.data.gallery), on the same pixels. What is allowed but
advised against is decided by the limits of guided enrolment (edge.enrol.session.LIMITS).
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.photo import PhotoError, decode_bytes, to_8_bit
from edge.enrol.session import LIMITS, SIMILARITY
from edge.errors import EdgeError, UsageError
from edge.vision.detect import Face, FaceDetector, YuNetDetector, photo_min_face
from edge.vision.preprocess import SIZE, align, features
from edge.vision.quality import all_reasons, assess
from trainer.data import detector
from trainer.data.gallery import photo_digest, usable_face
from trainer.data.meant_face import meant_face
from trainer.features.network import SIDE, Network
from trainer.features.spec import parse_network
from trainer.types import Say, silent

VERSION = "2"
"""Of the check: after a change of this module, the photos are checked again."""
MAX_PHOTO = 32 << 20  # bytes of a photo that is added; those in the folders may have more
CROP_SIDE, CROP_MARGIN, CROP_QUALITY = 192, 1.7, 85  # pixels; sides of the crop in sides of the face's box; JPEG
VIEW_SIDE = 1024  # pixels of a photo that is shown whole
MARGINS = (2.0, 1.6, 1.3, 2.6)  # of a photo that is cut to one face, in sides of its box: the first that works
GREY = 128
AT_ONCE = threading.Semaphore(2)  # a decoded photo may have 200 MB
SEVERAL_FACES = "other faces beside the one that is used"

Box = tuple[float, float, float, float]
Vector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedPhoto:
    """What the check of a photo found."""

    file: str = ""
    """Name of the file in the person's folder, if it is there."""
    width: int = 0
    height: int = 0
    faces: tuple[Box, ...] = ()
    """The box of each face (left, top, right, bottom), in pixels of the upright photo."""
    meant: int | None = None
    """Index of the face that the photo is meant to show; None if there is none, or it is unclear."""
    problem: str | None = None
    """Why a training leaves the photo out; None if it does not."""
    warnings: tuple[str, ...] = ()
    """Why the photo is used, but advised against."""
    digest: str = ""
    """Of the decoded photo: equal for two files with the same pixels. Empty if it cannot be decoded."""
    crop: bytes = b""
    """JPEG of at most CROP_SIDE pixels: the meant face, else the whole photo. Empty if it cannot be decoded."""
    likeness: Vector | None = None
    """Features (SIMILARITY) of the aligned face, of unit length."""
    vector: Vector | None = None
    """The network's vector of the face, of unit length; None without a face or a network."""

    @property
    def usable(self) -> bool:
        return self.problem is None

    @property
    def from_left(self) -> tuple[int, ...]:
        """Indices of the faces from left to right: pages and commands number them so, from 1."""
        return tuple(sorted(range(len(self.faces)), key=lambda face: self.faces[face]))

    def numbered(self, number: int) -> int:
        """Return the index of the face with this number from the left."""
        if not 1 <= number <= len(self.faces):
            raise UsageError("The photo has no such face.", "The face on the left is number 1.")
        return self.from_left[number - 1]


@dataclass(frozen=True, kw_only=True)
class Checker:
    """What a check needs: the detector of training and kits, and a network if it can be had."""

    detector: FaceDetector
    network: Network | None

    def vector(self, image: NDArray[np.uint8], face: Face) -> Vector | None:
        """Return the network's vector of a face in a photo (BGR), or None without a network."""
        if self.network is None:
            return None
        crop = align(image, face.landmarks, (SIDE, SIDE), self.network.alignment)
        return np.asarray(self.network.vectors(crop[None])[0], np.float32)


_LOADING = threading.Lock()
_LOADED: list[Checker] = []


def checker(say: Say = silent) -> Checker:
    """Return the checker of this process. Without a connection and a stored copy of SFace, it has no network."""
    with _LOADING:  # once in a process: the network takes seconds
        if not _LOADED:
            found = YuNetDetector(detector.yunet(say))
            try:
                network = parse_network("sface", say)
            except EdgeError as error:
                say(f"{error.message} People who look alike are compared by coarse features.")
                network = None
            _LOADED.append(Checker(detector=found, network=network))
        return _LOADED[0]


def decoded(data: bytes) -> NDArray[np.uint8]:
    """Return a photo as BGR, upright. PhotoError if it cannot be used."""
    if not data:
        raise PhotoError("empty file")
    return to_8_bit(decode_bytes(data, colour=True))


def check(data: bytes, using: Checker) -> CheckedPhoto:
    """Check the content of a photo file."""
    with AT_ONCE:
        try:
            image = decoded(data)
        except PhotoError as error:
            return CheckedPhoto(problem=str(error))
        faces = using.detector.detect(image, photo_min_face(image))
        meant = meant_face(faces, image.shape[:2])
        found = CheckedPhoto(
            width=image.shape[1],
            height=image.shape[0],
            faces=tuple(face.box_xyxy for face in faces),
            meant=None if meant is None else next(i for i, face in enumerate(faces) if face is meant),
            digest=photo_digest(image).hex(),
            crop=_crop(image, meant),
        )
        try:
            face = usable_face(faces, image)
        except PhotoError as error:
            return replace(found, problem=str(error))
        grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        aligned = align(grey, face.landmarks, SIZE)
        doubts = (*all_reasons(assess(grey, face, LIMITS, aligned), LIMITS), *([SEVERAL_FACES] if len(faces) > 1 else []))
        return replace(
            found,
            warnings=doubts,
            likeness=features(aligned[None], SIMILARITY)[0].astype(np.float32),
            vector=using.vector(image, face),
        )


def _crop(image: NDArray[np.uint8], face: Face | None) -> bytes:
    """Return the JPEG of a face with a margin, or of the whole photo."""
    if face is not None:
        left, top, right, bottom = face.box_xyxy
        half = CROP_MARGIN * max(right - left, bottom - top) / 2
        cut = _cut(
            image, ((left + right) / 2 - half, (top + bottom) / 2 - half, (left + right) / 2 + half, (top + bottom) / 2 + half)
        )
        image = image[cut] if image[cut].size else image
    return _jpeg(image, CROP_SIDE)


def _jpeg(image: NDArray[np.uint8], side: int) -> bytes:
    scale = min(1.0, side / max(image.shape[:2]))
    size = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", small, (cv2.IMWRITE_JPEG_QUALITY, CROP_QUALITY))[1].tobytes()


def _cut(image: NDArray[np.uint8], box: Sequence[float] | NDArray[Any]) -> tuple[slice, slice]:
    """Return the part of an image inside a box."""
    (left, top), (right, bottom) = np.clip(np.rint(np.reshape(box, (2, 2))), 0, image.shape[1::-1]).astype(int)
    return slice(top, bottom), slice(left, right)


def cut_to_face(data: bytes, chosen: int, using: Checker) -> bytes:
    """Return a PNG of one face of a photo, with the other faces painted grey, so that a training uses this face.

    `chosen` is an index into CheckedPhoto.faces. UsageError if no part of the photo shows only this face.
    """
    with AT_ONCE:
        try:
            image = decoded(data)
        except PhotoError as error:
            raise UsageError(f"The photo cannot be used: {error}.", "Choose another photo.") from None
        faces = using.detector.detect(image, photo_min_face(image))
        if not 0 <= chosen < len(faces):
            raise UsageError("The photo has no such face.", "Load the page again.")
        box = np.array(faces[chosen].box_xyxy)
        own = _cut(image, box)
        painted = image.copy()
        for other in (face for i, face in enumerate(faces) if i != chosen):
            rows, columns = _cut(image, _enlarged(np.array(other.box_xyxy), 1.2))
            painted[rows, columns] = GREY
        painted[own] = image[own]
        for margin in MARGINS:
            around = _enlarged(box, margin)
            part = np.ascontiguousarray(painted[_cut(image, around)])
            if part.size and _shows(part, box - np.tile(np.maximum(np.rint(around[:2]), 0), 2), using.detector):
                return cv2.imencode(".png", part)[1].tobytes()
    raise UsageError("No part of the photo shows only this face.", "Use another photo of this person.")


def _enlarged(box: NDArray[Any], factor: float) -> NDArray[Any]:
    middle: NDArray[Any] = np.tile(box.reshape(2, 2).mean(axis=0), 2)
    return np.asarray(middle + (box - middle) * factor)


def _shows(part: NDArray[np.uint8], box: NDArray[Any], finder: FaceDetector) -> bool:
    """Whether a training would use the face at this box."""
    try:
        face = usable_face(finder.detect(part, photo_min_face(part)), part)
    except PhotoError:
        return False
    middle = np.reshape(face.box_xyxy, (2, 2)).mean(axis=0)
    return bool((middle > box[:2]).all() and (middle < box[2:]).all())


def view(data: bytes, side: int = VIEW_SIDE, part: Box | None = None) -> bytes:
    """Return a photo, or the part inside a box, as JPEG of at most `side` pixels. PhotoError if it cannot be decoded."""
    with AT_ONCE:
        image = decoded(data)
        if part is not None:
            image = image[_cut(image, _enlarged(np.array(part), CROP_MARGIN))]
        return _jpeg(image, side)
