"""Capture sessions: good and varied photos of one person, exactly as the trainer will see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import cv2
import numpy as np
import pytest

from edge.camera.base import Camera
from edge.camera.recording import Recording
from edge.enrol import session
from edge.enrol.session import ADVICE, DUPLICATE, POSES, SAME_PERSON, SIMILARITY, CaptureSession
from edge.vision.detect import FaceDetector, photo_min_face
from edge.vision.preprocess import SIZE, align, features
from edge.vision.quality import pose
from tests.fakes.scene_camera import SimulatedCamera
from tests.fixtures.enrolment import GAP, PORTRAIT, WIDTH, copies, frames, recording
from tests.fixtures.portraits import finder, grey, in_a_room

pytestmark = pytest.mark.slow


class Person(SimulatedCamera):
    """A live camera with a simulated person: `act` returns the image for the last request."""

    def __init__(self, act: Callable[[str], Any]) -> None:
        super().__init__("a person", clock=100.0, fps=2)
        self.act, self.heard = act, list[tuple[float, str]]()

    def image(self) -> Any:
        assert self.number < 5000, "the session does not end"
        return self.act(next((text for _, text in reversed(self.heard) if text.startswith("Photo")), ""))

    def hear(self, text: str) -> None:
        self.heard.append((self.now(), text))


def capture(camera: Camera, detector: FaceDetector | None = None, **options: Any) -> CaptureSession:
    done = CaptureSession(detector=detector or finder(80), **options)
    done.run(camera)
    return done


def two_people() -> Any:
    both = in_a_room(frames(1)[0][PORTRAIT], width=WIDTH, at=(20, 50), size=(300, 400))
    both[50:245, 220:380] = frames(3)[0][PORTRAIT]
    return both


def test_crops_of_photos_and_frames_are_nearly_equal() -> None:
    """The landmarks differ a little between two detections."""

    def crop(image: Any, min_face: int) -> Any:
        (face,) = finder().detect(image, min_face)
        return align(grey(image), face.landmarks, SIZE)

    similarities, differences = [], []
    for frame in [frame for person in (1, 12, 23) for frame in frames(person)[:3]]:
        (photo,) = capture(recording([frame])).photos
        seen, stored = crop(frame, 80), crop(photo.image, photo_min_face(photo.image))
        similarities.append((features(seen[None], SIMILARITY) @ features(stored[None], SIMILARITY).T).item())
        differences.append(np.abs(seen.astype(int) - stored).mean())
    assert min(similarities) > 0.95
    assert np.median(similarities) > 0.98
    assert np.median(differences) < 10


def test_copies_are_rejected_and_other_photos_taken() -> None:
    found = capture(recording([*copies(1, 20), *frames(1)[1:]]), wanted=30)
    start = found.photos[0].captured
    numbers = [round((photo.captured - start) / GAP) for photo in found.photos]
    assert sum(number < 20 for number in numbers) <= 3, "of 20 copies"
    assert sum(number >= 20 for number in numbers) >= 5, "of 9 other photos"
    assert found.rejected["duplicate"] >= 17
    rows = np.array([photo.features for photo in found.photos])
    assert (np.triu(rows @ rows.T, 1) <= DUPLICATE).all()


def test_photos_are_some_time_apart_and_not_more_than_wanted() -> None:
    fast = Recording("fast", ((frame, i * GAP / 4) for i, frame in enumerate(frames(1))))
    times = np.array([photo.captured for photo in capture(fast).photos])
    assert len(times) >= 2
    assert (np.diff(times) >= GAP - 1e-6).all()
    camera = recording(frames(1))
    assert len(capture(camera, wanted=3).photos) == 3
    assert not camera.ended


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("face blurred", lambda frame: cv2.GaussianBlur(frame, (0, 0), 4)),
        ("face too dark", lambda frame: (frame * 0.15).astype(np.uint8)),
        ("face too small", lambda frame: in_a_room(frame[PORTRAIT], width=60, size=(300, 400))),
        ("face cut off", lambda frame: frame[:, 180:]),
        ("several faces", lambda _: two_people()),
        ("no face", lambda frame: np.full_like(frame, 90)),
    ],
)
def test_bad_frames_are_rejected_with_a_reason(reason: str, change: Callable[[Any], Any]) -> None:
    found = capture(recording(change(frame) for frame in frames(1)[:3]), finder(40))
    assert found.photos == []
    assert found.rejected[reason] >= 2, found.rejected
    assert reason in ADVICE


@pytest.mark.parametrize(
    ("reason", "second"),
    [
        ("unclear", lambda faces: []),
        ("unclear", lambda faces: [replace(face, landmarks=face.landmarks + 8) for face in faces]),
        ("several faces", lambda faces: faces * 2),
    ],
)
def test_second_detection_must_agree(reason: str, second: Callable[[Any], Any]) -> None:
    class Unstable:
        def detect(self, image: Any, min_face: int | None = None) -> Any:
            faces = finder(80).detect(image, min_face)
            return faces if min_face is None else second(faces)

    assert capture(recording(frames(1)[:1]), Unstable()).rejected == {reason: 1}


@cache
def by_yaw(person: int) -> Any:
    """The numbers of a person's photos, sorted by yaw: from the person's right to the left."""
    return np.argsort([pose(finder(80).detect(frame)[0].landmarks)[0] for frame in frames(person)])


def test_person_is_guided_from_pose_to_pose() -> None:
    def act(request: str) -> Any:
        for words, number in (("your left", -1), ("your right", 0), ("chin", 4), ("look straight", 5)):
            if words in request:
                return frames(1)[by_yaw(1)[number]]
        return frames(1)[by_yaw(1)[[7, 1, 6][int(request.split()[1]) % 3]]]

    camera = Person(act)
    found = capture(camera, say=camera.hear)
    poses = {photo.pose: photo for photo in found.photos}
    assert list(poses)[:3] == ["straight", "left", "right"]
    assert poses["right"].quality.yaw + 10 <= poses["straight"].quality.yaw <= poses["left"].quality.yaw - 10
    requests = [text for _, text in camera.heard if text.startswith("Photo")]
    assert requests == [f"Photo {i} of 8: {asked.request}." for i, asked in enumerate(POSES, start=1)]
    pauses = [
        time - before
        for (before, _), (time, text) in zip(camera.heard, camera.heard[1:], strict=False)
        if not text.startswith("Photo")
    ]
    assert pauses, "the person did not lift the chin, so there is advice"
    assert min(pauses) >= 2 - 1e-6
    assert camera.now() - 100 <= sum(15.3 + asked.settle_seconds for asked in POSES)


def test_session_ends_if_the_person_only_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "POSE_SECONDS", 6)
    camera = Person(lambda _: copies(1, 20)[camera.number % 20])
    found = capture(camera, wanted=3, say=camera.hear)
    assert 1 <= len(found.photos) <= 2
    assert ADVICE["duplicate"] in [text for _, text in camera.heard]
    assert camera.now() - 100 == pytest.approx(1 + 2 * 6, abs=1)


def test_photo_in_another_pose_is_used_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "POSE_SECONDS", 5)
    camera = Person(lambda request: frames(1)[by_yaw(1)[5 if "straight" in request else 0]])  # right instead of left
    found = capture(camera, wanted=2, say=camera.hear)
    assert [photo.pose for photo in found.photos] == ["straight", "right"]
    assert found.rejected == {"pose": 9}
    assert (103.0, f"Please {POSES[1].request}.") in camera.heard


@pytest.mark.parametrize(
    ("reason", "image"),
    [
        ("several faces", two_people),
        ("face blurred", lambda: cv2.GaussianBlur(frames(1)[0], (0, 0), 4)),
        ("no frame", lambda: None),
    ],
)
def test_advice_is_repeated_but_not_too_often(reason: str, image: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "POSE_SECONDS", 9)
    shown = image()
    camera = Person(lambda _: shown)
    found = capture(camera, wanted=1, say=camera.hear)
    assert found.photos == []
    advice = [text for _, text in camera.heard if not text.startswith("Photo")]
    assert set(advice) == {ADVICE[reason]}
    assert 3 <= len(advice) <= 4, "in nine seconds"


def test_similarity_of_different_people_is_below_the_limit() -> None:
    rows = {}
    for person in range(1, 41, 6):
        found = [capture(recording([frame])).photos for frame in frames(person)[:2]]
        rows[person] = np.array([photo.features for photos in found for photo in photos])
    assert max((rows[a] @ rows[b].T).max() for a in rows for b in rows if a < b) < SAME_PERSON
