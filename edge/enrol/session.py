"""Enrolment at the terminal: a person stands before the camera, is told how to look, and photos for the trainer remain.

    frame  ->  its one face, cut out with a margin  ->  looked at as the trainer will  ->  good, new, nobody else's  ->  kept

What is judged is the very picture that is written, found and aligned by the trainer's own path; so what is kept here is what
the trainer learns from. edge/enrol/storage.py writes it.

Likeness is the cosine of coarse features. The limits were chosen on ORL (40 people, 10 photos each): above DUPLICATE are 95 %
of slightly moved, noisy copies of a photo, and 10 % of the pairs of photos of one person; above ALIKE is none of the 78,000
pairs of photos of two people.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, Frame
from edge.errors import AlreadyEnrolledError, ParameterError
from edge.text import printable, same_spelling
from edge.vision.detect import Face, FaceDetector, photo_min_face
from edge.vision.preprocess import SIZE, FeatureSpec, align, features
from edge.vision.quality import (
    BLURRED,
    CUT_OFF,
    LOW_CONTRAST,
    TOO_BRIGHT,
    TOO_DARK,
    TOO_SMALL,
    TURNED_AWAY,
    Quality,
    QualityLimits,
    assess,
)

WAIT_SECONDS = 0.25  # for a frame, before looking at the clock again
MARGIN = 2.0  # sides of a photo, in sides of the face's box
UNCLEAR = 0.08  # of the distance of the eyes: landmarks that move more than this from look to look are guesses
DUPLICATE, ALIKE = 0.975, 0.96
LIKENESS = FeatureSpec(height=SIZE[0], width=SIZE[1], cell=4, gradient_cell=8, blur=1.0)
ANY = (-math.inf, math.inf)

ADVICE = {
    "no picture": "The camera gives no pictures.",
    "no face": "I see no face: look at the camera.",
    "several faces": "One person at a time, please.",
    CUT_OFF: "Come to the middle of the picture.",
    TOO_SMALL: "Come closer.",
    TURNED_AWAY: "Not so far: turn a little less.",
    TOO_DARK: "More light on the face, please.",
    TOO_BRIGHT: "Less light on the face, please.",
    LOW_CONTRAST: "The picture is too pale: wipe the lens, or change the light.",
    BLURRED: "Hold still.",
    "unclear": "Hold still, with the whole face in view.",
    "duplicate": "That looks like a photo I have: move your head a little.",
}
"""What to say to the person, by the reason for which frames are refused."""

Known = Callable[[NDArray[np.uint8], Face], str | None]
"""Who a face in a grey photo is, to a kit; None for nobody it is sure of."""


@dataclass(frozen=True, kw_only=True)
class Pose:
    """What to ask of a person. Degrees are counted from how the same person looks straight ahead."""

    name: str
    words: str
    yaw: tuple[float, float] = ANY
    """From, to; as in edge.vision.quality, so a person's left is above 0."""
    pitch: tuple[float, float] = ANY
    """From, to; down is above 0."""
    settle_seconds: float = 1.0
    """Time to do it, before the first frame counts."""

    def fits(self, quality: Quality, straight: tuple[float, float] = (0.0, 0.0)) -> bool:
        yaw, pitch = quality.yaw - straight[0], quality.pitch - straight[1]
        return self.yaw[0] <= yaw <= self.yaw[1] and self.pitch[0] <= pitch <= self.pitch[1]


