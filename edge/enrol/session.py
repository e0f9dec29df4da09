"""Guided enrolment: take photos of one person in front of a camera for the trainer.

    frame  ->  its only face, cut out with a margin  ->  checked as in the trainer  ->  good, new, this person  ->  photo

The image that is checked is the image that edge/enrol/storage.py writes. The trainer detects and aligns by the same code.

Similarity is the cosine of coarse features. The limits were chosen on ORL (40 people, 10 photos each). Above DUPLICATE are
95 % of slightly moved, noisy copies of a photo, and 10 % of the pairs of photos of one person. No pair of photos of two people
(of 78,000) is above SAME_PERSON.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, Frame
from edge.errors import AlreadyEnrolledError
from edge.text import printable, same_spelling
from edge.vision import quality as face_quality
from edge.vision.detect import Face, FaceDetector, photo_min_face
from edge.vision.preprocess import SIZE, FeatureSpec, align, features
from edge.vision.quality import Quality, QualityLimits, assess

PHOTOS, MIN_PHOTOS = 8, 3  # wanted by default, and needed for the trainer
WAIT_SECONDS = 0.25  # for a frame, before the time is checked again
GAP_SECONDS = 0.4  # minimum time between two photos
POSE_SECONDS = 15.0  # time for a pose; after it, the session continues with a photo in another pose, or without
ADVICE_SECONDS = 2.0  # minimum time between two pieces of advice
VOTES = 3  # the person is rejected if this many frames, and half of all frames, show another enrolled person
# Stricter than at the door: the whole face, and at least as many pixels as the aligned crop.
LIMITS = QualityLimits(min_size=27, min_sharpness=0.16, min_brightness=60, max_outside=0.1)
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
"""Returns the label of a face in a photo (BGR), or None if it is not recognised."""


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


@dataclass(kw_only=True, eq=False)
class CaptureSession:
    """Takes photos of one person. All times are capture times of frames."""

    detector: FaceDetector
    wanted: int = PHOTOS
    """Photos to take."""
    name: str = ""
    """Label of the person."""
    identify: Identify | None = None
    own_photos: list[NDArray[np.float32]] = field(default_factory=list)
    """Features of the photos that the person has."""
    other_people: Mapping[str, list[NDArray[np.float32]]] = field(default_factory=dict)
    """Features of the photos of other people, by label."""
    say: Callable[[str], None] = lambda _: None

    photos: list[Photo] = field(default_factory=list, init=False)
    """The result."""
    frames: int = field(default=0, init=False)
    """Frames examined."""
    rejected: Counter[str] = field(default_factory=Counter, init=False)
    """Rejected frames by reason."""
    alike: Counter[str] = field(default_factory=Counter, init=False)
    """Frames that showed another enrolled person, by label: too few to reject the person."""
    requested: int = field(default=0, init=False)
    """Number of the photo that is requested, from 1."""
    advised: str = field(default="", init=False)
    """The reason of the last advice for this photo: a key of ADVICE, or "pose"; empty if there was none."""

    def run(self, camera: Camera) -> None:
        """Take photos until there are enough, or the recording ends, or the time is over.

        A live camera guides the person from pose to pose. From a recording, the first photos that differ are taken.
        """
        self.begin(camera.now(), guided=camera.live)
        while not self.done and not camera.ended:
            frame = camera.frame(WAIT_SECONDS)
            if frame is not None:
                self.process(frame)
            elif camera.live:
                self._reject("no frame", camera.now())

    def begin(self, now: float, *, guided: bool) -> None:
        """Request the first photo. Then `process` each frame until `done`."""
        self._guided = guided
        self._voted, self._voted_at = 0, -math.inf
        self._straight = (0.0, 0.0)
        self.requested = 0
        self._request_photo(now)

    @property
    def done(self) -> bool:
        """Whether no more frames are needed."""
        return self.requested > self.wanted if self._guided else len(self.photos) == self.wanted

    @property
    def pose(self) -> Pose:
        """The requested pose."""
        return POSES[(self.requested - 1) % len(POSES)]

    def _request_photo(self, now: float) -> None:
        self.requested, self._requested_at, self._advised_at = self.requested + 1, now, now
        self.advised = ""
        self._spare: Photo | None = None  # good and new, but not in the requested pose
        self._recently_rejected: Counter[str] = Counter()
        if self._guided and not self.done:
            self.say(f"Photo {self.requested} of {self.wanted}: {self.pose.request}.")

    def process(self, frame: Frame) -> None:
        """Take a photo from the frame, or reject the frame. Captured times must rise."""
        now = frame.captured
        if self._guided and now < self._requested_at + self.pose.settle_seconds:
            return
        if self.photos and now < self.photos[-1].captured + GAP_SECONDS - 1e-6:
            return
        self.frames += 1
        found = _find_photo(frame, self.detector)
        if isinstance(found, str):
            return self._reject(found, now)
        photo, face = found
        self._vote(photo, face)
        if _max_similarity(photo, self.own_photos) > DUPLICATE:
            return self._reject("duplicate", now)
        if self._guided and not self.pose.fits(photo.quality, self._straight):
            self._spare = photo
            return self._reject("pose", now)
        self._keep(replace(photo, pose=self.pose.name) if self._guided else photo)
        self._request_photo(now)

    def _reject(self, reason: str, now: float) -> None:
        """Count the frame, give advice from time to time, and go to the next pose when the time for this one is over."""
        self.rejected[reason] += 1
        self._recently_rejected[reason] += 1
        if not self._guided:
            return
        if now >= self._requested_at + POSE_SECONDS:
            if self._spare is not None:
                self._keep(self._spare)
            self._request_photo(now)
        elif now >= self._advised_at + ADVICE_SECONDS:
            (most_frequent, _), *_ = self._recently_rejected.most_common(1)
            self.advised = most_frequent
            self.say(ADVICE.get(most_frequent) or f"Please {self.pose.request}.")
            self._recently_rejected.clear()
            self._advised_at = now

    def _keep(self, photo: Photo) -> None:
        if photo.pose == "straight" and not self.photos:
            self._straight = (photo.quality.yaw, photo.quality.pitch)
        self.photos.append(photo)
        self.own_photos.append(photo.features)

    def _vote(self, photo: Photo, face: Face) -> None:
        """AlreadyEnrolledError if several frames, some time apart, show another enrolled person."""
        if photo.captured < self._voted_at + GAP_SECONDS - 1e-6:
            return
        self._voted_at = photo.captured
        self._voted += 1
        labels = {label for label, rows in self.other_people.items() if _max_similarity(photo, rows) > SAME_PERSON}
        if self.identify is not None and (label := self.identify(photo.image, face)) is not None:
            labels.add(same_spelling(label))
        self.alike.update(labels - {self.name})
        for label, votes in self.alike.items():
            if votes >= VOTES and 2 * votes >= self._voted:
                raise AlreadyEnrolledError(
                    f"This face is already enrolled as {printable(label)}.",
                    "Enrol each person under one name. For two people who look alike, pass --allow-alike.",
                )


def _find_photo(frame: Frame, detector: FaceDetector) -> tuple[Photo, Face] | str:
    """Return the photo of the only face in a frame, and its face; or the reason why there is none."""
    faces = detector.detect(frame.image)
    if len(faces) != 1:
        return "several faces" if faces else "no face"
    box = np.array(faces[0].box_xyxy).reshape(2, 2)
    around = box.mean(axis=0) + (box - box.mean(axis=0)) * MARGIN
    (left, top), (right, bottom) = np.clip(np.rint(around), 0, frame.image.shape[1::-1]).astype(int)
    image = frame.image[top:bottom, left:right].copy()
    again = detector.detect(image, photo_min_face(image))  # as the trainer will
    if len(again) != 1:
        return "several faces" if again else "unclear"
    grey: NDArray[Any] = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    crop = align(grey, again[0].landmarks, SIZE)
    quality = assess(grey, again[0], LIMITS, crop)
    if quality.reason is not None:
        return quality.reason
    moved = faces[0].landmarks - (left, top) - again[0].landmarks
    if np.abs(moved).mean() > UNCLEAR * quality.size:
        return "unclear"
    pose = next((pose.name for pose in POSES if pose.fits(quality)), POSES[0].name)
    vector = features(crop[None], SIMILARITY)[0]
    return Photo(image=image, features=vector, quality=quality, captured=frame.captured, pose=pose), again[0]


def _max_similarity(photo: Photo, rows: list[NDArray[np.float32]]) -> float:
    """Return the similarity to the most similar photo of `rows`, at most 1; -1 if there are none."""
    return max((float(row @ photo.features) for row in rows), default=-1.0)
