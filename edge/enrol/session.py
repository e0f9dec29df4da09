"""Guided enrolment: take photos of one person in front of a camera for the trainer.

    frame  ->  its only face, cut out with a margin  ->  checked as in the trainer  ->  good, new, this person  ->  photo

The image that is checked is the image that is written, detected and aligned by the same code as in the trainer.
edge/enrol/storage.py writes the photos.

Similarity is the cosine of coarse features. The limits were chosen on ORL (40 people, 10 photos each). Above DUPLICATE are
95 % of slightly moved, noisy copies of a photo, and 10 % of the pairs of photos of one person. No pair of photos of two people
(of 78,000) is above SAME_PERSON.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, Frame
from edge.errors import AlreadyEnrolledError, ParameterError
from edge.text import printable, same_spelling
from edge.vision import quality as face_quality
from edge.vision.detect import Face, FaceDetector, photo_min_face
from edge.vision.preprocess import SIZE, FeatureSpec, align, features
from edge.vision.quality import Quality, QualityLimits, assess

WAIT_SECONDS = 0.25  # for a frame, before the time is checked again
MARGIN = 2.0  # sides of a photo, in sides of the face's box
UNCLEAR = 0.08  # in eye distances: landmarks that differ more than this between two detections are unreliable
DUPLICATE, SAME_PERSON = 0.975, 0.96
SIMILARITY = FeatureSpec(height=SIZE[0], width=SIZE[1], cell=4, gradient_cell=8, blur=1.0)
ANY = (-math.inf, math.inf)

ADVICE = {
    "no frame": "No image from the camera.",
    "no face": "No face found: look at the camera.",
    "several faces": "One person at a time, please.",
    face_quality.CUT_OFF: "Move to the middle of the image.",
    face_quality.TOO_SMALL: "Come closer.",
    face_quality.TURNED_AWAY: "Turn your head a little less.",
    face_quality.TOO_DARK: "More light on the face, please.",
    face_quality.TOO_BRIGHT: "Less light on the face, please.",
    face_quality.LOW_CONTRAST: "The image is too pale: clean the lens, or change the light.",
    face_quality.BLURRED: "Hold still.",
    "unclear": "Hold still, with the whole face visible.",
    "duplicate": "This looks like an earlier photo: move your head a little.",
}
"""Advice for the person, by the reason why frames are rejected."""

Identify = Callable[[NDArray[np.uint8], Face], str | None]
"""Returns the label of a face in a grey photo, or None if it is not recognised."""


@dataclass(frozen=True, kw_only=True)
class Pose:
    """A pose to ask for. Angles are relative to the person's own straight look."""

    name: str
    request: str
    yaw: tuple[float, float] = ANY
    """From, to in degrees, as in edge.vision.quality: the person's left is above 0."""
    pitch: tuple[float, float] = ANY
    """From, to in degrees: down is above 0."""
    settle_seconds: float = 1.0
    """Time to take the pose, before the first frame counts."""

    def fits(self, quality: Quality, straight: tuple[float, float] = (0.0, 0.0)) -> bool:
        yaw, pitch = quality.yaw - straight[0], quality.pitch - straight[1]
        return self.yaw[0] <= yaw <= self.yaw[1] and self.pitch[0] <= pitch <= self.pitch[1]