POSES = (
    Pose(name="straight", words="look straight at the camera", yaw=(-10, 10), pitch=(-12, 12)),
    Pose(name="left", words="turn your head a little to your left", yaw=(10, math.inf)),
    Pose(name="right", words="turn your head a little to your right", yaw=(-math.inf, -10)),
    Pose(name="up", words="lift your chin a little", pitch=(-math.inf, -5)),
    Pose(name="down", words="lower your chin a little", pitch=(5, math.inf)),
    Pose(name="glasses", words="if you wear glasses, put them on or take them off; if not, tilt your head", settle_seconds=4),
    Pose(name="smile", words="smile, or say something"),
    Pose(name="distance", words="step back a little, or come closer", settle_seconds=2),
)


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """How to enrol."""

    photos: int = 8
    """How many to take."""
    min_photos: int = 3
    """With fewer nothing is written."""
    gap_seconds: float = 0.4
    """Between two photos, at least."""
    pose_seconds: float = 15.0
    """How long to wait for a pose; then any new photo does, or none."""
    advice_seconds: float = 2.0
    """Between two pieces of advice, at least."""
    votes: int = 3
    """Looks that must show somebody else who is enrolled, and be half of all looks, for the person to be refused."""
    limits: QualityLimits = field(
        # Stricter than at the door: all of the face, and no fewer pixels than the canonical crop has.
        default_factory=lambda: QualityLimits(min_size=27, min_sharpness=0.16, min_brightness=60, max_outside=0.1)
    )
    """What a face must be."""

    def __post_init__(self) -> None:
        if not 1 <= self.min_photos <= self.photos <= 1000:
            raise ParameterError("photos must be 1 to 1000, and at least as many as are needed")
        if min(self.gap_seconds, self.pose_seconds, self.advice_seconds) < 0 or self.votes < 1:
            raise ParameterError("times must be 0 or more, votes 1 or more")


@dataclass(frozen=True, kw_only=True, eq=False)
class Photo:
    """One photo that may be kept."""

    image: NDArray[np.uint8]
    """(H, W, 3), BGR: the face and its surroundings."""
    likeness: NDArray[np.float32]
    """Features of its canonical crop, of unit length."""
    quality: Quality
    captured: float
    """Seconds of the camera's clock."""
    pose: str
    """The name of one of POSES."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured:
    """What came of a session."""

    photos: tuple[Photo, ...]
    frames: int
    """Frames looked at."""
    refused: Mapping[str, int]
    """Frames by the reason for which they were not kept."""
    alike: Mapping[str, int]
    """Looks that showed somebody else who is enrolled, by name: too few to refuse the person."""


def capture(
    camera: Camera,
    finder: FaceDetector,
    settings: CaptureSettings | None = None,
    *,
    name: str = "",
    known: Known | None = None,
    existing: NDArray[np.float32] | None = None,
    others: Mapping[str, NDArray[np.float32]] | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Captured:
    """Take photos until there are enough, or the recording or the person's time is over.

    In front of a live camera a person is guided from pose to pose; of a recording the first photos that differ are taken.
    `existing` are the likenesses (n, d) of photos that `name` has already, `others` those of other people.
    """
    session = _Session(finder, settings or CaptureSettings(), name, known, existing, others or {}, say, guided=camera.live)
    session.ask(camera.now())
    while not session.done and not camera.ended:
        frame = camera.frame(WAIT_SECONDS)
        if frame is not None:
            session.look(frame)
        elif camera.live:
            session.refuse("no picture", camera.now())
    return Captured(
        photos=tuple(session.photos),
        frames=session.frames,
        refused=dict(session.refused.most_common()),
        alike=dict(session.votes.most_common()),
    )


class _Session:
    """One person before the camera. All times are those of the frames."""

    def __init__(
        self,
        finder: FaceDetector,
        settings: CaptureSettings,
        name: str,
        known: Known | None,
        existing: NDArray[np.float32] | None,
        others: Mapping[str, NDArray[np.float32]],
        say: Callable[[str], None],
        *,
        guided: bool,
    ) -> None:
        self.finder, self.settings, self.name, self.known, self.others = finder, settings, name, known, others
        self.say, self.guided = say, guided
        self.likenesses = [] if existing is None else list(existing)
        self.photos: list[Photo] = []
        self.refused: Counter[str] = Counter()
        self.votes: Counter[str] = Counter()
        self.frames = self.looks = self.asked = 0
        self.straight = (0.0, 0.0)
        self.asked_at = self.last_look = -math.inf
        self.spare: Photo | None = None  # good and new, but not in the pose that was asked for
        self.advised_at, self.lately = -math.inf, Counter[str]()

    @property
    def done(self) -> bool:
        return self.asked > self.settings.photos if self.guided else len(self.photos) == self.settings.photos

    @property
    def pose(self) -> Pose:
        return POSES[(self.asked - 1) % len(POSES)]

    def ask(self, now: float) -> None:
        """For the next photo."""
        self.asked, self.asked_at, self.advised_at, self.spare = self.asked + 1, now, now, None
        self.lately.clear()
        if self.guided and not self.done:
            self.say(f"Photo {self.asked} of {self.settings.photos}: {self.pose.words}.")

    def look(self, frame: Frame) -> None:
        now = frame.captured
        if self.guided and now < self.asked_at + self.pose.settle_seconds:
            return
        if self.photos and now < self.photos[-1].captured + self.settings.gap_seconds - 1e-6:
            return
        self.frames += 1
        found = _photo(frame, self.finder, self.settings.limits)
        if isinstance(found, str):
            return self.refuse(found, now)
        photo, grey, face = found
        self._vote(photo, grey, face)
        if _likeness(photo, self.likenesses) > DUPLICATE:
            return self.refuse("duplicate", now)
        if self.guided and not self.pose.fits(photo.quality, self.straight):
            self.spare = photo
            return self.refuse("pose", now)
        self._keep(photo, self.pose.name if self.guided else photo.pose)
        self.ask(now)

    def refuse(self, reason: str, now: float) -> None:
        """Count it, say now and then what would help, and go on when the time for this pose is over."""
        self.refused[reason] += 1
        if not self.guided:
            return
        self.lately[reason] += 1
        if now >= self.asked_at + self.settings.pose_seconds:
            if self.spare is not None:
                self._keep(self.spare, self.spare.pose)
            self.ask(now)
        elif now >= self.advised_at + self.settings.advice_seconds:
            (most, _), *_ = self.lately.most_common(1)
            self.say(ADVICE.get(most) or f"Please {self.pose.words}.")
            self.lately.clear()
            self.advised_at = now

    def _keep(self, photo: Photo, pose: str) -> None:
        kept = replace(photo, pose=pose)
        if pose == "straight" and not self.photos:
            self.straight = (photo.quality.yaw, photo.quality.pitch)
        self.photos.append(kept)
        self.likenesses.append(kept.likeness)

    def _vote(self, photo: Photo, grey: NDArray[np.uint8], face: Face) -> None:
        """AlreadyEnrolledError as soon as the face is somebody else's in several looks, some time apart."""
        if photo.captured < self.last_look + self.settings.gap_seconds - 1e-6:
            return
        self.last_look = photo.captured
        self.looks += 1
        names = {other for other, rows in self.others.items() if _likeness(photo, rows) > ALIKE}
        if self.known is not None and (label := self.known(grey, face)) is not None:
            names.add(same_spelling(label))
        self.votes.update(names - {self.name})
        for other, votes in self.votes.items():
            if votes >= self.settings.votes and 2 * votes >= self.looks:
                raise AlreadyEnrolledError(
                    f"This face is already enrolled as {printable(other)}.",
                    "Enrol each person under one name; for somebody who merely looks alike, pass --allow-alike.",
                )


