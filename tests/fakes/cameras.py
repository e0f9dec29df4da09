"""Fake camera drivers, and helpers for tests of cameras."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge.camera.base import Camera, Frame
from edge.clock import boottime

DEADLINE = 20.0


def next_frame(camera: Camera) -> Frame:
    frame = camera.frame(DEADLINE)
    assert frame is not None, camera.health
    return frame


def grey_level(frame: Frame) -> int:
    return round(float(frame.image.mean()))


def grey_image(level: int) -> NDArray[np.uint8]:
    return np.full((4, 6, 3), level, np.uint8)


def camera_threads() -> int:
    return sum(thread.name == "camera" for thread in threading.enumerate())


class ManualClock:
    """A clock that a test moves forward."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeCapture:
    """cv2.VideoCapture over a script of frames. False is a failed read; an Event blocks until it is set."""

    script: ClassVar[list[Any]] = []
    arguments: ClassVar[tuple[Any, ...]] = ()
    opened = 0
    stamp = 0.0

    def __init__(self, *arguments: Any) -> None:
        type(self).opened += 1
        type(self).arguments = arguments

    def isOpened(self) -> bool:  # noqa: N802
        return True

    def set(self, *_: Any) -> bool:
        return True

    def get(self, _: int) -> float:
        return type(self).stamp

    def grab(self) -> bool:
        while self.script and isinstance(self.script[0], threading.Event):
            self.script.pop(0).wait(DEADLINE)
        if not self.script:
            time.sleep(0.005)
            return False
        self._image = self.script.pop(0)
        return self._image is not False

    def retrieve(self) -> tuple[bool, Any]:
        return True, self._image

    def release(self) -> None:
        pass


class FakePicamera2:
    """The part of picamera2 that edge uses: three red images, then a timeout."""

    created: ClassVar[list[FakePicamera2]] = []

    def __init__(self, number: int) -> None:
        if number > 1:
            raise IndexError("list index out of range")
        self.created.append(self)
        self.number, self.left, self.held, self.is_closed = number, 3, 0, False

    def create_video_configuration(self, main: dict[str, Any]) -> dict[str, Any]:
        return main

    def configure(self, main: dict[str, Any]) -> None:
        # As in libcamera: the name is read from the highest byte of a little-endian word.
        self.red = {"RGB888": (0, 0, 255), "BGR888": (255, 0, 0)}[main["format"]]

    def start(self) -> None:
        pass

    def capture_request(self, wait: bool) -> Any:
        assert wait is False
        return SimpleNamespace(get_result=self._result)

    def _result(self, timeout: float) -> Any:
        if self.left == 0:
            time.sleep(min(timeout, 0.01))
            raise TimeoutError
        self.left -= 1
        self.held += 1
        return SimpleNamespace(
            make_array=lambda stream: np.full((4, 6, 3), self.red, np.uint8),
            get_metadata=lambda: {"SensorTimestamp": int((boottime() - 0.75) * 1e9)},
            release=self._release,
        )

    def _release(self) -> None:
        self.held -= 1

    def close(self) -> None:
        self.is_closed = True