POSES = (
    Pose(name="straight", request="look straight at the camera", yaw=(-10, 10), pitch=(-12, 12)),
    Pose(name="left", request="turn your head a little to your left", yaw=(10, math.inf)),
    Pose(name="right", request="turn your head a little to your right", yaw=(-math.inf, -10)),
    Pose(name="up", request="lift your chin a little", pitch=(-math.inf, -5)),
    Pose(name="down", request="lower your chin a little", pitch=(5, math.inf)),
    Pose(
        name="glasses", request="if you wear glasses, put them on or take them off; if not, tilt your head", settle_seconds=4
    ),
    Pose(name="smile", request="smile, or say something"),
    Pose(name="distance", request="step back a little, or come closer", settle_seconds=2),
)


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """Settings of a capture session."""

    photos: int = 8
    """Photos to take."""
    min_photos: int = 3
    """With fewer photos, nothing is written."""
    gap_seconds: float = 0.4
    """Minimum time between two photos."""
    pose_seconds: float = 15.0
    """Time for a pose. After it, the session continues with a photo in another pose, or without."""
    advice_seconds: float = 2.0
    """Minimum time between two pieces of advice."""
    votes: int = 3
    """The person is rejected if this many frames, and half of all frames, show another enrolled person."""
    limits: QualityLimits = field(
        # Stricter than at the door: the whole face, and at least as many pixels as the aligned crop.
        default_factory=lambda: QualityLimits(min_size=27, min_sharpness=0.16, min_brightness=60, max_outside=0.1)
    )
    """Quality limits of a face."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_photos <= self.photos <= 1000:
            raise ParameterError("photos must be 1 to 1000, and not fewer than min_photos")
        if min(self.gap_seconds, self.pose_seconds, self.advice_seconds) < 0 or self.votes < 1:
            raise ParameterError("times must be 0 or more, votes 1 or more")


@dataclass(frozen=True, kw_only=True, eq=False)
class Photo:
    """One photo of the person."""

    image: NDArray[np.uint8]
    """(H, W, 3), BGR: the face and its surroundings."""
    features: NDArray[np.float32]
    """Features (SIMILARITY) of its aligned crop, of unit length."""
    quality: Quality
    captured: float
    """Seconds of the camera's clock."""
    pose: str
    """The name of one of POSES."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured:
    """The result of a capture session."""

    photos: tuple[Photo, ...]
    frames: int
    """Frames examined."""
    rejected: Mapping[str, int]
    """Rejected frames by reason."""
    alike: Mapping[str, int]
    """Frames that showed another enrolled person, by label: too few to reject the person."""


def capture(
    camera: Camera,
    detector: FaceDetector,
    settings: CaptureSettings | None = None,
    *,
    name: str = "",
    identify: Identify | None = None,
    own_photos: Sequence[NDArray[np.float32]] = (),
    other_people: Mapping[str, NDArray[np.float32]] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Captured:
    """Take photos until there are enough, or the recording ends, or the time is over.

    In front of a live camera the person is guided from pose to pose. From a recording, the first photos that differ are taken.
    `own_photos` are the features of photos that `name` has already, `other_people` those of other people (n, d) by label.
    """
    session = _Session(
        detector, settings or CaptureSettings(), name, identify, list(own_photos), other_people or {}, say, camera.live
    )
    session.request_photo(camera.now())
    while not session.done and not camera.ended:
        frame = camera.frame(WAIT_SECONDS)
        if frame is not None:
            session.process(frame)
        elif camera.live:
            session.reject("no frame", camera.now())
    return Captured(
        photos=tuple(session.photos),
        frames=session.frames,
        rejected=dict(session.rejected.most_common()),
        alike=dict(session.votes.most_common()),
    )


@dataclass
class _Session:
    """The state of a capture session. All times are capture times of frames."""

    detector: FaceDetector
    settings: CaptureSettings
    name: str
    identify: Identify | None
    own_photos: list[NDArray[np.float32]]
    other_people: Mapping[str, NDArray[np.float32]]
    say: Callable[[str], None]
    guided: bool
    photos: list[Photo] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    recently_rejected: Counter[str] = field(default_factory=Counter)
    votes: Counter[str] = field(default_factory=Counter)
    frames: int = 0
    voted: int = 0
    requested: int = 0
    straight: tuple[float, float] = (0.0, 0.0)
    requested_at: float = -math.inf
    advised_at: float = -math.inf
    voted_at: float = -math.inf
    spare: Photo | None = None
    """Good and new, but not in the requested pose."""

    @property
    def done(self) -> bool:
        return self.requested > self.settings.photos if self.guided else len(self.photos) == self.settings.photos

    @property
    def pose(self) -> Pose:
        return POSES[(self.requested - 1) % len(POSES)]

    def request_photo(self, now: float) -> None:
        """Ask for the next photo."""
        self.requested, self.requested_at, self.advised_at, self.spare = self.requested + 1, now, now, None
        self.recently_rejected.clear()
        if self.guided and not self.done:
            self.say(f"Photo {self.requested} of {self.settings.photos}: {self.pose.request}.")

    def process(self, frame: Frame) -> None:
        """Take a photo from the frame, or reject the frame."""
        now = frame.captured
        if self.guided and now < self.requested_at + self.pose.settle_seconds:
            return
        if self.photos and now < self.photos[-1].captured + self.settings.gap_seconds - 1e-6:
            return
        self.frames += 1
        found = _find_photo(frame, self.detector, self.settings.limits)
        if isinstance(found, str):
            return self.reject(found, now)
        photo, grey, face = found
        self._vote(photo, grey, face)
        if _max_similarity(photo, self.own_photos) > DUPLICATE:
            return self.reject("duplicate", now)
        if self.guided and not self.pose.fits(photo.quality, self.straight):
            self.spare = photo
            return self.reject("pose", now)
        self._keep(photo, self.pose.name if self.guided else photo.pose)
        self.request_photo(now)

    def reject(self, reason: str, now: float) -> None:
        """Count the frame, give advice from time to time, and go to the next pose when the time for this one is over."""
        self.rejected[reason] += 1
        if not self.guided:
            return
        self.recently_rejected[reason] += 1
        if now >= self.requested_at + self.settings.pose_seconds:
            if self.spare is not None:
                self._keep(self.spare, self.spare.pose)
            self.request_photo(now)
        elif now >= self.advised_at + self.settings.advice_seconds:
            (most_frequent, _), *_ = self.recently_rejected.most_common(1)
            self.say(ADVICE.get(most_frequent) or f"Please {self.pose.request}.")
            self.recently_rejected.clear()
            self.advised_at = now

    def _keep(self, photo: Photo, pose: str) -> None:
        if pose == "straight" and not self.photos:
            self.straight = (photo.quality.yaw, photo.quality.pitch)
        self.photos.append(replace(photo, pose=pose))
        self.own_photos.append(photo.features)

    def _vote(self, photo: Photo, grey: NDArray[np.uint8], face: Face) -> None:
        """AlreadyEnrolledError if several frames, some time apart, show another enrolled person."""
        if photo.captured < self.voted_at + self.settings.gap_seconds - 1e-6:
            return
        self.voted_at = photo.captured
        self.voted += 1
        labels = {label for label, rows in self.other_people.items() if _max_similarity(photo, rows) > SAME_PERSON}
        if self.identify is not None and (label := self.identify(grey, face)) is not None:
            labels.add(same_spelling(label))
        self.votes.update(labels - {self.name})
        for label, votes in self.votes.items():
            if votes >= self.settings.votes and 2 * votes >= self.voted:
                raise AlreadyEnrolledError(
                    f"This face is already enrolled as {printable(label)}.",
                    "Enrol each person under one name. For two people who look alike, pass --allow-alike.",
                )


def _find_photo(frame: Frame, detector: FaceDetector, limits: QualityLimits) -> tuple[Photo, NDArray[np.uint8], Face] | str:
    """Return the photo of the only face in a frame, the same in grey, and its face; or the reason why there is none."""
    faces = detector.detect(frame.image)
    if len(faces) != 1:
        return "several faces" if faces else "no face"
    image, corner = cut_out(frame.image, faces[0])
    again = detector.detect(image, photo_min_face(image))  # as the trainer will
    if len(again) != 1:
        return "several faces" if again else "unclear"
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    crop = align(grey, again[0].landmarks, SIZE)
    quality = assess(grey, again[0], limits, crop)
    if quality.reason is not None:
        return quality.reason
    if np.abs(again[0].landmarks + corner - faces[0].landmarks).mean() > UNCLEAR * quality.size:
        return "unclear"
    pose = next((pose.name for pose in POSES if pose.fits(quality)), POSES[0].name)
    vector = features(crop[None], SIMILARITY)[0]
    return Photo(image=image, features=vector, quality=quality, captured=frame.captured, pose=pose), grey, again[0]


def cut_out(image: NDArray[np.uint8], face: Face) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Return a copy of the face with a margin, and its top left corner (x, y) in the frame."""
    box = np.array(face.box_xyxy).reshape(2, 2)
    around = box.mean(axis=0) + (box - box.mean(axis=0)) * MARGIN
    (left, top), (right, bottom) = np.clip(np.rint(around), 0, image.shape[1::-1]).astype(int)
    return image[top:bottom, left:right].copy(), (int(left), int(top))


def _max_similarity(photo: Photo, rows: Any) -> float:
    """Return the similarity to the most similar photo of `rows`, at most 1; -1 if there are none."""
    return float(np.max(np.asarray(rows) @ photo.features)) if len(rows) else -1.0