def _photo(frame: Frame, finder: FaceDetector, limits: QualityLimits) -> tuple[Photo, NDArray[np.uint8], Face] | str:
    """The photo of the one face in a frame, grey and where the face is in it; or why there is none."""
    faces = finder.detect(frame.image)
    if len(faces) != 1:
        return "several faces" if faces else "no face"
    image, corner = cut(frame.image, faces[0])
    again = finder.detect(image, photo_min_face(image))  # as the trainer will
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
    likeness = features(crop[None], LIKENESS)[0]
    return Photo(image=image, likeness=likeness, quality=quality, captured=frame.captured, pose=pose), grey, again[0]


def cut(image: NDArray[np.uint8], face: Face) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """The part of a frame that a photo shows, and its corner (x, y) in the frame."""
    box = np.array(face.box_xyxy).reshape(2, 2)
    around = box.mean(axis=0) + (box - box.mean(axis=0)) * MARGIN
    (left, top), (right, bottom) = np.clip(np.rint(around), 0, image.shape[1::-1]).astype(int)
    return image[top:bottom, left:right].copy(), (int(left), int(top))  # a copy: the frame need not stay in memory


def _likeness(photo: Photo, rows: Any) -> float:
    """To the most similar of other photos, at most 1; -1 where there are none."""
    return float(np.max(np.asarray(rows) @ photo.likeness)) if len(rows) else -1.0
